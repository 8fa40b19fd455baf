/** The transaction that a handler writes through: its steps, its end, and the work that it leaves unfinished. */
import type { Pool, PoolClient } from "pg";

import { found, hasState, isOfPostgres, isUseless } from "./errors.ts";
import { Handle } from "./handle.ts";
import { close, query, type Query, SESSION, together } from "./wire.ts";

export const ENDED = "the handler ended the transaction by itself";
const ABORTED = "the transaction was aborted by an error that the handler did not throw";

/** Of the run of a handler that is under way, the marks of its transaction. */
export interface Run {
  /** The id of the transaction that has claimed the key. */
  xid?: string | undefined;
  /** The session's settings when the handler began. */
  session?: string | undefined;
  /** The same just before COMMIT. */
  sessionThen?: string | undefined;
  /** Whether COMMIT has been sent, and PostgreSQL's answer is lost. */
  isUnsure?: boolean;
}

/** What a handler writes through, until it has ended. */
export interface Own {
  client: PoolClient;
  pool: Pool;
  signal: AbortSignal;
}

export class TimedOut extends Error {
  override readonly name = "TimedOut";
}

/** Does something with a connection, rolls back if it fails, and releases the connection. */
export async function within<R>(client: PoolClient, run: Run, limitMs: number, work: () => Promise<R>): Promise<R> {
  // A query on a broken connection fails by itself; without this listener the process would end.
  const broken = () => {};
  client.on("error", broken);
  // Whether its transaction may still be open, or its session is another one: then it is closed.
  let isSpoiled = false;
  const isChanged = () => step(client, limitMs, () => rollBack(client, run)).catch(() => true);
  try {
    const result = await work();
    isSpoiled = run.sessionThen !== undefined && run.session !== run.sessionThen && (await isChanged());
    return result;
  } catch (error) {
    isSpoiled = error instanceof TimedOut || isUseless(error) || (await isChanged());
    throw error;
  } finally {
    client.off("error", broken);
    if (isSpoiled) {
      close(client);
    }
    client.release(isSpoiled);
  }
}

/** Rolls back what is open. Returns whether the handler has changed the session for all later messages. */
export async function rollBack(client: PoolClient, run: Run): Promise<boolean> {
  const [, [[session]]] = (await together(client, [{ text: "ROLLBACK" }, { text: `SELECT ${SESSION}` }])) as [unknown, [[string]]];
  return run.session !== undefined && session !== run.session;
}

/** Waits for a step on this connection, which is closed when it takes longer than this. */
export async function step<R>(client: PoolClient, limitMs: number, work: () => Promise<R>): Promise<R> {
  const timer = setTimeout(() => close(client, new TimedOut(`PostgreSQL did not answer for ${limitMs} ms`)), limitMs);
  return await work().finally(() => clearTimeout(timer));
}

/** Throws unless a transaction is open, without an error. */
export function checkOpen(client: PoolClient): void {
  const status = client.getTransactionStatus?.();
  if (status === "I" || status === "E") {
    throw new Error(status === "I" ? ENDED : ABORTED);
  }
}

/** Runs a handler, whose client is revoked when it ends. If it takes longer than `limitMs`, its connection is to be closed. */
export async function handled<R>(
  client: PoolClient, pool: Pool, limitMs: number, work: (own: Own) => Promise<R>,
): Promise<R> {
  const timeout = new AbortController();
  const timer = setTimeout(() => timeout.abort(new TimedOut(`the handler takes longer than ${limitMs} ms`)), limitMs);
  const handle = new Handle(client, pool);
  try {
    const late = new Promise<never>((_, reject) => timeout.signal.addEventListener("abort", () => reject(timeout.signal.reason)));
    return await Promise.race([work({ client: handle.client, pool: handle.pool, signal: timeout.signal }), late]);
  } catch (error) {
    const reject = found<R>(error, "Reject");
    if (reject === undefined) {
      throw error;
    }
    return reject;
  } finally {
    handle.revoke();
    clearTimeout(timer);
  }
}

/** Settles and commits in one round trip, if this still is the transaction that made the claim. */
export async function commit(client: PoolClient, run: Run, settle: Query[], isPrepared: boolean): Promise<void> {
  checkOpen(client);
  const text = `SELECT CASE WHEN pg_current_xact_id_if_assigned()::text = $1 THEN ${SESSION}
    ELSE concat('${ENDED}', pg_current_xact_id_if_assigned())::int::text END`;
  const check = { text, values: [run.xid], ...(isPrepared ? { name: "oncebox check" } : {}) };
  run.isUnsure = true;
  try {
    const [checked] = await together(client, [check, ...settle, { text: "COMMIT" }]);
    run.sessionThen = checked?.[0]?.[0] ?? undefined;
  } catch (error) {
    run.isUnsure = !isOfPostgres(error);
    const isEnded = error instanceof Error && error.message.includes(ENDED);
    // Versions of pg that do not know whether a transaction is aborted learn it here.
    throw isEnded ? new Error(ENDED) : hasState(error, /^25P02$/) ? new Error(ABORTED) : error;
  }
}

/** Asks in a transaction of its own. */
export async function ask(client: PoolClient, limitMs: number, text: string, values: unknown[]): Promise<string | null> {
  const [[answer = null] = []] = await within(client, {}, limitMs, () => step(client, limitMs, () => query(client, text, values)));
  return answer;
}
