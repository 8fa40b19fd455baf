/** The life of a message beside its handler's transaction: its attempts, pauses and snoozes, and its end as a dead letter. */
import { setTimeout as sleep } from "node:timers/promises";

import type { Claim } from "./claim.ts";
import type { Database } from "./database.ts";
import { found, line, stacks } from "./errors.ts";
import type { InboxOptions } from "./inbox.ts";
import type { Dead, RetryAfter, Snooze, Verdict } from "./message.ts";
import { headers, messageId, place, printable } from "./text.ts";

/** How often something is done again at once, because somebody else was in the way. */
export const ROUNDS = 5;
/** A handler may ask for no longer pause, in milliseconds: a day. */
const RETRY_AFTER_MAX = 86_400_000;

/** The claim of a message, where it is held under a lease. Each answers whether it still was. */
export interface Held {
  /** How often the key was claimed, but for snoozes. */
  readonly attempts: number;
  /** A reason, with the effects that may have happened. */
  explained(reason: string): string;
  release(pauseMs: number, reason: string, isAttempt: boolean): Promise<boolean>;
  bury(given: Record<string, unknown>): Promise<boolean>;
}

type Limits = Required<Pick<InboxOptions<unknown>, "attemptsMax" | "backoffMs" | "snoozeMaxMs" | "log">>;

export class Life {
  readonly #database: Database;
  readonly #scope: string;
  readonly #options: Limits;

