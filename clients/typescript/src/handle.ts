/** The client as a handler gets it: it cannot end the transaction, and is revoked when the handler ends. */
import type { Pool, PoolClient } from "pg";

const ENDED = "the handler ended the transaction by itself";
const LATE = "the handler has ended: await all work with cx.client before it returns";
/** A statement that begins or ends a transaction, behind comments. `ROLLBACK TO` a savepoint is none. */
const BLANK = String.raw`(?:\s|--[^\n]*(?:\n|$)|/\*[\s\S]*?\*/)`;
const CONTROL = new RegExp(`^${BLANK}*(BEGIN|START${BLANK}+TRANSACTION|COMMIT|END|ROLLBACK|ABORT|PREPARE${BLANK}+TRANSACTION)\\b([\\s\\S]*)$`, "i");
/** Words that change nothing. */
const PLAIN = new RegExp(`^(?:${BLANK}|;|WORK\\b|TRANSACTION\\b)*$`, "i");

export class Handle {
  readonly client: PoolClient;
  /** A pool whose every connection is this client, for libraries that want a pool. */
  readonly pool: Pool;
  #hasEnded = false;
  /** Of the transactions that a library has begun within the handler's: each is a savepoint. */
  #depth = 0;

  constructor(client: PoolClient, pool: Pool) {
    const refuse = () => {
      throw new Error("the inbox ends a handler's transaction and releases its client: return to commit, throw to roll back");
    };
    const query = (first: unknown, ...others: unknown[]) => {
      if (this.#hasEnded) {
        throw new Error(LATE);
      }
      return (client.query as (...given: unknown[]) => unknown).call(client, this.#within(first), ...others);
    };
    // For drivers with a form of their own.
    const check = (text: string) => {
      if (this.#hasEnded || this.#within(text) !== text) {
        throw new Error(this.#hasEnded ? LATE : `${ENDED}, or tried to: in postgres.js use SAVEPOINT`);
      }
    };
    this.client = shown(client, { query, check, release: refuse, end: refuse });
    const borrowed = shown(client, { query, release: () => {}, end: refuse });
    const connect = (callback?: (error: undefined, client: PoolClient, release: () => void) => void) =>
      callback === undefined ? Promise.resolve(borrowed) : callback(undefined, borrowed, () => {});
    this.pool = shown(pool, { query, connect, end: async () => {} });
  }

  /** Queries that were sent before are answered in the handler's transaction; any other is an error. */
  revoke(): void {
    this.#hasEnded = true;
  }

  /** What is sent for it: libraries begin and end transactions, which are savepoints here. */
  #within(given: unknown): unknown {
    const isText = typeof given === "string";
    const text = isText ? given : (given as { text?: unknown } | null)?.text;
    const [, word = "", rest = ""] = (typeof text === "string" && CONTROL.exec(text)) || [];
    if (word === "" || (/^ROLLBACK$/i.test(word) && new RegExp(`^${BLANK}+(?:(?:WORK|TRANSACTION)${BLANK}+)?TO\\b`, "i").test(rest))) {
      return given;
    }
    const begins = /^(BEGIN|START)/i.test(word);
    if (/^PREPARE/i.test(word) || !PLAIN.test(rest) || (!begins && this.#depth === 0)) {
      const remedy = "return to commit, throw to roll back, and recover from an error with a SAVEPOINT";
      throw new Error(`${ENDED}, or tried to: ${word.toUpperCase()}${rest} is refused; ${remedy}`);
    }
    const name = `oncebox_${begins ? this.#depth++ : --this.#depth}`;
    const end = /^(COMMIT|END)$/i.test(word) ? "" : `ROLLBACK TO SAVEPOINT ${name}; `;
    const sent = begins ? `SAVEPOINT ${name}` : `${end}RELEASE SAVEPOINT ${name}`;
    return isText ? sent : { ...(given as object), text: sent };
  }
}

function shown<T extends object>(target: T, instead: Record<string, unknown>): T {
  return new Proxy(target, {
    get(target, name) {
      const value = (instead as Record<string | symbol, unknown>)[name] ?? Reflect.get(target, name, target);
      return typeof value === "function" && !(name in instead) ? value.bind(target) : value;
    },
  });
}
