/**
 * A message whose handler has effects outside the database: its key is claimed first, under a
 * lease.
 *
 * The handler has no transaction. When it has returned, the claim ends together with its last
 * writes. If it fails, the claim is released for another run, which continues after the effects
 * that are known.
 */
import { setTimeout as sleep } from "node:timers/promises";

import type { Claim } from "./claim.ts";
import { commit, type Database, limited, LIMITS, type Run } from "./database.ts";
import { type Call, effect, type EffectOptions, type Rejected } from "./effect.ts";
import { found, hasState, isAway, isConflict, isUseless, line } from "./errors.ts";
import { type Lease, Unavailable } from "./lease.ts";
import { type Life, ROUNDS } from "./life.ts";
import type { Context, Message, Verdict } from "./message.ts";
import { handling } from "./spans.ts";
import { ended } from "./text.ts";
import { SESSION, together } from "./wire.ts";

/** How long it may take to release a claim when PostgreSQL was away a moment ago. */
const RELEASE_MS = 1000;

/** The context of a handler under a lease, besides the decoded payload. */
export interface LeasedContext {
  key: string;
  tenant: string;
  message: Message;
  /** How often the key was claimed, this time included. */
  attempts: number;
  /** Aborted when the lease is lost, or the handler takes longer than it may. */
  signal: AbortSignal;
  /**
   * Has an effect outside the database once, and returns its result as JSON has it. `step` names it
   * among those of the message, the same in every run. An unknown outcome needs `reconcile`, or
   * `providerIdempotent: true`.
   */
  effect<R>(step: string, call: Call<R>, options: EffectOptions<R>): Promise<R>;
}

/** Handles messages with effects outside the database, under a lease. */
export interface LeasedHandler<T> {
  /**
   * How long a claim lasts without being renewed, which happens at each third of it. Default: 20
   * seconds.
   */
  leaseMs?: number;
  /**
   * Handles one message, without a transaction. The code between the effects depends on nothing but
   * the message and the results of effects. Its result, which may be a `Reject`, is the reply.
   */
  handle(cx: LeasedContext, data: T): Promise<unknown>;
  /**
   * Writes in the transaction that ends the claim. May run again after a conflict, or in a later
   * run.
   */
  finish?(cx: Context, reply: any): Promise<unknown>;
}

/** One run, under a lease. */
export class Leased<T> {
  readonly #lease: Lease;
  readonly #claim: Claim & { key: string };
  readonly #handler: LeasedHandler<T>;
  readonly #database: Database;
  readonly #life: Life;
  readonly #until: number;

  constructor(lease: Lease, claim: Claim, handler: LeasedHandler<T>, database: Database, life: Life) {
    [this.#lease, this.#claim, this.#handler, this.#database, this.#life] = [lease, { ...claim, key: lease.key }, handler, database, life];
    this.#until = performance.now() + database.handlerTimeoutMs;
  }

  async run(scope: string, data: T): Promise<Verdict> {
    const { tenant, key, message } = this.#claim;
    try {
      const reply = await handling(scope, key, message, () => this.#lease.keep(() => this.#handle(data)));
      this.#lease.end();
      if (this.#lease.open.length > 0) {
        throw new Error("the handler went on after an effect");
      }
      const { verdict, text, status } = ended(reply);
      await this.#finish(reply, text, status);
      if (this.#lease.attempts > 1) {
        await this.#life.forget({ message, tenant, key });
      }
      return verdict;
    } catch (error) {
      this.#lease.end();
      return await this.#failed(error);
    }
  }

  async #handle(data: T): Promise<unknown> {
    const { tenant, key, message } = this.#claim;
    const handle = (signal: AbortSignal) => {
      const cx: LeasedContext = { key, tenant, message, attempts: this.#lease.attempts, signal, effect: (...given) => effect(this.#lease, ...given) };
      return this.#handler.handle(cx, data);
    };
    return await limited(this.#until - performance.now(), this.#database.tooSlow, handle, this.#lease.signal);
  }

  async #failed(error: unknown): Promise<Verdict> {
    if (found(error, "LeaseLost") !== undefined || hasState(error, /^OB014$/)) {
      this.#life.warn(this.#claim, `${line(error)}; this process writes nothing more for it`);
      return this.#life.later();
    }
    if (found(error, "Unavailable") !== undefined) {
      // So that the next run need not wait for the end of the lease. It was no attempt.
      const released = this.#lease.release(this.#life.later().after, line(error), false).catch(() => false);
      await Promise.race([released, sleep(RELEASE_MS)]);
      throw error;
    }
    const rejected = found<Rejected>(error, "Rejected");
    return rejected === undefined ? await this.#life.failed(this.#claim, error) : await this.#life.bury(this.#claim, rejected.message);
  }

  /** Ends the claim together with the last writes of the handler. */
  async #finish(reply: unknown, outcome: string, status: string): Promise<void> {
    for (let round = 1; ; round++) {
      try {
        return await this.#finishOnce(reply, outcome, status);
      } catch (error) {
        if (round === ROUNDS || !isConflict(error)) {
          throw error;
        }
      }
      await sleep(5 + 95 * Math.random());
    }
  }

  async #finishOnce(reply: unknown, outcome: string, status: string): Promise<void> {
    const run: Run = {};
    const client = await this.#step(this.#database.connect());
    await this.#database.within(client, run, async () => {
      const begin = { text: `SELECT pg_current_xact_id()::text, ${SESSION}, ${LIMITS}`, values: [this.#database.limit] };
      const began = this.#database.step(client, () => together(client, [{ text: "BEGIN ISOLATION LEVEL READ COMMITTED" }, begin]));
      const [, [[xid, session] = []] = []] = await this.#step(began);
      [run.xid, run.session] = [xid!, session!];
      const { tenant, key, message } = this.#claim;
      if (this.#handler.finish !== undefined) {
        const write = () => this.#database.handle(client, (own) => this.#handler.finish!({ ...own, key, tenant, message }, reply), this.#until - performance.now(), this.#lease.signal);
        await this.#lease.keep(write);
      }
      // The renewal has stopped: it would take a claim that has just ended for lost.
      const end = this.#database.step(client, () => commit(client, run, [this.#lease.finish(outcome, status)], false));
      // Without an answer it may have committed; the next run finds out.
      await this.#step(end, (error) => run.isUnsure === true || isUseless(error));
    });
  }

  /** A step of the inbox's own: if PostgreSQL cannot do it, that is no attempt. */
  #step<R>(work: Promise<R>, isLost = isAway): Promise<R> {
    return work.catch((error: unknown) => Promise.reject(isLost(error) ? new Unavailable(`PostgreSQL did not end the claim: ${line(error)}`, { cause: error }) : error));
  }
}
