import type { ClientBase } from "pg";

import { withContext } from "./spans.ts";
import { query, quoted } from "./wire.ts";

/** A message to be enqueued. */
export interface Outgoing<T = unknown> {
  key: string;
  subject: string;
  /** Sent unchanged if it is a Uint8Array, else as JSON. */
  payload: T;
  headers?: Record<string, string>;
  /** Optional. Messages that share one stay in order. */
  orderingKey?: string;
  /** The message is not sent before this time of the database's clock. */
  notBefore?: Date;
  /** The PostgreSQL schema with the tables. Default: `oncebox`. */
  schema?: string;
}

/**
 * Enqueues a message in the caller's transaction; a relay publishes it if and only if that commits.
 *
 * Returns the message's id, or null when the same message is already enqueued; the same key with
 * another subject or payload is an error with `code` OB001. A payload that has no JSON is a TypeError.
 */
export async function enqueue<T>(client: ClientBase, message: Outgoing<T>): Promise<bigint | null> {
  const { payload, headers = {}, orderingKey = null, notBefore, schema = "oncebox" } = message;
  const bytes = payload instanceof Uint8Array ? payload : toJson(payload);
  const values: unknown[] = [message.key, message.subject, bytes, JSON.stringify(withContext(headers)), orderingKey];
  const named = "key => $1, subject => $2, payload => $3, headers => $4::jsonb, ordering_key => $5";
  const call = notBefore === undefined ? `enqueue(${named})` : `enqueue_at(${named}, not_before => $6::timestamptz)`;
  if (notBefore !== undefined) {
    values.push(notBefore.toISOString());
  }
  const [[id = null] = []] = await query(client, `SELECT ${quoted(schema)}.${call}::text`, values);
  return id === null ? null : BigInt(id);
}

/** Gives a delayed message up in this transaction; false when no message of this key waits. */
export async function cancelDelayed(client: ClientBase, key: string, schema = "oncebox"): Promise<boolean> {
  const [[isCancelled] = []] = await query(client, `SELECT ${quoted(schema)}.cancel_delayed($1)::text`, [key]);
  return isCancelled === "true";
}

/** The JSON of a payload. `JSON.stringify` writes null for NaN, and {} for a Map: these are errors here. */
export function toJson(payload: unknown): Buffer {
  const text = JSON.stringify(payload, (name, value) => {
    const isLost = Number.isNaN(value) || Math.abs(value) === Infinity;
    if (typeof value === "number" ? isLost : value instanceof Map || value instanceof Set || value instanceof ArrayBuffer) {
      throw new TypeError(`the payload has no JSON: ${name || "it"} is ${typeof value === "number" ? value : `a ${value.constructor.name}`}`);
    }
    return value;
  });
  if (text === undefined) {
    throw new TypeError(`the payload has no JSON: it is a ${typeof payload}`);
  }
  return Buffer.from(text);
}
