/** Sagas: starting one, the barrier before a participant's actions and compensations, and its answers. */
import { hasState, isKind, line } from "./errors.ts";
import { single } from "./headers.ts";
import { stepKey } from "./keys.ts";
import { rowsOf, type Transaction } from "./library.ts";
import type { Context, Reject } from "./message.ts";
import { enqueue, toJson } from "./outbox.ts";
import { matches } from "./text.ts";
import { query, quoted } from "./wire.ts";

/** A saga: its id, its key, such as `4711:order`, and whether this call has started it. */
export interface Started {
  id: bigint;
  key: string;
  isNew: boolean;
}

/** Why a saga is not started, by the SQLSTATE. */
const REFUSALS = { OB002: "businessId", OB011: "data", OB015: "definition", OB016: "used" } as const;

/**
 * Thrown by `startSaga`; the transaction is aborted. `reason` is `businessId` (it cannot be part of a key), `data`
 * (the definition does not read them), `definition` (none of this type is registered) or `used` (the business id
 * has been used before, with other data or for another saga).
 */
export class SagaRefused extends Error {
  override readonly name = "SagaRefused";
  readonly reason: (typeof REFUSALS)[keyof typeof REFUSALS];

  constructor(reason: SagaRefused["reason"], message: string, options?: ErrorOptions) {
    super(message, options);
    this.reason = reason;
  }
}

/**
 * Starts a saga of a registered definition in the caller's transaction, which is one of those that `enqueue` takes.
 * The data are sent as JSON. The same start again returns the same saga. The version is that of the definition; without
 * one it is the newest.
 */
export async function startSaga(
  transaction: Transaction,
  type: string,
  businessId: string,
  data: unknown,
  schema = "oncebox",
  version?: number,
): Promise<Started> {
  const [ofVersion, more] = version === undefined ? ["", []] : [", version => $4::text::int", [String(version)]];
  const call = `${quoted(schema)}.start_saga(type => $1::text, business_id => $2::text, data => $3::text::jsonb${ofVersion})`;
  try {
    const [row] = await rowsOf(transaction, `SELECT id::text AS id, key, is_new::text AS is_new FROM ${call}`, [type, businessId, toJson(data).toString(), ...more]);
    const [id, key, isNew] = row!;
    return { id: BigInt(id!), key: key!, isNew: isNew === "true" };
  } catch (error) {
    const reason = Object.entries(REFUSALS).find(([state]) => hasState(error, RegExp(`^${state}$`)))?.[1];
    throw reason === undefined ? error : new SagaRefused(reason, `saga ${type} of ${businessId} is not started: ${line(error)}`, { cause: error });
  }
}

/**
 * The decision for an action: have the effect; it had it before, so answer as you did then; or never act, and
 * answer with a no, since its compensation came first, or another attempt is newer.
 */
export type Action = "act" | "acted" | "refused";
/** The decision for a compensation: undo; there is nothing to undo, a success; or a leased run in Rust is under way: throw RetryAfter. */
export type Compensation = "undo" | "nothing" | "wait";

/**
 * Stands before the actions and compensations of one kind in a service, such as `stock-service:reserve`. In any
 * order and number, the effect of one of the two remains. Both handlers use a barrier of the same name, in the
 * same database. Never rename one while sagas are under way.
 */
export class Barrier {
  readonly name: string;
  readonly #schema: string;

  constructor(name: string, schema = "oncebox") {
    if (!/^[!-~]{1,255}$/.test(name)) {
      throw new RangeError(`barrier ${JSON.stringify(name)} is not named by 1 to 255 bytes of visible ASCII`);
    }
    this.name = name;
    this.#schema = quoted(schema);
  }

  /** Before the effect of an action: whether it may have it. Call `hadNoEffect` if you refuse the command then. */
  async action(cx: Context): Promise<Action> {
    return (await this.#ask("enter_action", cx, false)) as Action;
  }

  /** For an action that may act, but rejects the command: there is nothing to undo. */
  async hadNoEffect(cx: Context): Promise<void> {
    await this.#ask("end_action", cx, false);
  }

  /** Before a compensation undoes anything; its key is the action's with `:undo` at its end. */
  async compensation(cx: Context): Promise<Compensation> {
    return (await this.#ask("enter_compensation", cx, true)) as Compensation;
  }

  /** For a compensation that was told to undo, but rejects the command: the next attempt may undo. */
  async hasUndoneNothing(cx: Context): Promise<void> {
    await this.#ask("end_compensation", cx, true);
  }

  async #ask(name: string, cx: Context, isUndo: boolean): Promise<string> {
    const [key, attempt] = actionOf(cx, isUndo);
    const text = `SELECT ${this.#schema}.${name}($1, $2, $3, false, $4)`;
    const [[answer]] = (await query(cx.client, text, [this.name, cx.tenant, key, attempt])) as [[string]];
    return answer;
  }
}

/**
 * Answers commands on the subjects that a participant allows, such as `sagas.replies` or
 * `sagas.*.replies`, and on no other: otherwise any sender of a command could make this service
 * publish anywhere.
 */
export class Replier {
  readonly #allowed: string[];
  readonly #schema: string;

  constructor(allowed: string[], schema = "oncebox") {
    this.#allowed = allowed;
    this.#schema = schema;
  }

  /**
   * Enqueues the answer to a command in the handler's transaction; `result` is the value that the
   * handler returns then. Returns whether it was: not when the command names no subject, nor once
   * more for a copy.
   */
  async reply(cx: Context, result?: unknown): Promise<boolean> {
    const subject = single(cx.message.headers, "oncebox-reply-to");
    if (subject === undefined) {
      return false;
    }
    if (!this.#allowed.some((pattern) => matches(pattern.split("."), subject.split(".")))) {
      throw new Error(`the command asks for its answer on subject ${subject}, and ${this.#allowed.join(", ")} is allowed`);
    }
    const [word, payload] = isKind(result, "Reject") ? ["rejected", (result as Reject).reply] : ["done", result];
    const orderingKey = single(cx.message.headers, "oncebox-ordering-key");
    const sent = await enqueue(cx.client, {
      ...{ key: stepKey(cx.key, "reply"), subject, payload: payload ?? null, schema: this.#schema },
      headers: { "Reply-Outcome": word as string, "In-Reply-To": cx.key, ...(cx.scope?.trim() ? { "Reply-Scope": cx.scope.trim() } : {}) },
      ...(orderingKey === undefined ? {} : { orderingKey }),
    });
    return sent !== null;
  }
}

/** The key of the action, which all its attempts share, and the number of this attempt. */
function actionOf(cx: Context, isUndo: boolean): [key: string, attempt: number] {
  const key = cx.key.replace(/:undo$/, "");
  if ((key !== cx.key) !== isUndo) {
    throw new Error(`key ${cx.key} is ${isUndo ? "not " : ""}that of a compensation`);
  }
  const number = single(cx.message.headers, "saga-attempt") ?? "";
  const isAttempt = /^[0-9]+$/.test(number) && Number(number) > 1 && Number(number) < 2 ** 31 && key.endsWith(`:#${number}`);
  return isAttempt ? [key.slice(0, -`:#${number}`.length), Number(number)] : [key, 1];
}
