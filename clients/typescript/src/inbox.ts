import { setTimeout as sleep } from "node:timers/promises";
import type { Pool, PoolClient } from "pg";

import { type Claim, claimed, Unreadable } from "./claim.ts";
import { commit, Database, type DatabaseOptions, LIMITS, type Own, TimedOut } from "./database.ts";
import { fields, isAway, isConflict, line } from "./errors.ts";
import { Lease } from "./lease.ts";
import { Leased, type LeasedHandler } from "./leased.ts";
import { Life, ROUNDS } from "./life.ts";
import type { Handler, Message, Verdict } from "./message.ts";
import { ended, fingerprint, json, messageId, sha256 } from "./text.ts";
import { count, handling } from "./spans.ts";
import { query, SESSION, together } from "./wire.ts";

const MISMATCH = "the key was used before with another payload";
const NO_TRACE = "delivery limit reached, and the last attempt left no trace: did it end the process?";
const COMMITTED = "the handler sent COMMIT by itself, which stays, and then failed";

/** Optional settings of an inbox. */
export interface InboxOptions<T> extends DatabaseOptions {
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
  /** For how long a message may be snoozed again and again before it is given up. Default: 24 hours. */
  snoozeMaxMs?: number;
  /** How long a key is kept at least. Default: for ever. */
  retentionMs?: number;
  /** Whether the claim is prepared, once per connection. Default: true. Set false behind an old transaction pooler. */
  prepare?: boolean;
  /** The logger. Default: `console`. */
  log?: Pick<Console, "info" | "warn">;
}

/** Runs handlers once per key, over connections of this pool. */
export class Inbox<T = any> {
  readonly scope: string;
  readonly options: Required<Pick<InboxOptions<T>, "attemptsMax" | "backoffMs" | "snoozeMaxMs" | "log">> & InboxOptions<T>;
  /** @internal */
  readonly database: Database;
  readonly #life: Life;
  /** Whether a message runs now although a run of it may have ended its process. */
  #isSuspected = false;

  /** The scope names the consumer, `service:handler`; never rename it. */
  constructor(pool: Pool, scope: string, options: InboxOptions<T> = {}) {
    this.scope = scope;
    this.options = { attemptsMax: 20, backoffMs: [1000, 300_000], snoozeMaxMs: 86_400_000, log: console, ...options };
    this.database = new Database(pool, scope, options, (text) => this.options.log.warn(text));
    this.#life = new Life(this.database, scope, this.options);
  }

  /** Records the scope, its retention, and how it claims keys; fails when the scope is in use in the other mode. */
  async register(mode: "transaction" | "lease" = "transaction"): Promise<void> {
    await this.database.register(this.scope, this.options.retentionMs, { mode });
  }

