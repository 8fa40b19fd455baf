/** The client as a handler gets it: it cannot end the transaction, and is revoked when the handler ends. */
import { setTimeout as sleep } from "node:timers/promises";
import type { Pool, PoolClient } from "pg";

/** How long a statement waits for a transaction beside it to end: less than the 5 s of Prisma. */
const BESIDE_MS = 4000;
const BESIDE = `another transaction of this handler is still open after ${BESIDE_MS} ms, and all share one connection: end it first, and within it use its own client`;
const ENDED = "the handler ended the transaction by itself";
const LATE = "the handler has ended: await all work with cx.client before it returns";
/**
 * A statement that begins or ends a transaction, after any comments. `ROLLBACK TO` a savepoint is
 * none.
 */
const BLANK = String.raw`(?:\s|--[^\n]*(?:\n|$)|/\*[\s\S]*?\*/)`;
const CONTROL = new RegExp(`^${BLANK}*(BEGIN|START${BLANK}+TRANSACTION|COMMIT|END|ROLLBACK|ABORT|PREPARE${BLANK}+TRANSACTION)\\b([\\s\\S]*)$`, "i");
const TO_SAVEPOINT = new RegExp(`^${BLANK}+(?:(?:WORK|TRANSACTION)${BLANK}+)?TO\\b`, "i");
/** Words that change nothing. */
const PLAIN = new RegExp(`^(?:${BLANK}|;|WORK\\b|TRANSACTION\\b)*$`, "i");

export class Handle {
  readonly client: PoolClient;
  /** A pool whose every connection is this client, for libraries that want a pool. */
  readonly pool: Pool;
  #hasEnded = false;
  /** Of the transactions that a library has begun within the handler's: each is a savepoint. */
  #depth = 0;
  /** Which of the pool's connections has begun them. Others wait, as they share the real one. */
  #owner: object | undefined;
  #freed = Promise.withResolvers<void>();

  constructor(client: PoolClient, pool: Pool) {
    const refuse = () => {
      throw new Error("the inbox ends a handler's transaction and releases its client: return to commit, throw to roll back");
    };
    const send = (owner: object, first: unknown, others: unknown[]) => {
      if (this.#hasEnded) {
        throw new Error(LATE);
      }
      return (client.query as (...given: unknown[]) => unknown).call(client, this.#within(first, owner), ...others);
    };
    const queryOf = (owner: object) => (first: unknown, ...others: unknown[]) => {
      if (!this.#waits(owner, first)) {
        return send(owner, first, others);
      }
      const sending = this.#inTurn(owner, first, () => send(owner, first, others));
      const callback = others.at(-1);
      if (typeof callback !== "function") {
        return sending;
      }
      sending.catch((error) => callback(error));
    };
    const query = queryOf(this);
    // For drivers with a form of their own.
    const check = (text: string) => {
      if (this.#hasEnded || this.#within(text, this) !== text) {
        throw new Error(this.#hasEnded ? LATE : `${ENDED}, or tried to: in postgres.js use SAVEPOINT`);
      }
    };
    this.client = shown(client, { query, check, release: refuse, end: refuse });
    const borrow = () => {
      const owner = {};
      const release = () => this.#free(owner);
      return { borrowed: shown(client, { query: queryOf(owner), release, end: refuse }), release };
    };
    const connect = (callback?: (error: undefined, client: PoolClient, release: () => void) => void) => {
      const { borrowed, release } = borrow();
      return callback === undefined ? Promise.resolve(borrowed) : callback(undefined, borrowed, release);
    };
    this.pool = shown(pool, { query: queryOf({}), connect, end: async () => {} });
  }

  /** Queries that were sent before are answered in the handler's transaction; any other is an error. */
  revoke(): void {
    this.#hasEnded = true;
    this.#freed.resolve();
  }

  /**
   * Statements of a handler's own client belong to the transaction that is open; only a BEGIN waits
   * there. A borrowed client that begins again nests its transactions.
   */
  #waits(owner: object, given: unknown): boolean {
    if (this.#owner === undefined || (this.#owner === owner && owner !== this)) {
      return false;
    }
    const word = this.#controls(given)?.[0];
    return /^(BEGIN|START)/i.test(word ?? "") || (this.#owner !== owner && (owner !== this || word !== undefined));
  }

  /** Sends it when the transaction beside it has ended. */
  async #inTurn(owner: object, given: unknown, send: () => unknown): Promise<unknown> {
    const late = sleep(BESIDE_MS, "late", { ref: false });
    while (!this.#hasEnded && this.#waits(owner, given)) {
      if ((await Promise.race([this.#freed.promise, late])) === "late") {
        throw new Error(BESIDE);
      }
    }
    // Sent at once, before the next one that waits looks.
    return send();
  }

  #free(owner: object): void {
    if (this.#owner === owner) {
      [this.#owner, this.#depth] = [undefined, 0];
      this.#freed.resolve();
      this.#freed = Promise.withResolvers();
    }
  }

  /** The word that begins or ends a transaction, and the rest of the statement. */
  #controls(given: unknown): [word: string, rest: string] | undefined {
    const text = typeof given === "string" ? given : (given as { text?: unknown } | null)?.text;
    const [, word = "", rest = ""] = (typeof text === "string" && CONTROL.exec(text)) || [];
    const isOurs = word === "" || (/^ROLLBACK$/i.test(word) && TO_SAVEPOINT.test(rest));
    return isOurs ? undefined : [word, rest];
  }

  /**
   * The statement that is sent instead: libraries begin and end transactions, which are savepoints
   * here.
   */
  #within(given: unknown, owner: object): unknown {
    const control = this.#controls(given);
    if (control === undefined) {
      return given;
    }
    const [word, rest] = control;
    const begins = /^(BEGIN|START)/i.test(word);
    if (/^PREPARE/i.test(word) || !PLAIN.test(rest) || (!begins && this.#depth === 0)) {
      const remedy = "return to commit, throw to roll back, and recover from an error with a SAVEPOINT";
      throw new Error(`${ENDED}, or tried to: ${word.toUpperCase()}${rest} is refused; ${remedy}`);
    }
    const name = `oncebox_${begins ? this.#depth++ : --this.#depth}`;
    if (begins) {
      this.#owner = owner;
    } else if (this.#depth === 0) {
      this.#free(owner);
    }
    const end = /^(COMMIT|END)$/i.test(word) ? "" : `ROLLBACK TO SAVEPOINT ${name}; `;
    const sent = begins ? `SAVEPOINT ${name}` : `${end}RELEASE SAVEPOINT ${name}`;
    return typeof given === "string" ? sent : { ...(given as object), text: sent };
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
