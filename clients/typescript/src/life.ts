/**
 * The life of a message beside its handler's transaction: its attempts, pauses and snoozes, and its
 * end as a dead letter.
 */
import { setTimeout as sleep } from "node:timers/promises";

import type { Claim } from "./claim.ts";
import type { Database } from "./database.ts";
import type { OutcomeUnknown } from "./effect.ts";
import { found, line, stacks } from "./errors.ts";
import type { InboxOptions } from "./inbox.ts";
import type { Dead, RetryAfter, Snooze, Verdict } from "./message.ts";
import { headers, messageId, place, seconds } from "./text.ts";

/** How often something is done again at once, because another process was in the way. */
export const ROUNDS = 5;
/** A handler may ask for no longer pause, in milliseconds: a day. */
const RETRY_AFTER_MAX = 86_400_000;

type Limits = Required<Pick<InboxOptions<unknown>, "attemptsMax" | "backoffMs" | "snoozeMaxMs" | "log">>;

export class Life {
  readonly #database: Database;
  readonly #scope: string;
  readonly #options: Limits;

  constructor(database: Database, scope: string, options: Limits) {
    [this.#database, this.#scope, this.#options] = [database, scope, options];
  }

  /**
   * The answer to a message that failed, or was snoozed, in any process, and is not due yet.
   */
  async early(claim: Claim): Promise<Verdict | undefined> {
    const left = 1000 * Number((claim.message.deliveries ?? 1) < 2 ? 0 : await this.#ask("pause_left", claim, {}));
    return left > 0 ? { name: "in_flight", after: left } : undefined;
  }

  /**
   * Says that a message which was delivered before is run again. If the process ends meanwhile, the
   * record shows it.
   */
  begin(claim: Claim, isAlone: boolean): Promise<string | null> {
    return this.#ask("begin_attempt", claim, { subject: claim.message.subject, attempts_max: this.#options.attemptsMax, is_alone: isAlone });
  }

  /** The run was no attempt. If this fails, the message runs alone once, which counts nothing. */
  async cancel(claim: Claim): Promise<void> {
    await this.#ask("cancel_attempt", claim, {}).catch(() => null);
  }

  /** Forgets the attempts at a message that has ended. If this fails, its key says that it has. */
  async forget({ tenant, key }: Claim): Promise<void> {
    await this.#database.ask("forget_attempts", { scope: this.#scope, key, tenant }).catch(() => null);
  }

  /** The answer to a failed run: another one after a pause, or a dead letter, with this key. */
  async failed(claim: Claim, failure: unknown, deadKey = claim.key): Promise<Verdict> {
    const { held } = claim;
    const [dead, retry, snooze] = [found<Dead>(failure, "Dead"), found<RetryAfter>(failure, "RetryAfter"), found<Snooze>(failure, "Snooze")];
    if (dead !== undefined) {
      return await this.bury(claim, line(dead).replace(/^Dead: /, ""));
    }
    if (snooze !== undefined) {
      return await this.#snooze(claim, snooze);
    }
    const [reason, jitter] = [held?.explained(line(failure)) ?? line(failure), 0.5 + Math.random() / 2];
    const settlesInMs = found<OutcomeUnknown>(failure, "OutcomeUnknown")?.settlesInMs;
    if (held !== undefined && settlesInMs !== undefined) {
      return await this.#settling(claim, held, reason, Math.min(settlesInMs, this.#options.backoffMs[1]));
    }
    let [first, longest] = this.#options.backoffMs.map((ms) => ms * jitter) as [number, number];
    if (retry !== undefined) {
      first = longest = Math.min(retry.ms, RETRY_AFTER_MAX);
    }
    const after = (attempts: number) => Math.min(first * 2 ** Math.min(attempts - 1, 30), longest);
    // If PostgreSQL is away, this statement fails too, and the attempt does not count.
    const attempts = held?.attempts ?? (await this.#record(claim, reason, first, longest));
    if (attempts >= this.#options.attemptsMax) {
      return await this.#buryClosed({ ...claim, key: deadKey }, `delivery limit of ${this.#options.attemptsMax} reached: ${reason}`);
    }
    if (held !== undefined) {
      if (!(await held.release(after(attempts), reason, true))) {
        return this.later();
      }
      // The claim counts; this is for operators.
      await this.#record(claim, reason, after(attempts), after(attempts)).catch(() => null);
    }
    const told = (retry === undefined && stacks(failure)) || reason;
    this.warn(claim, `attempt ${attempts} failed, again in ${Math.round(after(attempts))} ms: ${told}`);
    return { name: "retry", reason, after: after(attempts) };
  }

  /** An earlier call may still arrive: the run was no attempt. */
  async #settling({ key }: Claim, held: NonNullable<Claim["held"]>, reason: string, ms: number): Promise<Verdict> {
    if (!(await held.release(ms, reason, false))) {
      return this.later();
    }
    this.#options.log.info(`scope ${this.#scope}, key ${key}: again in ${Math.round(ms)} ms: ${reason}`);
    return { name: "retry", reason, after: ms };
  }

  async #record(claim: Claim, reason: string, first: number, longest: number): Promise<number> {
    const pauses = { pause: String(first / 1000), pause_max: String(longest / 1000) };
    return Number(await this.#ask("attempt_failed", claim, { reason, subject: claim.message.subject, ...pauses }));
  }

  async #snooze(claim: Claim, { ms, message: reason }: Snooze): Promise<Verdict> {
    const { message, held } = claim;
    const longest = seconds(this.#options.snoozeMaxMs);
    const mayWait = await this.#ask("snooze", claim, { pause: seconds(ms), reason, deliveries: message.deliveries ?? 1, longest });
    if (mayWait !== "true") {
      return await this.#buryClosed(claim, `snoozed for too long: ${reason}`);
    }
    if (held !== undefined && !(await held.release(ms, `snoozed: ${reason}`, false))) {
      return this.later();
    }
    this.#options.log.info(`scope ${this.#scope}, key ${claim.key}: snoozed, again in ${Math.round(ms)} ms: ${reason}`);
    return { name: "snoozed", reason, after: ms };
  }

  /** Calls a function about a message, in a transaction of its own. */
  #ask(name: string, { message, tenant, key }: Claim, given: Record<string, unknown>): Promise<string | null> {
    return this.#database.ask(name, { scope: this.#scope, key, tenant, ...place(message), ...given });
  }

  warn({ key }: Claim, text: string): void {
    this.#options.log.warn(`scope ${this.#scope}, key ${key}: ${text}`);
  }

  /** Another process works on the key. */
  later(): Verdict {
    return { name: "in_flight", after: Math.min(...this.#options.backoffMs) * (0.5 + Math.random() / 2) };
  }

  /**
   * Gives a message up whose connection may have been closed: PostgreSQL notices that a moment
   * later.
   */
  async #buryClosed(claim: Claim, reason: string): Promise<Verdict> {
    let answer = await this.bury(claim, reason);
    for (let round = 0; round < ROUNDS && answer.name === "in_flight" && claim.held === undefined; round++) {
      await sleep(50 * 2 ** round);
      answer = await this.bury(claim, reason);
    }
    return answer;
  }

  /** Gives a message up and records it as a dead letter, unless a copy was handled meanwhile. */
  async bury(claim: Claim, text: string, committedBy: string | null = null): Promise<Verdict> {
    const { message, held } = claim;
    const reason = held?.explained(text) ?? text;
    const given = { payload: message.payload, reason, subject: message.subject, headers: headers(message), deliveries: message.deliveries ?? 1 };
    const name = held === undefined ? await this.#ask("bury", claim, { ...given, message_id: messageId(message), committed_by: committedBy })
      : (await held.bury({ ...given, ...place(message) })) ? "dead" : "in_flight";
    if (name === "dead" || name === "mismatch") {
      this.warn(claim, `dead letter: ${reason}`);
    }
    return name === "in_flight" ? this.later() : { name: name as Verdict["name"], reason, after: 0 };
  }
}
