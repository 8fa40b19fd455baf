import { setTimeout as sleep } from "node:timers/promises";
import { escapeIdentifier, type Pool, type PoolClient } from "pg";

import { checkKey } from "./keys.ts";
import { Dead, Reject, RetryAfter, type Answer, type Handler, type Message } from "./message.ts";

/** How often a message that lost a race against another transaction is run again at once. */
const CONFLICT_ROUNDS = 5;
const MISMATCH = "the key was used before with another payload";

/** What may be left out. */
export interface InboxOptions<T> {
  /** The header that says whose key it is; a message must have it then. */
  tenantHeader?: string;
  /** Looked for in turn: Idempotency-Key, x-idempotency-key. */
  keyHeaders?: string[];
  /** JSON.parse. What it throws makes the message a dead letter. */
  decode?: (payload: Uint8Array) => T;
  /** After how many failures a message is given up: 20. */
  attemptsMax?: number;
  /** The pause after the first failure, and the longest one: 1 second and 5 minutes. */
  backoffMs?: [first: number, longest: number];
  /** 1 minute. */
  handlerTimeoutMs?: number;
  /** How long a key is kept at least; for ever when it is left out. */
  retentionMs?: number;
  /** Whether the claim is prepared, once per connection: true. False behind an old transaction pooler. */
  prepare?: boolean;
  /** Where the tables are: `oncebox`. */
  schema?: string;
  /** Where to say what is worth knowing: `console`. */
  log?: Pick<Console, "info" | "warn">;
}

/** Runs handlers once per key, over connections of this pool. */
export class Inbox<T = any> {
  readonly scope: string;
  readonly options: Required<Pick<InboxOptions<T>, "attemptsMax" | "backoffMs" | "handlerTimeoutMs" | "log">> & InboxOptions<T>;
  readonly #pool: Pool;
  readonly #schema: string;

  /** The scope says who consumes, `service:handler`; never rename it. */
  constructor(pool: Pool, scope: string, options: InboxOptions<T> = {}) {
    this.#pool = pool;
    this.scope = scope;
    this.#schema = escapeIdentifier(options.schema ?? "oncebox");
    const defaults = { attemptsMax: 20, backoffMs: [1000, 300_000] as [number, number], handlerTimeoutMs: 60_000, log: console };
    this.options = { ...defaults, ...options };
    // Without a listener, an idle connection that breaks would end the process.
    pool.on("error", (error) => this.options.log.info(`scope ${scope}: an idle connection broke: ${line(error)}`));
  }

  /** Says that this consumer exists; fails when its scope is in use in the leased mode. */
  async register(): Promise<void> {
    const seconds = this.options.retentionMs === undefined ? null : this.options.retentionMs / 1000;
    await this.#pool.query(`SELECT ${this.#schema}.register_scope($1, make_interval(secs => $2))`, [this.scope, seconds]);
  }

  /**
   * Deals with one message: runs the handler, or answers from what is stored.
   *
   * Throws when PostgreSQL cannot record what became of the message: run it again later.
   */
  async run(handler: Handler<T>, message: Message): Promise<Answer> {
    let tenant: string, key: string, data: T;
    try {
      [tenant, key] = [this.#tenant(message), this.#key(message)];
    } catch (problem) {
      return await this.#bury("", null, message, (problem as Error).message);
    }
    try {
      data = (this.options.decode ?? json)(message.payload);
    } catch (problem) {
      // Its text may quote the payload.
      return await this.#bury(tenant, key, message, `the payload does not decode: ${(problem as Error)?.name}`);
    }
    let failure: unknown;
    for (let round = 0; round < CONFLICT_ROUNDS; round++) {
      try {
        const answer = await this.#attempt(handler, tenant, key, message, data);
        return answer.name === "mismatch" ? await this.#bury(tenant, key, message, MISMATCH) : answer;
      } catch (error) {
        failure = error;
        const code = (error as { code?: unknown } | null)?.code;
        if (code !== "40001" && code !== "40P01") {
          break;
        }
        await sleep(5 + 95 * Math.random());
      }
    }
    return await this.#failed(tenant, key, message, failure);
  }

  /** One transaction of the claim, the handler's writes and the outcome. */
  async #attempt(handler: Handler<T>, tenant: string, key: string, message: Message, data: T): Promise<Answer> {
    const client = await this.#pool.connect();
    // The query that it breaks fails as well; without a listener the process would end.
    const broken = () => {};
    client.on("error", broken);
    let isOver = false;
    try {
      const answer = await this.#claim(client, tenant, key, message);
      if (answer.name === "new") {
        const reply = await this.#handle(handler, client, tenant, key, message, data);
        const status = reply instanceof Reject ? "rejected" : "completed";
        answer.reply = (reply instanceof Reject ? reply.reply : reply) ?? null;
        await this.#commit(client, tenant, key, answer.reply, status);
      } else {
        await client.query("ROLLBACK");
      }
      isOver = true;
      return answer;
    } catch (error) {
      if (!(error instanceof TimedOut)) {
        await client.query("ROLLBACK").then(() => (isOver = true), broken);
      }
      throw error;
    } finally {
      client.off("error", broken);
      // A connection whose transaction is not known to be over is closed, not used again.
      client.release(!isOver);
    }
  }

