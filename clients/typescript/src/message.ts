import type { Pool, PoolClient } from "pg";

/** Tells the classes below, of which a program with two copies of this package has two. */
export const KIND: unique symbol = Symbol.for("oncebox") as never;

/** The place of a message in a stream. */
export interface Origin {
  stream: string;
  sequence: number;
  /** With microseconds, as PostgreSQL has them: `2026-11-23T13:00:00.000001Z`. */
  storedAt: string;
}

/** A message as it arrived. Names of headers are in lower case; different values of one are lines of its text. */
export interface Message {
  subject: string;
  payload: Uint8Array;
  headers: Record<string, string>;
  /** The headers with their names and values as they came, for a dead letter; absent: `headers` has them. */
  sentHeaders?: Record<string, string[]>;
  /** Where the message is stored; absent for a message that is in no stream. */
  origin?: Origin;
  /** Counts from 1. */
  deliveries?: number;
}

/**
 * The context of a handler, besides the decoded payload: above all the transaction that it writes
 * through.
 */
export interface Context {
  client: PoolClient;
  /** A pool whose every connection is `client`, for libraries that want a pool. */
  pool: Pool;
  key: string;
  tenant: string;
  message: Message;
  /** That of the inbox. */
  scope?: string;
  /** Aborted when the handler takes longer than it may. */
  signal: AbortSignal;
}

/** Handles one message. Its result is stored with the key, and copies are answered with it. */
export type Handler<T> = (cx: Context, data: T) => Promise<unknown>;

/** Returned, or thrown, by a handler that rejects the message for good: its writes are committed, copies get this reply. */
export class Reject {
  readonly [KIND] = "Reject";
  readonly reply: unknown;
  constructor(reply?: unknown) {
    this.reply = reply;
  }
}

/** Thrown by a handler to roll back, give the message up and record it as a dead letter. */
export class Dead extends Error {
  readonly [KIND] = "Dead";
  override readonly name = "Dead";
}

/**
 * Thrown by a handler to roll back, and to be run again after this number of milliseconds, a day at
 * most.
 */
export class RetryAfter extends Error {
  readonly [KIND] = "RetryAfter";
  override readonly name = "RetryAfter";
  readonly ms: number;
  /** Throws unless `ms` is a number of at least 0. */
  constructor(ms: number) {
    super(`the handler asked for a retry after ${pause(ms)} ms`);
    this.ms = ms;
  }
}

/**
 * Thrown by a handler that cannot deal with a message now, which is not the message's fault: it is
 * rolled back and run again after a number of milliseconds, 100 to an hour. That is no attempt, for
 * `snoozeMaxMs` at most.
 */
export class Snooze extends Error {
  readonly [KIND] = "Snooze";
  override readonly name = "Snooze";
  readonly ms: number;
  /** Throws unless `ms` is a number of at least 0. The reason is for operators. */
  constructor(ms: number, reason: string) {
    super(reason);
    this.ms = Math.min(Math.max(pause(ms), 100), 3_600_000);
  }
}

function pause(ms: number): number {
  if (typeof ms !== "number" || !(ms >= 0)) {
    throw new RangeError(`a retry after ${ms} ms: that is no number of at least 0`);
  }
  return ms;
}

/**
 * The result of running a message. All but `retry`, `snoozed`, `in_flight` and `in_line` are final,
 * and committed; one that is `in_line` waits in the database until the dead letter of its ordering
 * key is retried or discarded.
 */
export interface Verdict {
  name: "handled" | "replayed" | "rejected" | "dead" | "mismatch" | "in_flight" | "retry" | "snoozed" | "in_line";
  /** The handler's reply, also when an earlier run gave it. */
  reply?: unknown;
  reason?: string;
  /** Milliseconds until the next run. */
  after: number;
}
