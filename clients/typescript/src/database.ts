/**
 * The connections of a pool, as inboxes and the HTTP layer use them: each wait has a bound, a
 * broken session is closed.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Pool, PoolClient } from "pg";

import { hasState, isOfPostgres, isUseless, line } from "./errors.ts";
import { Handle } from "./handle.ts";
import { printable, seconds } from "./text.ts";
import { close, prepared, query, type Query, quoted, type Row, SESSION, together } from "./wire.ts";

const ENDED = "the handler ended the transaction by itself";
const ABORTED = "the transaction was aborted by an error that the handler did not throw";
/** A wait for a connection is logged after this number of seconds. */
const SLOW_SECONDS = 10;
/** Some libraries send a text of such a type by rules of their own. */
const CASTS: Record<string, string> = { stored_at: "::text::timestamptz", headers: "::text::jsonb", outcome: "::text::json", result: "::text::json" };

/** Arguments that may have any characters. */
const WORDS = ["reason", "subject"];

/** Settings of all that claims keys. */
export interface DatabaseOptions {
  /** How long a handler may take. Default: 1 minute. */
  handlerTimeoutMs?: number;
  /**
   * How long each step before and after the handler may take; then its connection is closed. It is
   * the pool's `connectionTimeoutMillis` too, where that is not set. Default: 30 seconds.
   */
  stepTimeoutMs?: number;
  /** The PostgreSQL schema with the tables. Default: `oncebox`. */
  schema?: string;
}

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

/** The client that a handler writes through, until it has ended. */
export interface Own {
  client: PoolClient;
  pool: Pool;
  signal: AbortSignal;
}

/**
 * For a handler's transaction, which PostgreSQL ends when the process does not: takes
 * `Database.limit`.
 */
export const LIMITS = "set_config('idle_in_transaction_session_timeout', $1, true), set_config('statement_timeout', $1, true)";

export class TimedOut extends Error {
  override readonly name = "TimedOut";
}

export class Database {
  readonly pool: Pool;
  readonly handlerTimeoutMs: number;
  readonly stepTimeoutMs: number;
  /** Its connections at most. */
  readonly size: number;
  readonly #who: string;
  readonly #schema: string;
  readonly #warn: (text: string) => void;