  /** Stores the reply, unless the claim has stored that there is none, together with COMMIT. */
  async #commit(client: PoolClient, tenant: string, key: string, reply: unknown, status: string): Promise<void> {
    const stored = [this.scope, key, JSON.stringify(reply), tenant, status];
    const settle = this.#prepared("settle", `SELECT ${this.#schema}.settle($1, $2, $3::json, $4, $5)`, stored);
    const isStored = reply === null && status === "completed";
    // Older versions of pg do not know whether a transaction is open: then a statement finds out.
    const begun = client.getTransactionStatus?.() ?? "unknown";
    if (begun === "I") {
      throw new Error("the handler ended the transaction by itself");
    }
    const first = isStored ? { text: "SAVEPOINT oncebox_commit" } : settle;
    const statements = isStored && begun !== "unknown" ? [] : [client.query(first)];
    const [committed] = await Promise.all([client.query("COMMIT"), ...statements]);
    if (committed.command !== "COMMIT") {
      throw new Error("the transaction was aborted by an error that the handler did not throw");
    }
  }

  async #claim(client: PoolClient, tenant: string, key: string, message: Message): Promise<Answer> {
    const limit = `${this.options.handlerTimeoutMs + 5000}ms`;
    // Sent together where the pool has pipeline: true. DEFERRABLE is the mark of a transaction that
    // claims: claim() refuses to be committed by itself.
    const [, claimed] = await Promise.all([
      client.query("BEGIN ISOLATION LEVEL READ COMMITTED DEFERRABLE"),
      client.query(this.#prepared(
        "claim",
        `SELECT answer, outcome, reason, set_config('idle_in_transaction_session_timeout', $1, true),
           set_config('statement_timeout', $1, true)
         FROM ${this.#schema}.claim($2, $3, $4, $5, $6)`,
        [limit, this.scope, key, message.payload, tenant, messageId(message)],
      )),
    ]);
    const { answer, outcome, reason } = claimed.rows[0];
    return { name: answer, reply: outcome, reason: reason ?? undefined, after: answer === "in_flight" ? this.#pause(1) : 0 };
  }

  /** Runs the handler for as long as it may take. Its connection is closed when it takes longer. */
  async #handle(handler: Handler<T>, client: PoolClient, tenant: string, key: string, message: Message, data: T) {
    const limit = this.options.handlerTimeoutMs;
    const timeout = new AbortController();
    const timer = setTimeout(() => timeout.abort(new TimedOut(`the handler takes longer than ${limit} ms`)), limit);
    try {
      const late = new Promise((_, reject) => timeout.signal.addEventListener("abort", () => reject(timeout.signal.reason)));
      return await Promise.race([handler({ client, key, tenant, message, signal: timeout.signal }, data), late]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Counts a failed attempt, and gives up a message that has had enough of them. */
  async #failed(tenant: string, key: string, message: Message, failure: unknown): Promise<Answer> {
    if (failure instanceof Dead) {
      return await this.#bury(tenant, key, message, failure.message);
    }
    const reason = line(failure);
    // PostgreSQL may be away: then this fails as well, and the attempt does not count.
    const { rows } = await this.#pool.query(
      `SELECT ${this.#schema}.attempt_failed($1, $2, $3, $4, $5, $6)::float8 AS attempts`,
      [this.scope, key, tenant, ...origin(message)],
    );
    const { attempts } = rows[0];
    if (attempts >= this.options.attemptsMax) {
      return await this.#bury(tenant, key, message, `delivery limit of ${this.options.attemptsMax} reached: ${reason}`);
    }
    const wanted = failure instanceof RetryAfter ? failure.ms : this.#pause(attempts);
    const after = Math.min(wanted, this.options.backoffMs[1]);
    this.options.log.warn(`scope ${this.scope}, key ${key}: attempt ${attempts} failed, again in ${Math.round(after)} ms: ${reason}`);
    return { name: "retry", reason, after };
  }

  /** Gives a message up and records it as a dead letter, unless a copy was handled meanwhile. */
  async #bury(tenant: string, key: string | null, message: Message, text: string): Promise<Answer> {
    const reason = printable(text);
    const headers = Object.entries(message.headers).map(([name, value]) => [printable(name), printable(value)]);
    const { rows } = await this.#pool.query(
      `SELECT ${this.#schema}.bury($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS name`,
      [
        ...[this.scope, key, message.payload, reason, message.subject, JSON.stringify(Object.fromEntries(headers))],
        ...[tenant, messageId(message), ...origin(message), message.deliveries ?? 1],
      ],
    );
    const { name } = rows[0];
    if (name === "dead" || name === "mismatch") {
      this.options.log.warn(`scope ${this.scope}, key ${key}: dead letter: ${reason}`);
    }
    return { name, reason, after: name === "in_flight" ? this.#pause(1) : 0 };
  }

  #key(message: Message): string {
    const names = this.options.keyHeaders ?? ["Idempotency-Key", "x-idempotency-key"];
    for (const name of names) {
      const value = message.headers[name.toLowerCase()];
      if (value !== undefined) {
        return checkKey(value);
      }
    }
    throw new RangeError(`no key: none of the headers ${names.join(", ")} is present`);
  }

  #tenant(message: Message): string {
    const { tenantHeader } = this.options;
    if (tenantHeader === undefined) {
      return "";
    }
    const tenant = message.headers[tenantHeader.toLowerCase()] ?? "";
    if (tenant === "" || Buffer.byteLength(tenant) > 255 || /[\u0000-\u001f\u007f-\u009f]/.test(tenant)) {
      throw new RangeError(`tenant header ${tenantHeader} is not 1 to 255 bytes without control characters`);
    }
    return tenant;
  }

  #prepared(name: string, text: string, values: unknown[]) {
    const { prepare = true } = this.options;
    return prepare ? { name: `${name} ${this.#schema}`.slice(0, 63), text, values } : { text, values };
  }

  #pause(attempts: number): number {
    const [first, longest] = this.options.backoffMs;
    return Math.min(first * 2 ** (attempts - 1), longest) * (0.5 + Math.random() / 2);
  }
}

class TimedOut extends Error {
  override readonly name = "TimedOut";
}

function json(payload: Uint8Array): any {
  return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(payload));
}

/** The id that a relay has sent along. */
function messageId(message: Message): string | null {
  const text = message.headers["oncebox-id"] ?? "";
  return /^[0-9]{1,18}$/.test(text) ? text : null;
}

function origin({ origin }: Message): [string, number, string] | [null, null, null] {
  return origin ? [origin.stream, origin.sequence, origin.storedAt] : [null, null, null];
}

/** A text that PostgreSQL stores: without NUL. */
function printable(text: string): string {
  return text.toWellFormed().replaceAll("\0", "\ufffd");
}

/** The first line of what is known of an error. */
export function line(error: unknown): string {
  const { name, message } = error instanceof Error ? error : { name: typeof error, message: String(error) };
  return `${name}: ${message || (error as { code?: string }).code}`.split("\n", 1)[0] ?? name;
}
