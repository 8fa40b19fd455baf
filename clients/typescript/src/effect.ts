/**
 * Effects outside the database: each is recorded before its provider is called, and remembered
 * after.
 *
 * The next run continues after the last effect that is known. For an effect that an earlier run
 * began, without a known outcome, the provider is asked; or it is called again, if it acts once for
 * each key.
 */
import { found, line } from "./errors.ts";
import { limited } from "./database.ts";
import { stepKey } from "./keys.ts";
import type { Lease, Step } from "./lease.ts";
import { KIND } from "./message.ts";
import { stringified } from "./text.ts";

/**
 * Thrown by a call whose effect did not happen and never will, as when a card is declined:
 * remembered, and thrown to the handler.
 */
export class Rejected extends Error {
  readonly [KIND] = "Rejected";
  override readonly name = "Rejected";
}

/** Thrown by a call that is known to have had no effect: the next run calls again. */
export class NotSent extends Error {
  readonly [KIND] = "NotSent";
  override readonly name = "NotSent";
}

/** Thrown to the handler: the effect may have happened. The next run finds out. */
export class OutcomeUnknown extends Error {
  readonly [KIND] = "OutcomeUnknown";
  override readonly name = "OutcomeUnknown";
  /** For how long an earlier call may still arrive: a wait, and no attempt. */
  settlesInMs?: number;
}

/** The provider's answer about an effect whose outcome is unknown. */
export type Reconciled<R> = { happened: R } | "absent" | "unknown";

/** How an unknown outcome is dealt with: one of `reconcile` and `providerIdempotent` is needed. */
export interface EffectOptions<R> {
  /** Asks the provider, by the derived key, whether the effect happened; it changes nothing. */
  reconcile?: (key: string, signal: AbortSignal) => Promise<Reconciled<R>>;
  /**
   * Calls with one key have one effect and one answer, for longer than a message may come again:
   * then it is called again.
   */
  providerIdempotent?: boolean;
  /**
   * How long the call, and the question, may take; then the outcome is unknown. Default: 30
   * seconds.
   */
  timeoutMs?: number;
  /**
   * For how long after its beginning a call may take effect: until then "absent" is unknown.
   * Default: `timeoutMs` and 30 seconds.
   */
  settlesWithinMs?: number;
}

/**
 * Calls a provider with the derived key, `key:step`. Any error but `Rejected` and `NotSent` leaves
 * the outcome unknown.
 */
export type Call<R> = (key: string, signal: AbortSignal) => Promise<R>;

/** Has an effect once, and returns its result as JSON has it, in this run and in later ones. */
export async function effect<R>(lease: Lease, name: string, call: Call<R>, options: EffectOptions<R>): Promise<R> {
  if ((options?.reconcile === undefined) !== (options?.providerIdempotent === true)) {
    throw new TypeError(`effect "${name}" needs one of \`reconcile\`, which asks its provider what happened, and \`providerIdempotent: true\``);
  }
  const key = stepKey(lease.key, name);
  const step = lease.take(name);
  try {
    return await new Effect(lease, name, key, step, options).run(call);
  } finally {
    step.isBusy = false;
  }
}

class Effect<R> {
  readonly #lease: Lease;
  readonly #name: string;
  readonly #key: string;
  readonly #step: Step;
  readonly #options: EffectOptions<R>;
  readonly #timeoutMs: number;