  constructor(pool: Pool, scope: string, options: DatabaseOptions, warn: (text: string) => void) {
    [this.pool, this.#who, this.#schema, this.#warn] = [pool, `scope ${scope}`, quoted(options.schema ?? "oncebox"), warn];
    [this.handlerTimeoutMs, this.stepTimeoutMs] = [options.handlerTimeoutMs ?? 60_000, options.stepTimeoutMs ?? 30_000];
    this.size = pool.options.max ?? 10;
    prepared(pool, this.stepTimeoutMs, (error) => warn(`${this.#who}: an idle connection broke: ${line(error)}`));
  }

  async connect(): Promise<PoolClient> {
    const why = `are all ${this.size} in use (then set its \`max\`), or is PostgreSQL away?`;
    const slow = setTimeout(() => this.#warn(`${this.#who}: waits for a connection of the pool for ${SLOW_SECONDS} seconds: ${why}`), SLOW_SECONDS * 1000);
    return await this.pool.connect().finally(() => clearTimeout(slow));
  }

  get limit(): string {
    return `${this.handlerTimeoutMs + 5000}ms`;
  }

  /** The message about a handler that takes longer. */
  get tooSlow(): string {
    return `the handler takes longer than ${this.handlerTimeoutMs} ms`;
  }

  /** A name of the schema. */
  of(name: string): string {
    return `${this.#schema}.${name}`;
  }

  /** A call of a function of the schema with these arguments. */
  call(name: string, given: Record<string, unknown>): Query {
    const named = Object.keys(given).map((argument, n) => `${argument} => $${n + 1}${CASTS[argument] ?? ""}`);
    const values = Object.entries(given).map(([argument, value]) => (WORDS.includes(argument) && typeof value === "string" ? printable(value) : value));
    return { text: `${this.of(name)}(${named.join(", ")})`, values };
  }

  /** Calls a function in a transaction of its own. */
  async ask(name: string, given: Record<string, unknown>): Promise<string | null> {
    const { text, values } = this.call(name, given);
    const [[answer = null] = []] = await this.rows(`SELECT ${text}::text`, values);
    return answer;
  }

  /** A statement in a transaction of its own. */
  async rows(text: string, values: unknown[] = [], limitMs = this.stepTimeoutMs): Promise<Row[]> {
    const client = await this.connect();
    return await this.within(client, {}, () => step(client, limitMs, () => query(client, text, values)));
  }

  /** The same, unless no connection is free within this time: then it has no rows. */
  async rowsSoon(waitMs: number, text: string, values: unknown[]): Promise<Row[]> {
    const connecting = this.pool.connect();
    const client = await Promise.race([connecting, sleep(waitMs, undefined, { ref: false })]);
    if (client === undefined) {
      connecting.then((late) => late.release(), () => {});
      return [];
    }
    return await this.within(client, {}, () => this.step(client, () => query(client, text, values)));
  }

  async register(scope: string, retentionMs: number | null | undefined, more: Record<string, string>): Promise<void> {
    await this.ask("register_scope", { scope, retention: retentionMs == null ? null : seconds(retentionMs), ...more });
  }

  /** Does something with a connection, rolls back if it fails, and releases the connection. */
  async within<R>(client: PoolClient, run: Run, work: () => Promise<R>): Promise<R> {
    // A query on a broken connection fails by itself; without this listener the process would end.
    const broken = () => {};
    client.on("error", broken);
    // Whether its transaction may still be open, or its session is another one: then it is closed.
    let isSpoiled = false;
    const isChanged = () => this.step(client, () => rollBack(client, run)).catch(() => true);
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

  /**
   * The life of a claim in one transaction: `claim` answers undefined where there is work to do,
   * which commits. Else it is rolled back.
   */
  async life<A>(client: PoolClient, run: Run, claim: () => Promise<A | undefined>, work: () => Promise<A>): Promise<A> {
    return await this.within(client, run, async () => {
      const answer = await this.step(client, claim);
      if (answer === undefined) {
        return await work();
      }
      await this.step(client, () => query(client, "ROLLBACK"));
      return answer;
    });
  }

  /** Waits for a step on this connection, which is closed when it takes longer than it may. */
  step<R>(client: PoolClient, work: () => Promise<R>): Promise<R> {
    return step(client, this.stepTimeoutMs, work);
  }

  /**
   * Runs a handler, whose client is revoked when it ends. If it takes longer than it may, its
   * connection is to be closed.
   */
  async handle<R>(client: PoolClient, work: (own: Own) => Promise<R>, limitMs = this.handlerTimeoutMs, outer?: AbortSignal): Promise<R> {
    const handle = new Handle(client, this.pool);
    try {
      return await limited(limitMs, this.tooSlow, (signal) => work({ client: handle.client, pool: handle.pool, signal }), outer);
    } finally {
      handle.revoke();
    }
  }
}

/**
 * Waits for work for `limitMs` at most, unless `outer` is aborted; `late` names the work that took
 * longer.
 */
export async function limited<R>(limitMs: number, late: string, work: (signal: AbortSignal) => Promise<R>, outer?: AbortSignal): Promise<R> {
  const timeout = new AbortController();
  const timer = setTimeout(() => timeout.abort(new TimedOut(late)), limitMs);
  const signal = outer === undefined ? timeout.signal : AbortSignal.any([timeout.signal, outer]);
  try {
    signal.throwIfAborted();
    const aborted = new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    return await Promise.race([work(signal), aborted]);
  } finally {
    clearTimeout(timer);
  }
}

/** Waits for a step on this connection, which is closed when it takes longer than this. */
export async function step<R>(client: PoolClient, limitMs: number, work: () => Promise<R>): Promise<R> {
  const timer = setTimeout(() => close(client, new TimedOut(`PostgreSQL did not answer for ${limitMs} ms`)), limitMs);
  return await work().finally(() => clearTimeout(timer));
}

/**
 * Rolls an open transaction back. Returns whether the handler has changed the session for all later
 * messages.
 */
export async function rollBack(client: PoolClient, run: Run): Promise<boolean> {
  const [, [[session]]] = (await together(client, [{ text: "ROLLBACK" }, { text: `SELECT ${SESSION}` }])) as [unknown, [[string]]];
  return run.session !== undefined && session !== run.session;
}

/** Throws unless a transaction is open, without an error. */
export function checkOpen(client: PoolClient): void {
  const status = client.getTransactionStatus?.();
  if (status === "I" || status === "E") {
    throw new Error(status === "I" ? ENDED : ABORTED);
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
