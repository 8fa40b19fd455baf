import { hash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { escapeIdentifier, type Client, type Pool, type PoolClient, type QueryConfig, type QueryResult } from "pg";

import { checkKey } from "./keys.ts";
import { Dead, Reject, RetryAfter, type Answer, type Handler, type Message } from "./message.ts";

/** How often a message is run again at once after a conflict with another transaction. */
const CONFLICT_ROUNDS = 5;
const MISMATCH = "the key was used before with another payload";

/** Optional settings of an inbox. */
export interface InboxOptions<T> {
  /** The header with the tenant; every message must have it then. */
  tenantHeader?: string;
  /** Headers that may hold the key, the first that is present is used. Default: Idempotency-Key, x-idempotency-key. */
  keyHeaders?: string[];
  /** Decodes a payload. If it throws, the message becomes a dead letter. Default: JSON.parse. */
  decode?: (payload: Uint8Array) => T;
  /** The number of failed attempts after which a message is given up. Default: 20. */
  attemptsMax?: number;
  /** The pause after the first failure, and the longest one. Default: 1 second and 5 minutes. */
  backoffMs?: [first: number, longest: number];
  /** How long a handler may take. Default: 1 minute. */
  handlerTimeoutMs?: number;
  /**
   * How long each step before and after the handler may take; then its connection is closed. It is the pool's
   * `connectionTimeoutMillis` too, where that is not set. Default: 30 seconds.
   */
  stepTimeoutMs?: number;
  /** How long a key is kept at least. Default: for ever. */
  retentionMs?: number;
  /** Whether the claim is prepared, once per connection. Default: true. Set false behind an old transaction pooler. */
  prepare?: boolean;
  /** The PostgreSQL schema with the tables. Default: `oncebox`. */
  schema?: string;
  /** The logger. Default: `console`. */
  log?: Pick<Console, "info" | "warn">;
}

/** Runs handlers once per key, over connections of this pool. */
export class Inbox<T = any> {
  readonly scope: string;
  readonly options: Required<Pick<InboxOptions<T>, "attemptsMax" | "backoffMs" | "handlerTimeoutMs" | "stepTimeoutMs" | "log">> & InboxOptions<T>;
  readonly #pool: Pool;
  readonly #schema: string;

  /** The scope names the consumer, `service:handler`; never rename it. */
  constructor(pool: Pool, scope: string, options: InboxOptions<T> = {}) {
    this.#pool = pool;
    this.scope = scope;
    this.#schema = escapeIdentifier(options.schema ?? "oncebox");
    const backoffMs: [number, number] = [1000, 300_000];
    this.options = { attemptsMax: 20, backoffMs, handlerTimeoutMs: 60_000, stepTimeoutMs: 30_000, log: console, ...options };
    // Only the pool can give up a connection that is still being made.
    pool.options.connectionTimeoutMillis ||= this.options.stepTimeoutMs;
    // Without a listener, an idle connection that breaks would end the process.
    pool.on("error", (error) => this.options.log.info(`scope ${scope}: an idle connection broke: ${line(error)}`));
  }

  /** Records the scope and its retention; fails when the scope is in use in the leased mode. */
  async register(): Promise<void> {
    const seconds = this.options.retentionMs === undefined ? null : this.options.retentionMs / 1000;
    await this.#ask(`SELECT ${this.#schema}.register_scope($1, make_interval(secs => $2))`, [this.scope, seconds]);
  }

  /**
   * Handles one message: runs the handler, or answers a copy from the stored outcome.
   *
   * Throws when PostgreSQL could not record the result: run the message again later.
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
      // The text of the error may quote the payload.
      return await this.#bury(tenant, key, message, `the payload does not decode: ${(problem as Error)?.name}`);
    }
    let failure: unknown;
    for (let round = 0; round < CONFLICT_ROUNDS; round++) {
      // Without a connection nothing was attempted, so nothing is counted.
      const client = await this.#pool.connect();
      try {
        const answer = await this.#attempt(client, handler, tenant, key, message, data);
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

  /** Claims the key, runs the handler and stores the outcome, in one transaction. */
  async #attempt(client: PoolClient, handler: Handler<T>, tenant: string, key: string, message: Message, data: T) {
    return await this.#within(client, async () => {
      const answer = await this.#step(client, () => this.#claim(client, tenant, key, message));
      if (answer.name === "new") {
        const reply = await this.#handle(handler, client, tenant, key, message, data);
        const status = reply instanceof Reject ? "rejected" : "completed";
        answer.reply = (reply instanceof Reject ? reply.reply : reply) ?? null;
        await this.#step(client, () => this.#commit(client, tenant, key, answer.reply, status));
      } else {
        await this.#step(client, () => client.query("ROLLBACK"));
      }
      return answer;
    });
  }

  /** Calls a function in a transaction of its own. */
  async #ask(text: string, values: unknown[]): Promise<any> {
    const client = await this.#pool.connect();
    const { rows } = await this.#within(client, () => this.#step(client, () => client.query(text, values)));
    return rows[0];
  }

  /** Does something with a connection, rolls back if it fails, and releases the connection. */
  async #within<R>(client: PoolClient, work: () => Promise<R>): Promise<R> {
    // A query on a broken connection fails by itself; without this listener the process would end.
    const broken = () => {};
    client.on("error", broken);
    // Whether its transaction may still be open: then it is closed, and not used again.
    let isLost = false;
    try {
      return await work();
    } catch (error) {
      const rollback = () => this.#step(client, () => client.query("ROLLBACK")).then(() => false, () => true);
      isLost = error instanceof TimedOut || (await rollback());
      throw error;
    } finally {
      client.off("error", broken);
      if (isLost) {
        close(client);
      }
      client.release(isLost);
    }
  }

  /** Waits for a step on this connection, which is closed when it takes longer than `stepTimeoutMs`. */
  async #step<R>(client: PoolClient, step: () => Promise<R>): Promise<R> {
    const limit = this.options.stepTimeoutMs;
    const timer = setTimeout(() => close(client, new TimedOut(`PostgreSQL did not answer for ${limit} ms`)), limit);
    return await step().finally(() => clearTimeout(timer));
  }

  /** Stores the reply, unless the claim has stored that there is none, together with COMMIT. */
  async #commit(client: PoolClient, tenant: string, key: string, reply: unknown, status: string): Promise<void> {
    const text = `SELECT ${this.#schema}.settle($1, $2, $3::json, $4, $5)`;
    const settle = this.#prepared("settle", text, [this.scope, key, JSON.stringify(reply), tenant, status]);
    const isStored = reply === null && status === "completed";
    // Older versions of pg do not know whether a transaction is open: then a statement finds out.
    const begun = client.getTransactionStatus?.() ?? "unknown";
    if (begun === "I") {
      throw new Error("the handler ended the transaction by itself");
    }
    const check = begun === "unknown" ? [{ text: "SAVEPOINT oncebox_commit" }] : [];
    const results = await together(client, [...(isStored ? check : [settle]), { text: "COMMIT" }]);
    if (results.at(-1)!.command !== "COMMIT") {
      throw new Error("the transaction was aborted by an error that the handler did not throw");
    }
  }

  /** Claims a key that is probably new; of another key it asks claim() what is known. */
  async #claim(client: PoolClient, tenant: string, key: string, message: Message): Promise<Answer> {
    const limits = "set_config('idle_in_transaction_session_timeout', $1, true), set_config('statement_timeout', $1, true)";
    const limit = `${this.options.handlerTimeoutMs + 5000}ms`;
    const [id, fingerprint] = [messageId(message), sha256([Buffer.from("oncebox payload 1\0"), message.payload])];
    const [, claimed] = await together(client, [
      // DEFERRABLE marks a transaction that an inbox will commit. The claim is sent before BEGIN is
      // answered: should BEGIN fail, a claim without this mark would be committed by itself.
      { text: "BEGIN ISOLATION LEVEL READ COMMITTED DEFERRABLE" },
      // This is the INSERT of claim(), which costs PostgreSQL more as a whole.
      this.#prepared(
        "claim",
        `INSERT INTO ${this.#schema}.inbox (scope, tenant, key, fingerprint, message_id, status)
         SELECT s.scope, $5, $3, $7, $6, 'completed' FROM ${this.#schema}.inbox_scope AS s
         WHERE s.scope = $2 AND s.mode = 'transaction' AND pg_try_advisory_xact_lock($4) AND (${limits}) IS NOT NULL
           AND current_setting('transaction_deferrable') <> current_setting('default_transaction_deferrable')
         ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING`,
        [limit, this.scope, key, this.#lock(tenant, key), tenant, id, fingerprint],
      ),
    ]);
    if (claimed!.rowCount === 1) {
      return { name: "new", after: 0 };
    }
    const { rows } = await client.query(
      `SELECT answer, outcome, reason, ${limits} FROM ${this.#schema}.claim($2, $3, $4, $5, $6)`,
      [limit, this.scope, key, message.payload, tenant, id],
    );
    const { answer, outcome, reason } = rows[0];
    return { name: answer, reply: outcome, reason: reason ?? undefined, after: answer === "in_flight" ? this.#pause(1) : 0 };
  }

  /** 64 bits that stand for a key in advisory locks, as the function inbox_lock() computes them. */
  #lock(tenant: string, key: string): string {
    const fields = ["oncebox inbox 1", this.options.schema ?? "oncebox", this.scope, tenant, key];
    const length = (field: string) => Buffer.from(Buffer.byteLength(field).toString(16).padStart(16, "0"), "hex");
    return sha256(fields.flatMap((field) => [length(field), Buffer.from(field)])).readBigInt64BE().toString();
  }

  /** Runs the handler. If it takes longer than `handlerTimeoutMs`, its connection is closed. */
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

  /** Counts a failed attempt, and gives the message up when it has reached `attemptsMax`. */
  async #failed(tenant: string, key: string, message: Message, failure: unknown): Promise<Answer> {
    if (failure instanceof Dead) {
      return await this.#bury(tenant, key, message, failure.message);
    }
    const reason = line(failure);
    // If PostgreSQL is away, this statement fails too, and the attempt does not count.
    const { attempts } = await this.#ask(
      `SELECT ${this.#schema}.attempt_failed($1, $2, $3, $4, $5, $6)::float8 AS attempts`,
      [this.scope, key, tenant, ...origin(message)],
    );
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
    const { name } = await this.#ask(
      `SELECT ${this.#schema}.bury($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS name`,
      [
        ...[this.scope, key, message.payload, reason, message.subject, JSON.stringify(Object.fromEntries(headers))],
        ...[tenant, messageId(message), ...origin(message), message.deliveries ?? 1],
      ],
    );
    if (name === "dead" || name === "mismatch") {
      this.options.log.warn(`scope ${this.scope}, key ${key}: dead letter: ${reason}`);
    }
    return { name, reason, after: name === "in_flight" ? this.#pause(1) : 0 };
  }

  #key(message: Message): string {
    const names = this.options.keyHeaders ?? ["Idempotency-Key", "x-idempotency-key"];
    const key = names.map((name) => message.headers[name.toLowerCase()]).find((value) => value !== undefined);
    if (key === undefined) {
      throw new RangeError(`no key: none of the headers ${names.join(", ")} is present`);
    }
    return checkKey(key);
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
    return (this.options.prepare ?? true) ? { name: `${name} ${this.#schema}`.slice(0, 63), text, values } : { text, values };
  }

  #pause(attempts: number): number {
    const [first, longest] = this.options.backoffMs;
    return Math.min(first * 2 ** (attempts - 1), longest) * (0.5 + Math.random() / 2);
  }
}

