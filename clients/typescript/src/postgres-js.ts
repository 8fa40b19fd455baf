/** Lets inboxes and the HTTP layer run over connections of postgres.js, in place of a pool of pg. */
import { EventEmitter } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import type { Pool } from "pg";

import type { Context } from "./message.ts";

/** The parts of postgres.js that are used here. */
interface PostgresJs {
  reserve(): Promise<any>;
  unsafe(text: string, values?: any[]): PromiseLike<any>;
  options: { max: number };
}

/** A pool for `new Inbox(poolOf(sql), scope)`. */
export function poolOf(sql: PostgresJs): Pool {
  const options: { max: number; connectionTimeoutMillis?: number } = { max: sql.options.max };
  const connect = () => connected(sql, options.connectionTimeoutMillis ?? 30_000);
  return Object.assign(new EventEmitter(), { options, connect }) as unknown as Pool;
}

/** The handler's `sql`, in its transaction; for recovering from an error use SAVEPOINT as text. */
export function sqlOf<Sql = any>({ client }: Pick<Context, "client">): Sql {
  const { check, reserved } = client as unknown as { check(text: string): void; reserved: any };
  const checked = (send: (...given: any[]) => unknown) => (text: any, ...given: any[]) => {
    check(typeof text === "string" ? text : Array.isArray(text?.raw) ? text.raw.join("") : "");
    return send(text, ...given);
  };
  return new Proxy(reserved, {
    apply: (target, _, given) => checked(target)(...(given as [any])),
    get: (target, name) => (name === "unsafe" ? checked(target.unsafe) : name === "release" ? undefined : target[name]),
  });
}

/**
 * postgres.js 3.4.9 forgets who waits in reserve() when a connection closes: so each waits for this
 * time, and asks again.
 */
const ASK_AGAIN_MS = 500;

async function connected(sql: PostgresJs, limitMs: number): Promise<Borrowed> {
  const deadline = performance.now() + limitMs;
  while (performance.now() < deadline) {
    const reserving = sql.reserve();
    const late = sleep(Math.min(ASK_AGAIN_MS, deadline - performance.now()), undefined, { ref: false });
    const reserved = await Promise.race([reserving, late]);
    if (reserved !== undefined) {
      return new Borrowed(sql, reserved);
    }
    reserving.then((reserved) => reserved.release(), () => {});
  }
  throw new Error(`postgres.js had no connection for ${limitMs} ms: is its \`max\` too small?`);
}

/** As much of a client of pg as an inbox needs. */
class Borrowed extends EventEmitter {
  readonly reserved: any;
  readonly #sql: PostgresJs;
  readonly #closed = Promise.withResolvers<never>();
  /** Only its backend can be ended: postgres.js closes no connection by itself. */
  readonly connection = { stream: { destroy: (reason?: Error) => this.#closed.reject(reason ?? new Error("the connection is closed")) } };
  #pid: number | undefined;

  constructor(sql: PostgresJs, reserved: any) {
    super();
    [this.#sql, this.reserved] = [sql, reserved];
    this.#closed.promise.catch(() => {});
  }

  async query(given: string | { text: string; values?: unknown[]; name?: string; rowMode?: string }, more?: unknown[]) {
    const { text, values = more ?? [], name, rowMode } = typeof given === "string" ? { text: given } : given;
    const asked = this.reserved.unsafe(text, values, { prepare: name !== undefined });
    // As PostgreSQL sends them, without the types and transforms that the user has set.
    const rows = await Promise.race([rowMode === "array" ? asked.raw() : asked, this.#closed.promise]);
    this.#pid ??= rows.state?.pid;
    const list = rowMode === "array" ? rows.map((row: (Buffer | null)[]) => row.map((value) => value && value.toString())) : [...rows];
    return { rows: list, rowCount: rows.count };
  }

  release(isSpoiled?: boolean | Error): void {
    this.#closed.reject(new Error("the connection was given back"));
    if (isSpoiled && this.#pid !== undefined) {
      // When it has ended, postgres.js connects again by itself.
      const text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND usename = current_user";
      this.#sql.unsafe(text, [this.#pid]).then(() => {}, () => {});
    } else {
      this.reserved.release();
    }
  }
}