  constructor(database: Database, scope: string, options: Limits) {
    [this.#database, this.#scope, this.#options] = [database, scope, options];
  }

  /** The answer to a message that failed, or was snoozed, in whatever process, and is not due yet. */
  async early({ message, tenant, key }: Claim): Promise<Verdict | undefined> {
    if ((message.deliveries ?? 1) < 2) {
      return undefined;
    }
    const name = { scope: this.#scope, tenant, key };
    const { text, values } = this.#database.call("inbox_copy", place(message));
    const [at, n] = [Object.keys(name).map((column, at) => `d.${column} = $${values!.length + at + 1}`), `d.message = ${text}`];
    const due = (table: string) => `SELECT due_at FROM ${this.#database.of(table)} AS d WHERE ${[...at, n].join(" AND ")}`;
    const rows = await this.#database.rows(
      `SELECT (1000 * extract(epoch FROM max(due_at) - clock_timestamp()))::bigint::text
       FROM (${due("inbox_attempt")} UNION ALL ${due("inbox_snooze")}) AS due`,
      [...values!, ...Object.values(name)],
    );
    const after = Number(rows[0]?.[0] ?? 0);
    return after > 0 ? { name: "in_flight", after } : undefined;
  }

  /** Says that a message which was delivered before is run again. If the process ends meanwhile, the record shows it. */
  begin({ message, tenant, key }: Claim, isAlone: boolean): Promise<string | null> {
    const more = { subject: printable(message.subject), attempts_max: this.#options.attemptsMax, is_alone: isAlone };
    return this.#database.ask("begin_attempt", { scope: this.#scope, key, tenant, ...place(message), ...more });
  }

  /** The run was no attempt. If this fails, the message runs alone once, which counts nothing. */
  async cancel({ message, tenant, key }: Claim): Promise<void> {
    await this.#database.ask("cancel_attempt", { scope: this.#scope, key, tenant, ...place(message) }).catch(() => null);
  }

  /** Forgets the attempts at a message that has ended. If this fails, its key says that it has. */
  async forget({ tenant, key }: Claim): Promise<void> {
    await this.#database.ask("forget_attempts", { scope: this.#scope, key, tenant }).catch(() => null);
  }

  /** What a failed run comes to: another one after a pause, or a dead letter, with this key. */
  async failed(claim: Claim, failure: unknown, held?: Held, deadKey = claim.key): Promise<Verdict> {
    const [dead, retry, snooze] = [found<Dead>(failure, "Dead"), found<RetryAfter>(failure, "RetryAfter"), found<Snooze>(failure, "Snooze")];
    if (dead !== undefined) {
      return await this.bury(claim, line(dead).replace(/^Dead: /, ""), { held });
    }
    if (snooze !== undefined) {
      return await this.#snooze(claim, snooze, held);
    }
    const [reason, jitter] = [held?.explained(line(failure)) ?? line(failure), 0.5 + Math.random() / 2];
    let [first, longest] = this.#options.backoffMs.map((ms) => ms * jitter) as [number, number];
    if (retry !== undefined) {
      first = longest = Math.min(retry.ms, RETRY_AFTER_MAX);
    }
    const after = (attempts: number) => Math.min(first * 2 ** Math.min(attempts - 1, 30), longest);
    // If PostgreSQL is away, this statement fails too, and the attempt does not count.
    const attempts = held?.attempts ?? (await this.#record(claim, reason, first, longest));
    if (attempts >= this.#options.attemptsMax) {
      const given = { ...claim, key: deadKey };
      return await this.#buryClosed(given, `delivery limit of ${this.#options.attemptsMax} reached: ${reason}`, held);
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

  async #record({ message, tenant, key }: Claim, reason: string, first: number, longest: number): Promise<number> {
    const pauses = { pause: String(first / 1000), pause_max: String(longest / 1000) };
    const told = { reason: printable(reason), subject: printable(message.subject) };
    return Number(await this.#database.ask("attempt_failed", { scope: this.#scope, key, tenant, ...place(message), ...told, ...pauses }));
  }

  async #snooze(claim: Claim, { ms, message: reason }: Snooze, held: Held | undefined): Promise<Verdict> {
    const { message, tenant, key } = claim;
    const longest = `${this.#options.snoozeMaxMs / 1000} seconds`;
    const more = { pause: `${ms / 1000} seconds`, reason: printable(reason), deliveries: message.deliveries ?? 1, longest };
    const mayWait = await this.#database.ask("snooze", { scope: this.#scope, key, tenant, ...place(message), ...more });
    if (mayWait !== "true") {
      return await this.#buryClosed(claim, `snoozed for too long: ${reason}`, held);
    }
    if (held !== undefined && !(await held.release(ms, `snoozed: ${reason}`, false))) {
      return this.later();
    }
    this.#options.log.info(`scope ${this.#scope}, key ${key}: snoozed, again in ${Math.round(ms)} ms: ${reason}`);
    return { name: "snoozed", reason, after: ms };
  }

  warn({ key }: Claim, text: string): void {
    this.#options.log.warn(`scope ${this.#scope}, key ${key}: ${text}`);
  }

  /** Somebody else works on the key. */
  later(): Verdict {
    return { name: "in_flight", after: Math.min(...this.#options.backoffMs) * (0.5 + Math.random() / 2) };
  }

  /** Gives a message up whose connection may have been closed: PostgreSQL notices that a moment later. */
  async #buryClosed(claim: Claim, reason: string, held: Held | undefined): Promise<Verdict> {
    let answer = await this.bury(claim, reason, { held });
    for (let round = 0; round < ROUNDS && answer.name === "in_flight" && held === undefined; round++) {
      await sleep(50 * 2 ** round);
      answer = await this.bury(claim, reason);
    }
    return answer;
  }

  /** Gives a message up and records it as a dead letter, unless a copy was handled meanwhile. */
  async bury(claim: Claim, text: string, { held, xid = null }: { held?: Held | undefined; xid?: string | null } = {}): Promise<Verdict> {
    const { message, tenant, key } = claim;
    const reason = printable(held?.explained(text) ?? text);
    const told = { payload: message.payload, reason, subject: printable(message.subject), headers: headers(message) };
    const given = { ...told, ...place(message), deliveries: message.deliveries ?? 1 };
    const more = { message_id: messageId(message), committed_by: xid };
    const name = held === undefined ? await this.#database.ask("bury", { scope: this.#scope, key, tenant, ...given, ...more })
      : (await held.bury(given)) ? "dead" : "in_flight";
    if (name === "dead" || name === "mismatch") {
      this.warn(claim, `dead letter: ${reason}`);
    }
    return name === "in_flight" ? this.later() : { name: name as Verdict["name"], reason, after: 0 };
  }
}
