/** Parts of messages, replies and errors as PostgreSQL stores them. */
import { hash } from "node:crypto";

import { Dead, type Message, Reject } from "./message.ts";

/** A stored reply has at most so many bytes. */
const REPLY_MAX = 1 << 20;

/** The message's id in the outbox, which a relay sends in a header. */
export function messageId(message: Message): string | null {
  return /^[0-9]{1,18}$/.exec(message.headers["oncebox-id"] ?? "")?.[0] ?? null;
}

export function origin({ origin }: Message): [string, string, string] | [null, null, null] {
  return origin ? [origin.stream, String(origin.sequence), origin.storedAt] : [null, null, null];
}

export function headers({ headers }: Message): string {
  const pairs = Object.entries(headers).map(([name, value]) => [printable(name), printable(value)]);
  return JSON.stringify(Object.fromEntries(pairs));
}

export function json(payload: Uint8Array): any {
  return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(payload));
}

export function sha256(parts: Uint8Array[]): Buffer {
  return hash("sha256", Buffer.concat(parts), "buffer");
}

/** The reply as JSON. One that has none, or is too long, would be so at each attempt: the message is given up. */
function stringified(reply: unknown): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(reply);
  } catch (error) {
    throw new Dead(`the handler's reply has no JSON: ${line(error)}`);
  }
  if (text === undefined) {
    throw new Dead(`the handler's reply has no JSON: it is a ${typeof reply}`);
  }
  const length = Buffer.byteLength(text);
  if (length > REPLY_MAX) {
    throw new Dead(`the handler's reply is ${length} bytes of JSON; the limit is ${REPLY_MAX} bytes (1 MiB)`);
  }
  return text;
}

/** The status of a key whose handler has returned this, the reply, and its JSON. */
export function ended(result: unknown): { status: string; reply: unknown; text: string } {
  const reply = (result instanceof Reject ? result.reply : result) ?? null;
  return { status: result instanceof Reject ? "rejected" : "completed", reply, text: stringified(reply) };
}

/** Tells payloads of one key apart, as the function inbox_fingerprint() does. */
export function fingerprint({ payload }: Message): Buffer {
  return sha256([Buffer.from("oncebox payload 1\0"), payload]);
}

/** The SQLSTATE of an error, which may be anything that a handler throws. */
export function sqlState(error: unknown): unknown {
  try {
    return (error as { code?: unknown } | null)?.code;
  } catch {
    return undefined;
  }
}

/** Whether PostgreSQL has answered with this error, and the transaction has not committed. */
export function isOfPostgres(error: unknown): boolean {
  return typeof (error as { severity?: unknown } | null)?.severity === "string";
}

/** A text that PostgreSQL can store: well-formed, without NUL. */
export function printable(text: string): string {
  return text.toWellFormed().replaceAll("\0", "\ufffd");
}

/** The first line of an error's name and message, which it may fail to say. */
export function line(error: unknown): string {
  try {
    const { name, message } = error instanceof Error ? error : { name: typeof error, message: String(error) };
    return `${name}: ${message || (error as { code?: string }).code}`.split("\n", 1)[0] ?? name;
  } catch {
    return `${typeof error}: its text cannot be read`;
  }
}
