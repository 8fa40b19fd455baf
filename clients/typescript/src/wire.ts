/**
 * The library's own statements: they do not depend on the settings that a user has made for the
 * pool, its types or its rows.
 */
import type { Client, ClientBase, CustomTypesConfig, Pool, PoolClient } from "pg";

/** A row, each column as the text that PostgreSQL sends. */
export type Row = (string | null)[];
export interface Query {
  text: string;
  name?: string;
  values?: unknown[];
}

const SETTINGS = [
  ...["search_path", "default_transaction_read_only", "default_transaction_isolation", "default_transaction_deferrable"],
  ...["row_security", "session_replication_role", "lock_timeout", "DateStyle", "IntervalStyle", "TimeZone"],
  ...["client_encoding", "standard_conforming_strings"],
];
/**
 * The session as a handler may change it for good. A setting of its transaction ends with COMMIT.
 */
export const SESSION = `concat_ws(' ', session_user, current_user, ${SETTINGS.map((name) => `current_setting('${name}')`).join(", ")})`;

const asText = { getTypeParser: () => (text: string) => text } as unknown as CustomTypesConfig;

/** The rows of a query. */
export async function query(client: ClientBase, text: string, values: unknown[] = []): Promise<Row[]> {
  const [rows] = await together(client, [values.length === 0 ? { text } : { text, values }]);
  return rows!;
}

/** The rows of queries that are sent at once, in one packet, if the pool has `pipeline: true`. */
export async function together(client: ClientBase, queries: Query[]): Promise<Row[][]> {
  const ours = { rowMode: "array" as const, types: asText, binary: false };
  if ((client as unknown as { pipeline?: boolean }).pipeline !== true) {
    const rows: Row[][] = [];
    for (const query of queries) {
      rows.push((await client.query({ ...query, ...ours })).rows as Row[]);
    }
    return rows;
  }
  const { stream } = (client as unknown as Partial<Client>).connection ?? {};
  stream?.cork();
  // Only the statements that are written at once: the answers come after them.
  queueMicrotask(() => stream?.uncork());
  const results = await Promise.all(queries.map((query) => client.query({ ...query, ...ours })));
  return results.map(({ rows }) => rows as Row[]);
}

const known = new WeakSet<Pool>();

/** Prepares a pool, once, however many inboxes and layers share it. */
export function prepared(pool: Pool, limitMs: number, broken: (error: Error) => void): void {
  // Only the pool can give up a connection that is still being made.
  pool.options.connectionTimeoutMillis ||= limitMs;
  if (!known.has(pool)) {
    known.add(pool);
    // Without a listener, an idle connection that breaks would end the process.
    pool.on("error", broken);
  }
}

/** An identifier for a statement. */
export function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

/** Closes a connection at once; without an answer, its queries would keep the pool from doing so. */
export function close(client: PoolClient, reason?: Error): void {
  (client as unknown as Partial<Client>).connection?.stream.destroy(reason);
}
