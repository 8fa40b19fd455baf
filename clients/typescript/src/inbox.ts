import { setTimeout as sleep } from "node:timers/promises";
import type { Pool, PoolClient } from "pg";

import { type Claim, keyOf, tenantOf, Unreadable } from "./claim.ts";
import { fields, found, hasState, isConflict, isOfPostgres, isUseless, line, stacks } from "./errors.ts";
import type { Dead, Handler, Message, RetryAfter, Verdict } from "./message.ts";
import { ended, fingerprint, headers, json, messageId, origin, printable, sha256 } from "./text.ts";
import { count, handling } from "./spans.ts";
import { ask, commit, handled, type Own, step, TimedOut, within } from "./transaction.ts";
import { prepared, query, quoted, SESSION, together } from "./wire.ts";

/** How often a message is run again at once after a conflict with another transaction. */
const CONFLICT_ROUNDS = 5;
/** A handler may ask for no longer pause, in milliseconds: a day. */
const RETRY_AFTER_MAX = 86_400_000;
const MISMATCH = "the key was used before with another payload";
const NO_TRACE = "delivery limit reached, and the last attempt left no trace: did it end the process?";
const COMMITTED = "the handler sent COMMIT by itself, which stays, and then failed";

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
  /** @internal */
  readonly pool: Pool;
  readonly #schema: string;
  /** Whether a message runs now although a run of it may have ended its process. */
  #isSuspected = false;

  /** The scope names the consumer, `service:handler`; never rename it. */
  constructor(pool: Pool, scope: string, options: InboxOptions<T> = {}) {
    this.pool = pool;
    this.scope = scope;
    this.#schema = quoted(options.schema ?? "oncebox");
    const backoffMs: [number, number] = [1000, 300_000];
    this.options = { attemptsMax: 20, backoffMs, handlerTimeoutMs: 60_000, stepTimeoutMs: 30_000, log: console, ...options };
    prepared(pool, this.options.stepTimeoutMs, (error) => this.options.log.info(`scope ${scope}: an idle connection broke: ${line(error)}`));
  }

  /** Records the scope and its retention; fails when the scope is in use in the leased mode. */
  async register(): Promise<void> {
    const seconds = this.options.retentionMs === undefined ? null : String(this.options.retentionMs / 1000);
    const text = `SELECT ${this.#schema}.register_scope($1, make_interval(secs => $2::float8))::text`;
    await this.ask(text, [this.scope, seconds]);
  }

  /**
   * Handles one message: runs the handler, or answers a copy from the stored outcome.
   *
   * Throws when PostgreSQL could not record the result: run the message again later.
   */
  async run(handler: Handler<T>, message: Message): Promise<Verdict> {
    const verdict = await this.#decide(handler, message).catch((error: unknown) => {
      count(this.scope, "unavailable");
      throw error;
    });
    count(this.scope, verdict.name);
    return verdict;
  }

  async #decide(handler: Handler<T>, message: Message): Promise<Verdict> {
    let claim: Claim, data: T;
    try {
      [claim, data] = this.read(message);
    } catch (problem) {
      return await this.#bury((problem as Unreadable).claim, (problem as Unreadable).message);
    }
    return (message.deliveries ?? 1) < 2 ? await this.#run(handler, claim, data) : await this.#runAgain(handler, claim, data);
  }

  /** Runs the handler for a message that was delivered before. If the process ends meanwhile, the record shows it. */
  async #runAgain(handler: Handler<T>, claim: Claim, data: T): Promise<Verdict> {
    let begun = await this.#begin(claim, false);
    const isAlone = begun === "alone";
    if (isAlone && this.#isSuspected) {
      // The message that runs now may be the one that ends the process.
      return { name: "in_flight", after: this.#pause() };
    }
    this.#isSuspected ||= isAlone;
    try {
      if (isAlone) {
        const which = `scope ${this.scope}, key ${claim.key}: runs alone`;
        this.options.log.warn(`${which}, since a run of it left no trace and may have ended its process`);
        begun = await this.#begin(claim, true);
      }
      if (begun === "dead") {
        return await this.#bury(claim, NO_TRACE);
      }
      const answer = await this.#run(handler, claim, data).catch(async (error) => {
        await this.#cancel(claim);
        throw error;
      });
      if (answer.name === "in_flight") {
        await this.#cancel(claim);
      }
      return answer;
    } finally {
      this.#isSuspected &&= !isAlone;
    }
  }

  #begin({ message, tenant, key }: Claim, isAlone: boolean): Promise<string | null> {
    const text = `SELECT ${this.#schema}.begin_attempt($1, $2, $3, $4, $5, $6::text::timestamptz, $7, $8, $9)`;
    const values = [this.scope, key, tenant, ...origin(message), printable(message.subject), this.options.attemptsMax, isAlone];
    return this.ask(text, values);
  }

  /** The run was no attempt. If this fails, the message runs alone once, which counts nothing. */
  async #cancel({ message, tenant, key }: Claim): Promise<void> {
    const text = `SELECT ${this.#schema}.cancel_attempt($1, $2, $3, $4, $5, $6::text::timestamptz)::text`;
    await this.ask(text, [this.scope, key, tenant, ...origin(message)]).catch(() => null);
  }

  async #run(handler: Handler<T>, claim: Claim, data: T): Promise<Verdict> {
    let failure: unknown;
    for (let round = 0; round < CONFLICT_ROUNDS; round++) {
      // Without a connection nothing was attempted, so nothing is counted.
      const client = await this.pool.connect();
      try {
        const answer = await this.#attempt(client, handler, claim, data);
        await this.#forgetAttempts(claim, answer);
        return answer.name === "mismatch" ? await this.#bury(claim, MISMATCH) : answer;
      } catch (error) {
        failure = error;
      }
      if (failure instanceof TimedOut) {
        await this.endHolder(claim);
      }
      if (await this.#hasCommitted(claim)) {
        return await this.#bury(claim, `${COMMITTED}: ${line(failure)}`, claim.xid);
      }
      if (!isConflict(failure)) {
        break;
      }
      await sleep(5 + 95 * Math.random());
    }
    if (!claim.hasRun && (isUseless(failure) || isConflict(failure) || hasState(failure, /^53/) || !isOfPostgres(failure))) {
      // The connection was dead, or the server is another one now: nothing was attempted.
      throw failure;
    }
    return await this.#failed(claim, failure);
  }

  /** The key and the decoded payload of a message; throws `Unreadable`. @internal */
  read(message: Message): [Claim, T] {
    const claim: Claim = { message, tenant: "", key: null };
    try {
      Object.assign(claim, { tenant: tenantOf(message, this.options.tenantHeader), key: keyOf(message, this.options.keyHeaders) });
    } catch (problem) {
      throw new Unreadable({ message, tenant: "", key: null }, (problem as Error).message);
    }
    try {
      return [claim, (this.options.decode ?? json)(message.payload)];
    } catch (problem) {
      // The text of the error may quote the payload.
      throw new Unreadable(claim, `the payload does not decode: ${(problem as Error)?.name} ${fields(problem)}`.trim());
    }
  }

  /** Gets a connection. @internal */
  connect(): Promise<PoolClient> {
    return this.pool.connect();
  }

  /** Checks that the pool has connections: that many at least, or else handlers wait for each other's. @internal */
  check(least: number, wanted: number): void {
    const max = this.pool.options.max ?? 10;
    const has = `scope ${this.scope}: the pool has ${max} connections at most`;
    if (max < least) {
      throw new RangeError(`${has}, and ${least} are needed: set its \`max\``);
    }
    if (max < wanted) {
      this.options.log.warn(`${has}, and ${wanted} are of use: handlers wait for connections; set its \`max\``);
    }
  }

  /** A call of a function of the schema. @internal */
  call(name: string): string {
    return `${this.#schema}.${name}`;
  }

  /**
   * Counts a failed attempt at a message whose payload cannot be had; in the end it is a dead letter
   * without a key, since only the payload tells copies of a key from others.
   */
  async incomplete(message: Message, problem: Error): Promise<Verdict> {
    let claim: Claim;
    try {
      claim = { message, tenant: tenantOf(message, this.options.tenantHeader), key: keyOf(message, this.options.keyHeaders) };
    } catch (problem) {
      return await this.#bury({ message, tenant: "", key: null }, (problem as Error).message);
    }
    return await this.#failed(claim, problem, null);
  }

  /** Claims the key, runs the handler and stores the outcome, in one transaction. */
  async #attempt(client: PoolClient, handler: Handler<T>, claim: Claim, data: T): Promise<Verdict> {
    [claim.xid, claim.sessionThen, claim.isUnsure, claim.hasRun] = [undefined, undefined, false, false];
    return await within(client, claim, this.options.stepTimeoutMs, async () => {
      const answer = await this.#step(client, () => this.#claim(client, claim));
      if (answer.name === "handled") {
        claim.hasRun = true;
        const reply = await handling(this.scope, claim.key!, claim.message, () => this.#handle(handler, client, claim, data));
        const end = ended(reply);
        [answer.reply, answer.name] = [end.reply, end.status === "rejected" ? "rejected" : "handled"];
        await this.#step(client, () => this.#commit(client, claim, end.text, end.status));
      } else {
        await this.#step(client, () => query(client, "ROLLBACK"));
      }
      return answer;
    });
  }

  /** Calls a function in a transaction of its own. @internal */
  async ask(text: string, values: unknown[]): Promise<string | null> {
    return await ask(await this.pool.connect(), this.options.stepTimeoutMs, text, values);
  }

  /** Waits for a step on this connection. */
  #step<R>(client: PoolClient, work: () => Promise<R>): Promise<R> {
    return step(client, this.options.stepTimeoutMs, work);
  }

  /** Stores the reply, unless the claim has stored that there is none, and commits. */
  async #commit(client: PoolClient, claim: Claim, reply: string, status: string): Promise<void> {
    const text = `SELECT ${this.#schema}.settle($1, $2, $3::text::json, $4, $5)::text`;
    const settle = this.#prepared("settle", text, [this.scope, claim.key, reply, claim.tenant, status]);
    const isStored = reply === "null" && status === "completed";
    await commit(client, claim, isStored ? [] : [settle], this.options.prepare ?? true);
  }

  /** Claims a key that is probably new; of another key it asks claim() what is known. */
  async #claim(client: PoolClient, claim: Claim): Promise<Verdict> {
    const { message, tenant, key } = claim;
    const limits = "set_config('idle_in_transaction_session_timeout', $1, true), set_config('statement_timeout', $1, true)";
    const limit = `${this.options.handlerTimeoutMs + 5000}ms`;
    const [id, print] = [messageId(message), fingerprint(message)];
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
         ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING
         RETURNING pg_current_xact_id()::text, ${SESSION}`,
        [limit, this.scope, key, this.#lock(tenant, key!), tenant, id, print],
      ),
    ]);
    const [row] = claimed!;
    if (row !== undefined) {
      [claim.xid, claim.session] = row as [string, string];
      return { name: "handled", after: 0 }; // once the handler has returned
    }
    const [[answer, outcome, reason, xid, session] = []] = await query(
      client,
      `SELECT answer, outcome::text, reason, pg_current_xact_id_if_assigned()::text, ${SESSION}, ${limits}
       FROM ${this.#schema}.claim($2, $3, $4, $5, $6)`,
      [limit, this.scope, key, message.payload, tenant, id],
    );
    if (answer === "new") {
      [claim.xid, claim.session] = [xid!, session!];
    }
    const reply = outcome == null ? null : JSON.parse(outcome);
    const name = (answer === "new" ? "handled" : answer) as Verdict["name"];
    return { name, reply, ...(reason == null ? {} : { reason }), after: answer === "in_flight" ? this.#pause() : 0 };
  }

  /** 64 bits that stand for a key in advisory locks, as the function inbox_lock() computes them. */
  #lock(tenant: string, key: string): string {
    const fields = ["oncebox inbox 1", this.options.schema ?? "oncebox", this.scope, tenant, key];
    const length = (field: string) => Buffer.from(Buffer.byteLength(field).toString(16).padStart(16, "0"), "hex");
    return sha256(fields.flatMap((field) => [length(field), Buffer.from(field)])).readBigInt64BE().toString();
  }

  /** Runs the handler. If it takes longer than `handlerTimeoutMs`, its connection is closed. */
  #handle(handler: Handler<T>, client: PoolClient, { key, tenant, message }: Claim, data: T) {
    const run = (own: Own) => handler({ ...own, key: key!, tenant, message }, data);
    return handled(client, this.pool, this.options.handlerTimeoutMs, run);
  }

  /** Whether the handler has committed the claim by itself, so that a copy would be answered as handled. */
  async #hasCommitted({ xid, isUnsure }: Claim): Promise<boolean> {
    const isAsked = xid !== undefined && isUnsure !== true; // else the COMMIT may have been ours
    return isAsked && (await this.ask("SELECT pg_xact_status($1::xid8)", [xid])) === "committed";
  }

  /** Ends the session that holds the key, since a statement goes on there although its connection is closed. @internal */
  async endHolder({ tenant, key }: Claim): Promise<void> {
    const text = `SELECT pg_terminate_backend(held.pid, 1000)::text
      FROM pg_locks AS held JOIN pg_stat_activity AS holder ON holder.pid = held.pid
      WHERE held.locktype = 'advisory' AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND held.objsubid = 1 AND (held.classid::bigint << 32) | held.objid::bigint = $1::bigint AND held.granted
        AND holder.xact_start <= clock_timestamp() - $2::bigint * interval '1 millisecond'`;
    await this.ask(text, [this.#lock(tenant, key!), String(this.options.handlerTimeoutMs)]);
  }

  /** Counts a failed attempt, and gives the message up when it has reached `attemptsMax`. */
  async #failed(claim: Claim, failure: unknown, deadKey = claim.key): Promise<Verdict> {
    const [dead, retry, reason] = [found<Dead>(failure, "Dead"), found<RetryAfter>(failure, "RetryAfter"), line(failure)];
    if (dead !== undefined) {
      return await this.#bury(claim, line(dead).replace(/^Dead: /, ""));
    }
    const jitter = 0.5 + Math.random() / 2;
    let [first, longest] = this.options.backoffMs.map((ms) => ms * jitter) as [number, number];
    if (retry !== undefined) {
      first = longest = Math.min(retry.ms, RETRY_AFTER_MAX);
    }
    // If PostgreSQL is away, this statement fails too, and the attempt does not count.
    const text = `SELECT ${this.#schema}.attempt_failed($1, $2, $3, $4, $5, $6::text::timestamptz, $7, $8, $9, $10)::text`;
    const attempts = Number(
      await this.ask(text, [
        ...[this.scope, claim.key, claim.tenant, ...origin(claim.message), printable(reason), printable(claim.message.subject)],
        ...[String(first / 1000), String(longest / 1000)],
      ]),
    );
    if (attempts >= this.options.attemptsMax) {
      return await this.#buryClosed({ ...claim, key: deadKey }, `delivery limit of ${this.options.attemptsMax} reached: ${reason}`);
    }
    const after = Math.min(first * 2 ** Math.min(attempts - 1, 30), longest);
    this.options.log.warn(`scope ${this.scope}, key ${claim.key}: attempt ${attempts} failed, again in ${Math.round(after)} ms: ${(!retry && stacks(failure)) || reason}`);
    return { name: "retry", reason, after };
  }

  /** Forgets the attempts at a message that has ended. If this fails, its key says that it has. */
  async #forgetAttempts({ message, tenant, key }: Claim, { name }: Verdict): Promise<void> {
    if ((message.deliveries ?? 1) > 1 && ["handled", "replayed", "rejected"].includes(name)) {
      await this.ask(`SELECT ${this.#schema}.forget_attempts($1, $2, $3)::text`, [this.scope, key, tenant]).catch(() => null);
    }
  }

  /** Gives a message up whose connection may have been closed: PostgreSQL notices that a moment later. */
  async #buryClosed(claim: Claim, reason: string): Promise<Verdict> {
    let answer = await this.#bury(claim, reason);
    for (let round = 0; round < CONFLICT_ROUNDS && answer.name === "in_flight"; round++) {
      await sleep(50 * 2 ** round);
      answer = await this.#bury(claim, reason);
    }
    return answer;
  }

  /** Gives a message up and records it as a dead letter, unless a copy was handled meanwhile. */
  async #bury({ message, tenant, key }: Claim, text: string, committedBy: string | null = null): Promise<Verdict> {
    const reason = printable(text);
    const name = await this.ask(`SELECT ${this.#schema}.bury($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10, $11::text::timestamptz, $12, $13)`, [
      ...[this.scope, key, message.payload, reason, printable(message.subject), headers(message), tenant],
      ...[messageId(message), ...origin(message), String(message.deliveries ?? 1), committedBy],
    ]);
    if (name === "dead" || name === "mismatch") {
      this.options.log.warn(`scope ${this.scope}, key ${key}: dead letter: ${reason}`);
    }
    return { name: name as Verdict["name"], reason, after: name === "in_flight" ? this.#pause() : 0 };
  }

  #prepared(name: string, text: string, values: unknown[]) {
    return (this.options.prepare ?? true) ? { name: `${name} ${this.#schema}`.slice(0, 63), text, values } : { text, values };
  }

  #pause(): number {
    return Math.min(...this.options.backoffMs) * (0.5 + Math.random() / 2);
  }
}