  /**
   * Handles one message: runs the handler, or answers a copy from the stored outcome.
   *
   * Throws when PostgreSQL could not record the result: run the message again later.
   */
  async run(handler: Handler<T> | LeasedHandler<T>, message: Message): Promise<Verdict> {
    const deciding = typeof handler === "function" ? this.#decide(handler, message) : this.#underLease(handler, message, false);
    const verdict = await this.#readable(deciding).catch((error: unknown) => {
      count(this.scope, "unavailable");
      throw error;
    });
    count(this.scope, verdict.name);
    return verdict;
  }

  async #decide(handler: Handler<T>, message: Message): Promise<Verdict> {
    const [claim, data] = this.read(message);
    return (message.deliveries ?? 1) < 2 ? await this.#run(handler, claim, data) : await this.#runAgain(handler, claim, data);
  }

  /** A message that cannot be read is given up. */
  async #readable(deciding: Promise<Verdict>): Promise<Verdict> {
    return await deciding.catch((error: unknown) => {
      if (error instanceof Unreadable) {
        return this.#life.bury(error.claim, error.message);
      }
      throw error;
    });
  }

  /** Claims the key under a lease, which is committed, and runs the handler. */
  async #underLease(handler: LeasedHandler<T>, message: Message, isAlone: boolean): Promise<Verdict> {
    const claim = claimed(message, this.options);
    const held = await Lease.claimed(this.database, this.scope, claim, handler.leaseMs ?? 20_000, isAlone);
    if (!(held instanceof Lease)) {
      const [answer, outcome, reason] = held;
      return answer === "alone" && !isAlone ? await this.#alone(claim, () => this.#underLease(handler, message, true))
        : answer !== "mismatch" ? this.#answered(answer!, outcome, reason)
        : await this.#life.bury(claim, MISMATCH);
    }
    claim.held = held;
    if (held.attempts > this.options.attemptsMax) {
      return await this.#life.bury(claim, NO_TRACE);
    }
    return await new Leased(held, claim, handler, this.database, this.#life).run(this.scope, this.#decoded(claim));
  }

  /** Runs the handler for a message that was delivered before, once its pause is over. */
  async #runAgain(handler: Handler<T>, claim: Claim, data: T): Promise<Verdict> {
    const begun = await this.#life.begin(claim, false);
    if (begun === "alone") {
      return await this.#alone(claim, async () => await this.#runBegun(handler, claim, data, await this.#life.begin(claim, true)));
    }
    return await this.#runBegun(handler, claim, data, begun);
  }

  async #runBegun(handler: Handler<T>, claim: Claim, data: T, begun: string | null): Promise<Verdict> {
    if (begun === "dead") {
      return await this.#life.bury(claim, NO_TRACE);
    }
    if (begun === "wait") {
      return (await this.#life.early(claim)) ?? { name: "in_flight", after: 0 };
    }
    const answer = await this.#run(handler, claim, data).catch(async (error) => {
      await this.#life.cancel(claim);
      throw error;
    });
    if (answer.name === "in_flight") {
      await this.#life.cancel(claim);
    }
    return answer;
  }

  /** Runs a message that may have ended its process, unless another one runs that may have. */
  async #alone(claim: Claim, run: () => Promise<Verdict>): Promise<Verdict> {
    if (this.#isSuspected) {
      return this.#life.later();
    }
    this.#isSuspected = true;
    const which = `scope ${this.scope}, key ${claim.key}: runs alone`;
    this.options.log.warn(`${which}, since a run of it left no trace and may have ended its process`);
    return await run().finally(() => (this.#isSuspected = false));
  }

  async #run(handler: Handler<T>, claim: Claim, data: T): Promise<Verdict> {
    let failure: unknown;
    for (let round = 0; round < ROUNDS; round++) {
      // Without a connection nothing was attempted, so nothing is counted.
      const client = await this.database.connect();
      try {
        const answer = await this.#attempt(client, handler, claim, data);
        if ((claim.message.deliveries ?? 1) > 1 && ["handled", "replayed", "rejected"].includes(answer.name)) {
          await this.#life.forget(claim);
        }
        return answer.name === "mismatch" ? await this.#life.bury(claim, MISMATCH) : answer;
      } catch (error) {
        failure = error;
      }
      if (failure instanceof TimedOut) {
        await this.endHolder(claim);
      }
      if (await this.#hasCommitted(claim)) {
        return await this.#life.bury(claim, `${COMMITTED}: ${line(failure)}`, claim.xid);
      }
      if (!isConflict(failure)) {
        break;
      }
      await sleep(5 + 95 * Math.random());
    }
    if (!claim.hasRun && (isAway(failure) || isConflict(failure))) {
      // The connection was dead, or the server is another one now: nothing was attempted.
      throw failure;
    }
    return await this.#life.failed(claim, failure);
  }

  /** The key and the decoded payload of a message; throws `Unreadable`. @internal */
  read(message: Message): [Claim, T] {
    const claim = claimed(message, this.options);
    return [claim, this.#decoded(claim)];
  }

  #decoded(claim: Claim): T {
    try {
      return (this.options.decode ?? json)(claim.message.payload);
    } catch (problem) {
      // The text of the error may quote the payload.
      throw new Unreadable(claim, `the payload does not decode: ${(problem as Error)?.name} ${fields(problem)}`.trim());
    }
  }

  /** Checks that the pool has connections: that many at least, or else handlers wait for each other's. @internal */
  check(least: number, wanted: number): void {
    const has = `scope ${this.scope}: the pool has ${this.database.size} connections at most`;
    if (this.database.size < least) {
      throw new RangeError(`${has}, and ${least} are needed: set its \`max\``);
    }
    if (this.database.size < wanted) {
      this.options.log.warn(`${has}, and ${wanted} are of use: handlers wait for connections; set its \`max\``);
    }
  }

  /**
   * Counts a failed attempt at a message whose payload cannot be had; in the end it is a dead letter
   * without a key, since only the payload tells copies of a key from others.
   */
  async incomplete(message: Message, problem: Error): Promise<Verdict> {
    const decide = async () => {
      const claim = claimed(message, this.options);
      return (await this.#life.early(claim)) ?? (await this.#life.failed(claim, problem, null));
    };
    return await this.#readable(decide());
  }

  /** Claims the key, runs the handler and stores the outcome, in one transaction. */
  async #attempt(client: PoolClient, handler: Handler<T>, claim: Claim, data: T): Promise<Verdict> {
    const { database } = this;
    [claim.xid, claim.sessionThen, claim.isUnsure, claim.hasRun] = [undefined, undefined, false, false];
    return await database.life(client, claim, () => this.#claim(client, claim), async () => {
      claim.hasRun = true;
      const run = (own: Own) => handler({ ...own, key: claim.key!, tenant: claim.tenant, message: claim.message, scope: this.scope }, data);
      const { verdict, text, status } = ended(await handling(this.scope, claim.key!, claim.message, () => database.handle(client, run)));
      await database.step(client, () => this.#commit(client, claim, text, status));
      return verdict;
    });
  }

  /** Stores the reply, unless the claim has stored that there is none, and commits. */
  async #commit(client: PoolClient, claim: Claim, outcome: string, status: string): Promise<void> {
    const { text, values } = this.database.call("settle", { scope: this.scope, key: claim.key, outcome, tenant: claim.tenant, status });
    const settle = this.#prepared("settle", `SELECT ${text}::text`, values!);
    const isStored = outcome === "null" && status === "completed";
    await commit(client, claim, isStored ? [] : [settle], this.options.prepare ?? true);
  }

  /**
   * Claims a key that is probably new; of another key it asks claim() for the state, which answers
   * a copy.
   */
  async #claim(client: PoolClient, claim: Claim): Promise<Verdict | undefined> {
    const { message, tenant, key } = claim;
    const { limit } = this.database;
    const [id, print] = [messageId(message), fingerprint(message)];
    const [, inserted] = await together(client, [
      // DEFERRABLE marks a transaction that an inbox will commit. The claim is sent before BEGIN is
      // answered: should BEGIN fail, a claim without this mark would be committed by itself.
      { text: "BEGIN ISOLATION LEVEL READ COMMITTED DEFERRABLE" },
      // This is the INSERT of claim(), which costs PostgreSQL more as a whole.
      this.#prepared(
        "claim",
        `INSERT INTO ${this.database.of("inbox")} (scope, tenant, key, fingerprint, message_id, status)
         SELECT s.scope, $5, $3, $7, $6, 'completed' FROM ${this.database.of("inbox_scope")} AS s
         WHERE s.scope = $2 AND s.mode = 'transaction' AND pg_try_advisory_xact_lock($4) AND (${LIMITS}) IS NOT NULL
           AND current_setting('transaction_deferrable') <> current_setting('default_transaction_deferrable')
         ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING
         RETURNING pg_current_xact_id()::text, ${SESSION}`,
        [limit, this.scope, key, this.#lock(tenant, key!), tenant, id, print],
      ),
    ]);
    const [row] = inserted!;
    if (row !== undefined) {
      [claim.xid, claim.session] = row as [string, string];
      return undefined;
    }
    const [[answer, outcome, reason, xid, session] = []] = await query(
      client,
      `SELECT answer, outcome::text, reason, pg_current_xact_id_if_assigned()::text, ${SESSION}, ${LIMITS}
       FROM ${this.database.of("claim")}($2, $3, $4, $5, $6)`,
      [limit, this.scope, key, message.payload, tenant, id],
    );
    if (answer === "new") {
      [claim.xid, claim.session] = [xid!, session!];
      return undefined;
    }
    return this.#answered(answer!, outcome, reason);
  }

  /** The answer to a copy. */
  #answered(answer: string, outcome: string | null | undefined, reason: string | null | undefined): Verdict {
    if (answer === "in_flight") {
      return this.#life.later();
    }
    return { name: answer as Verdict["name"], reply: outcome == null ? null : JSON.parse(outcome), ...(reason == null ? {} : { reason }), after: 0 };
  }

  /** 64 bits that stand for a key in advisory locks, as the function inbox_lock() computes them. */
  #lock(tenant: string, key: string): string {
    const fields = ["oncebox inbox 1", this.options.schema ?? "oncebox", this.scope, tenant, key];
    const length = (field: string) => Buffer.from(Buffer.byteLength(field).toString(16).padStart(16, "0"), "hex");
    return sha256(fields.flatMap((field) => [length(field), Buffer.from(field)])).readBigInt64BE().toString();
  }

  /** Whether the handler has committed the claim by itself, so that a copy would be answered as handled. */
  async #hasCommitted({ tenant, key, xid, isUnsure }: Claim): Promise<boolean> {
    if (xid === undefined || isUnsure === true) {
      return false; // in the second case the COMMIT may have been ours
    }
    // Its row says so. The id alone does not: a server that crashes forgets ids that it has not written to
    // disk, and gives them to other transactions.
    const text = `SELECT FROM ${this.database.of("inbox")} WHERE scope = $1 AND tenant = $2 AND key = $3 AND xmin = $4::xid8::xid`;
    return (await this.database.rows(text, [this.scope, tenant, key, xid])).length > 0;
  }

  /** Ends the session that holds the key, since a statement goes on there although its connection is closed. @internal */
  async endHolder({ tenant, key }: Claim): Promise<void> {
    const text = `SELECT pg_terminate_backend(held.pid, 1000)::text
      FROM pg_locks AS held JOIN pg_stat_activity AS holder ON holder.pid = held.pid
      WHERE held.locktype = 'advisory' AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND held.objsubid = 1 AND (held.classid::bigint << 32) | held.objid::bigint = $1::bigint AND held.granted
        AND holder.xact_start <= clock_timestamp() - $2::bigint * interval '1 millisecond'`;
    await this.database.rows(text, [this.#lock(tenant, key!), String(this.database.handlerTimeoutMs)]);
  }

  #prepared(name: string, text: string, values: unknown[]) {
    return (this.options.prepare ?? true) ? { name: `${name} ${this.database.of("")}`.slice(0, 63), text, values } : { text, values };
  }
}
