/** One seam for all libraries: how a statement is sent through a transaction of theirs, and its rows. */
import type { ClientBase } from "pg";

import { query, type Row } from "./wire.ts";

/** The parts of a transaction of Drizzle, Kysely, Prisma, postgres.js or TypeORM that are used here. */
interface OfDrizzle {
  execute(query: any): PromiseLike<any>;
}
interface OfKysely {
  executeQuery(query: any): Promise<{ rows: any[] }>;
}
interface OfPrisma {
  $queryRawUnsafe(text: string, ...values: any[]): PromiseLike<any>;
}
interface OfPostgresJs {
  unsafe(text: string, values?: any[]): PromiseLike<any>;
}
interface OfTypeOrm {
  query(text: string, values?: any[]): Promise<any>;
  readonly queryRunner?: any;
}

/**
 * A transaction: a client of pg, the `tx` of Drizzle, Kysely, Prisma or postgres.js, or an EntityManager or
 * QueryRunner of TypeORM.
 */
export type Transaction = ClientBase | OfDrizzle | OfKysely | OfPrisma | OfPostgresJs | OfTypeOrm;

/** The rows of a statement whose parameters and columns are texts, but for bytes. */
export async function rowsOf(transaction: Transaction, text: string, values: unknown[]): Promise<Row[]> {
  const has = (name: string) => typeof (transaction as unknown as Record<string, unknown>)[name] === "function";
  if (has("executeQuery")) {
    return rows(await (transaction as OfKysely).executeQuery({ ...raw(text), sql: text, parameters: values }));
  }
  if (has("$queryRawUnsafe")) {
    return rows(await (transaction as OfPrisma).$queryRawUnsafe(text, ...values));
  }
  if (has("unsafe")) {
    return rows(await (transaction as OfPostgresJs).unsafe(text, values));
  }
  if (has("execute") && !has("query")) {
    return rows(await (transaction as OfDrizzle).execute(ofDrizzle(text, values)));
  }
  if (!has("query")) {
    throw new TypeError("this is no transaction of pg, Drizzle, Kysely, Prisma, postgres.js or TypeORM: pass the one that your writes go through");
  }
  if ("manager" in transaction || has("getRepository")) {
    const runner: any = "isTransactionActive" in transaction ? transaction : (transaction as OfTypeOrm).queryRunner;
    if (runner?.isTransactionActive !== true) {
      throw new TypeError("this object of TypeORM is in no transaction: pass the EntityManager that `dataSource.transaction(..)` hands over");
    }
    return rows(await (transaction as OfTypeOrm).query(text, values));
  }
  return await query(transaction as ClientBase, text, values);
}

function rows(result: unknown): Row[] {
  const list = Array.isArray(result) ? result : (result as { rows: unknown[] }).rows;
  return list.map((row: unknown) => (Array.isArray(row) ? row : Object.values(row as object)) as Row);
}

/** As `sql.raw(text)` of Kysely. */
function raw(text: string) {
  const query = { kind: "RawNode", sqlFragments: [text], parameters: [] };
  return { query, queryId: { queryId: "oncebox" } };
}

/** An object that Drizzle takes for its own `sql`, with parameters. */
function ofDrizzle(sql: string, params: unknown[]) {
  const built = { getSQL: () => built, toQuery: () => ({ sql, params }), queryChunks: [], shouldInlineParams: false };
  return built;
}
