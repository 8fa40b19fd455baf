import { rowsOf, type Transaction } from "./library.ts";
import { withContext } from "./spans.ts";
import { quoted } from "./wire.ts";

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
 * The id is a bigint, which `JSON.stringify` refuses: put `String(id)` into a response.
 */
export async function enqueue<T>(transaction: Transaction, message: Outgoing<T>): Promise<bigint | null> {
  const { headers = {}, orderingKey = null, notBefore, schema = "oncebox" } = message;
  const values: unknown[] = [message.key, message.subject, toBytes(message.payload), JSON.stringify(withContext(headers)), orderingKey];
  // Texts, which libraries do not convert as they convert times and JSON.
  const named = "key => $1::text, subject => $2::text, payload => $3::bytea, headers => $4::text::jsonb, ordering_key => $5::text";
  const call = notBefore === undefined ? `enqueue(${named})` : `enqueue_at(${named}, not_before => $6::text::timestamptz)`;
  if (notBefore !== undefined) {
    values.push(notBefore.toISOString());
  }
  const [[id = null] = []] = await rowsOf(transaction, `SELECT ${quoted(schema)}.${call}::text AS id`, values);
  return id === null ? null : BigInt(id);
}

/**
 * Enqueues many messages in the caller's transaction with one statement, up to 10,000, of one
 * schema and without `notBefore`. Returns the result of `enqueue` for each; it fails as a whole.
 */
export async function enqueueAll(transaction: Transaction, messages: Omit<Outgoing, "notBefore" | "schema">[], schema = "oncebox"): Promise<(bigint | null)[]> {
  const rows = messages.map(({ key, subject, payload, headers = {}, orderingKey = null }) => ({
    ...{ key, subject, headers: withContext(headers), ordering_key: orderingKey },
    payload: toBytes(payload).toString("hex"),
  }));
  // One parameter: libraries differ in arrays.
  const list = (what: string) => `array_agg(${what} ORDER BY place)`;
  const text = `SELECT e.id::text FROM (
      SELECT ${list("m ->> 'key'")} AS keys, ${list("m ->> 'subject'")} AS subjects, ${list("decode(m ->> 'payload', 'hex')")} AS payloads,
        ${list("m -> 'headers'")} AS headers, ${list("m ->> 'ordering_key'")} AS ordering_keys
      FROM jsonb_array_elements($1::text::jsonb) WITH ORDINALITY AS given (m, place)
    ) AS all_of, ${quoted(schema)}.enqueue_all(keys, subjects, payloads, headers, ordering_keys) WITH ORDINALITY AS e (key, id, place)
    ORDER BY e.place`;
  const ids = messages.length === 0 ? [] : await rowsOf(transaction, text, [JSON.stringify(rows)]);
  return ids.map(([id]) => (id == null ? null : BigInt(id)));
}

/** Gives a delayed message up in this transaction; false when no message of this key waits. */
export async function cancelDelayed(transaction: Transaction, key: string, schema = "oncebox"): Promise<boolean> {
  const [[isCancelled] = []] = await rowsOf(transaction, `SELECT ${quoted(schema)}.cancel_delayed($1::text)::text AS cancelled`, [key]);
  return isCancelled === "true";
}

function toBytes(payload: unknown): Buffer {
  return payload instanceof Uint8Array ? Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength) : toJson(payload);
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
