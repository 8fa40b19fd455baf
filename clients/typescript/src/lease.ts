/**
 * The right to work on a key, for a time that is renewed meanwhile; and which effects its run has
 * begun.
 */
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import type { Claim } from "./claim.ts";
import { type Database, limited } from "./database.ts";
import { isAway, line } from "./errors.ts";
import { KIND } from "./message.ts";
import { messageId, seconds } from "./text.ts";
import type { Query, Row } from "./wire.ts";

const OVER = "the handler has ended: await all effects before it returns";

/**
 * Thrown by an effect, and by the run: another process may have taken the key over, so nothing is
 * called or written any more.
 */
export class LeaseLost extends Error {
  readonly [KIND] = "LeaseLost";
  override readonly name = "LeaseLost";
}

/** PostgreSQL was away for as long as the lease lasted. */
export class Unavailable extends Error {
  readonly [KIND] = "Unavailable";
}

/** How an effect of this run stands; `open`: it may have happened. */
export interface Step {
  state: "idle" | "open" | "settled";
  isBusy: boolean;
}

export class Lease {
  readonly key: string;
  /** How often the key was claimed, but for snoozes. */
  readonly attempts: number;
  readonly #database: Database;
  /** Whose claim it is; the epoch is the fence. */
  readonly #name: Record<"scope" | "key" | "owner" | "epoch" | "tenant", string>;
  readonly #ms: number;
  readonly #lost = new AbortController();
  readonly #steps = new Map<string, Step>();
  #isOver = false;
  /**
   * Not later than the end of the lease in the database: each renewal counts from when it was sent.
   */
  #until: number;

  private constructor(database: Database, name: Record<"scope" | "key" | "owner" | "epoch" | "tenant", string>, ms: number, attempts: number, since: number) {
    [this.#database, this.#name, this.#ms, this.#until] = [database, name, ms, since + ms];
    [this.key, this.attempts] = [name.key, attempts];
  }

  /**
   * Claims a key, or says why not: answer, outcome and reason of `claim_leased`. The claim is
   * committed.
   */
  static async claimed(database: Database, scope: string, { message, tenant, key }: Claim, ms: number, isAlone: boolean): Promise<Lease | Row> {
    const [owner, since] = [randomUUID(), performance.now()];
    const given = { scope, key, payload: message.payload, owner, lease: seconds(ms), tenant, message_id: messageId(message), is_alone: isAlone };
    const { text, values } = database.call("claim_leased", given);
    const [row] = await database.rows(`SELECT answer, outcome::text, reason, epoch::text, attempts::text FROM ${text}`, values);
    const [answer, , , epoch, attempts] = row!;
    return answer === "new" ? new Lease(database, { scope, key: key!, owner, epoch: epoch!, tenant }, ms, Number(attempts), since) : row!;
  }

  /** Aborted when the lease is lost. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** Throws when another process may have the key, or its handler has ended. */
  check(): void {
    if (this.#isOver) {
      throw new Error(OVER);
    }
    if (performance.now() >= this.#until) {
      this.#lose("the process was held up for longer than it lasts");
    }
    this.signal.throwIfAborted();
  }

  /**
   * Renews the lease at each third of its time while the work is done, which has to end when
   * `signal` is aborted.
   */
  async keep<R>(work: () => Promise<R>): Promise<R> {
    const done = new AbortController();
    void this.#renew(done.signal);
    return await work().finally(() => done.abort());
  }

  async #renew(done: AbortSignal): Promise<void> {
    while (!done.aborted && !this.signal.aborted) {
      const until = this.#until;
      await sleep(Math.max(until - (2 / 3) * this.#ms - performance.now(), 0), undefined, { signal: done }).catch(() => {});
      if (done.aborted || this.#until > until) {
        continue; // an effect that began has renewed it
      }
      // After a pause of the process it is asked once more: perhaps no other process has taken
      // over.
      await this.fenced("answer::text", "renew_lease", {}).catch((error) => this.#lose(`it could not be renewed in time: ${line(error)}`));
    }
  }

  /** The work is done: no effect begins any more. */
  end(): void {
    this.#isOver = true;
  }

  /**
   * Takes an effect in hand, unless it is settled or another call has it in hand: the result would
   * be that of the first call.
   */
  take(name: string): Step {
    const step = this.#steps.get(name) ?? { state: "idle", isBusy: false };
    const why = this.#isOver ? OVER
      : step.isBusy ? "it is under way already; each effect of a run needs a name of its own"
      : step.state === "settled" ? "it was done already; each effect of a run needs a name of its own" : undefined;
    if (why !== undefined) {
      throw new Error(`effect "${name}": ${why}`);
    }
    step.isBusy = true;
    this.#steps.set(name, step);
    return step;
  }

  /** The effects that may have happened. */
  get open(): string[] {
    return [...this.#steps].filter(([, { state }]) => state === "open").map(([name]) => `"${name}"`);
  }

  explained(reason: string): string {
    const open = this.open.join(", ");
    return open === "" || reason.includes(`effect ${open} is unknown`) ? reason : `${reason}; the outcome of effect ${open} is unknown`;
  }

  /**
   * A statement that begins the lease's time again; it is repeated while PostgreSQL is away and the
   * lease lasts. Throws when it is lost.
   */
  async fenced(columns: string, name: string, given: Record<string, unknown>): Promise<Row> {
    for (let failures = 1; ; failures++) {
      this.signal.throwIfAborted();
      const sent = performance.now();
      try {
        const row = await this.#ask(columns, name, { lease: seconds(this.#ms), ...given }, Math.max(this.#until - sent, this.#ms / 3));
        if (row[0] === "lost" || row[0] === "false") {
          this.#lose("the key has another owner, or has ended");
        }
        this.signal.throwIfAborted();
        this.#renewed(sent);
        return row;
      } catch (error) {
        if (error === this.signal.reason || !isAway(error)) {
          throw error;
        }
        if (performance.now() >= this.#until) {
          throw new Unavailable(`PostgreSQL did not answer ${name}: ${line(error)}`, { cause: error });
        }
      }
      await sleep(Math.min(20 * 2 ** failures, 1000));
    }
  }

  async release(pauseMs: number, reason: string, isAttempt: boolean): Promise<boolean> {
    const given = { pause: seconds(pauseMs), reason: this.explained(reason), is_unknown: this.open.length > 0, is_attempt: isAttempt };
    return (await this.#ask("answer::text", "release_leased", given))[0] === "true";
  }

  async bury(given: Record<string, unknown>): Promise<boolean> {
    return (await this.#ask("answer::text", "bury_leased", given))[0] === "true";
  }

  /** The last statement of the transaction that ends the claim. */
  finish(outcome: string, status: string): Query {
    const { text, values } = this.#database.call("finish_leased", { ...this.#name, outcome, status });
    return { text: `SELECT ${text}::text`, values: values! };
  }

  async #ask(columns: string, name: string, given: Record<string, unknown>, limitMs = 2 * this.#database.stepTimeoutMs): Promise<Row> {
    const { text, values } = this.#database.call(name, { ...this.#name, ...given });
    const ask = () => this.#database.rows(`SELECT ${columns} FROM ${text} AS answer`, values, limitMs);
    return (await limited(limitMs, `PostgreSQL did not answer ${name}`, ask))[0]!;
  }

  #renewed(sent: number): void {
    this.#until = Math.max(this.#until, sent + this.#ms);
  }

  #lose(why: string): void {
    this.#lost.abort(new LeaseLost(`the lease of key ${this.key} is lost: ${why}`));
  }
}