  constructor(lease: Lease, name: string, key: string, step: Step, options: EffectOptions<R>) {
    [this.#lease, this.#name, this.#key, this.#step, this.#options] = [lease, name, key, step, options];
    this.#timeoutMs = options.timeoutMs ?? 30_000;
  }

  async run(call: Call<R>): Promise<R> {
    const wasOpen = this.#step.state === "open";
    // Also when the answer is lost.
    this.#step.state = "open";
    const columns = "answer, result::text, reason, (1000 * extract(epoch FROM age))::bigint::text, is_own::text";
    const [answer, result, reason, age, isOwn] = await this.#lease.fenced(columns, "begin_effect", { step: this.#name });
    if (answer === "done" || answer === "rejected") {
      this.#step.state = "settled";
      if (answer === "rejected") {
        throw this.#no(reason!);
      }
      return JSON.parse(result!);
    }
    // One that a statement of this very run has begun, whose answer was lost, was not called yet.
    const isBefore = answer === "open" && (isOwn !== "true" || wasOpen);
    if (isBefore && !this.#options.providerIdempotent) {
      const known = await this.#reconciled(Number(age));
      if (known !== undefined) {
        return known.happened;
      }
    }
    if (isBefore) {
      await this.#lease.fenced("answer::text", "begin_effect_again", { step: this.#name });
    }
    // If this process was suspended meanwhile, another one may have taken over.
    this.#lease.check();
    const isOpen = isBefore && this.#options.providerIdempotent === true;
    return await this.#settled(this.#timed((signal) => call(this.#key, signal)), isOpen);
  }

  /** The result, if the effect has happened; nothing, if it never will by an earlier call. */
  async #reconciled(ageMs: number): Promise<{ happened: R } | undefined> {
    let answer: Reconciled<R>;
    try {
      answer = await this.#timed((signal) => this.#options.reconcile!(this.#key, signal));
    } catch (error) {
      this.#lease.signal.throwIfAborted();
      throw found(error, "Rejected") === undefined ? this.#unknown(error) : await this.#rejected(error);
    }
    const settlesMs = this.#options.settlesWithinMs ?? this.#timeoutMs + 30_000;
    if (answer === "absent" && ageMs >= settlesMs) {
      return undefined;
    }
    if (answer === "absent") {
      const early = this.#unknown(new Error(`the provider knows nothing of it, but a call settles within ${settlesMs} ms`));
      throw Object.assign(early, { settlesInMs: settlesMs - ageMs });
    }
    if (answer == null || typeof answer !== "object" || !("happened" in answer)) {
      throw this.#unknown(new Error("the provider cannot tell yet"));
    }
    return { happened: await this.#settled(Promise.resolve(answer.happened), true) };
  }

  /**
   * Remembers how a call has ended. `isOpen`: an earlier one may have had the effect, and that this
   * one failed says nothing about it.
   */
  async #settled(call: Promise<R>, isOpen: boolean): Promise<R> {
    let result: R | null;
    try {
      result = (await call) ?? null;
    } catch (error) {
      this.#lease.signal.throwIfAborted();
      if (found(error, "Rejected") !== undefined) {
        throw await this.#rejected(error);
      }
      if (found(error, "NotSent") !== undefined && !isOpen) {
        await this.#end("absent", {}, "idle");
        throw new NotSent(`effect "${this.#name}" did not happen: ${line(error)}`);
      }
      throw this.#unknown(error);
    }
    // A result that cannot be stored leaves it open, since it happened.
    const text = stringified(result, `the result of effect "${this.#name}"`);
    await this.#end("done", { result: text }, "settled");
    return JSON.parse(text);
  }

  async #end(status: string, more: Record<string, string>, state: Step["state"]): Promise<void> {
    await this.#lease.fenced("answer::text", "end_effect", { step: this.#name, status, ...more });
    this.#step.state = state;
  }

  #timed<V>(work: (signal: AbortSignal) => Promise<V>): Promise<V> {
    return limited(this.#timeoutMs, `no answer within ${this.#timeoutMs} ms`, work, this.#lease.signal);
  }

  async #rejected(error: unknown): Promise<Rejected> {
    const reason = found<Error>(error, "Rejected")!.message;
    await this.#end("rejected", { reason }, "settled");
    return this.#no(reason);
  }

  #no(reason: string): Rejected {
    return new Rejected(`effect "${this.#name}" was rejected: ${reason}`);
  }

  #unknown(cause: unknown): OutcomeUnknown {
    return new OutcomeUnknown(`the outcome of effect "${this.#name}" is unknown`, { cause });
  }
}
