/**
 * Outbox and inbox for PostgreSQL and NATS JetStream, with pg and nats.js.
 *
 * `enqueue` writes a message in the caller's transaction; a relay publishes it after the COMMIT. A
 * `Consumer` runs a handler once for each key, in one transaction with the handler's own writes.
 */
export { type Entry, type SetContext, type SetHandler } from "./batch.ts";
export { Consumer, received, type ConsumerOptions } from "./consumer.ts";
export { type Call, type EffectOptions, NotSent, OutcomeUnknown, type Reconciled, Rejected } from "./effect.ts";
export { Inbox, type InboxOptions } from "./inbox.ts";
export { checkKey, partKey, rootKey, stepKey, undoKey } from "./keys.ts";
export { Dead, Reject, RetryAfter, Snooze, type Verdict, type Context, type Handler, type Message, type Origin } from "./message.ts";
export { LeaseLost } from "./lease.ts";
export { type LeasedContext, type LeasedHandler } from "./leased.ts";
export { type Transaction } from "./library.ts";
export { cancelDelayed, enqueue, enqueueAll, type Outgoing } from "./outbox.ts";
export { type Action, Barrier, type Compensation, Replier, SagaRefused, type Started, startSaga } from "./saga.ts";
export { wake } from "./wake.ts";
