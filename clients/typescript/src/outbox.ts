import type { ClientBase } from "pg";

import { query, quoted } from "./wire.ts";

/** A message to be enqueued. */
export interface Outgoing {
  key: string;
  subject: string;
  /** Sent unchanged if it is a Uint8Array, else as JSON. */
  payload: unknown;
  headers?: Record<string, string>;
  /** Optional. Messages that share one stay in order. */
  orderingKey?: string;
  /** The PostgreSQL schema with the tables. Default: `oncebox`. */
  schema?: string;
}

/**
 * Enqueues a message in the caller's transaction; a relay publishes it if and only if that commits.
 *
 * Returns the message's id, or null when the same message is already enqueued; the same key with
 * another subject or payload is an error with `code` OB001.
 */
export async function enqueue(client: ClientBase, message: Outgoing): Promise<bigint | null> {
  const { payload, headers = {}, orderingKey = null, schema = "oncebox" } = message;
  const bytes = payload instanceof Uint8Array ? payload : Buffer.from(JSON.stringify(payload));
  const [[id = null] = []] = await query(
    client,
    `SELECT ${quoted(schema)}.enqueue($1, $2, $3, $4::jsonb, $5)::text`,
    [message.key, message.subject, bytes, JSON.stringify(headers), orderingKey],
  );
  return id === null ? null : BigInt(id);
}