class TimedOut extends Error {
  override readonly name = "TimedOut";
}

/** Sends these queries at once, in one packet, if the pool has `pipeline: true`. */
async function together(client: PoolClient, queries: QueryConfig[]): Promise<QueryResult[]> {
  const { stream } = (client as unknown as Partial<Client>).connection ?? {};
  stream?.cork();
  // Only what is written at once: the answers come after it.
  queueMicrotask(() => stream?.uncork());
  return await Promise.all(queries.map((query) => client.query(query)));
}

/** Closes a connection at once; without an answer, its queries would keep the pool from doing so. */
function close(client: PoolClient, reason?: Error): void {
  (client as unknown as Partial<Client>).connection?.stream.destroy(reason);
}

function sha256(parts: Uint8Array[]): Buffer {
  return hash("sha256", Buffer.concat(parts), "buffer");
}

function json(payload: Uint8Array): any {
  return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(payload));
}

/** The message's id in the outbox, which a relay sends in a header. */
function messageId(message: Message): string | null {
  return /^[0-9]{1,18}$/.exec(message.headers["oncebox-id"] ?? "")?.[0] ?? null;
}

function origin({ origin }: Message): [string, number, string] | [null, null, null] {
  return origin ? [origin.stream, origin.sequence, origin.storedAt] : [null, null, null];
}

/** A text that PostgreSQL can store: well-formed, without NUL. */
function printable(text: string): string {
  return text.toWellFormed().replaceAll("\0", "\ufffd");
}

/** The first line of an error's name and message. */
export function line(error: unknown): string {
  const { name, message } = error instanceof Error ? error : { name: typeof error, message: String(error) };
  return `${name}: ${message || (error as { code?: string }).code}`.split("\n", 1)[0] ?? name;
}
