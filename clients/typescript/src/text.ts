/** Parts of messages, replies and errors as PostgreSQL stores them. */
import { hash } from "node:crypto";

import { isKind, line } from "./errors.ts";
import { Dead, type Message, type Reject, type Verdict } from "./message.ts";

/** The most bytes of a stored reply. */
const REPLY_MAX = 1 << 20;

/** The message's id in the outbox, which a relay sends in a header. */
export function messageId(message: Message): string | null {
  return /^[0-9]{1,18}$/.exec(message.headers["oncebox-id"] ?? "")?.[0] ?? null;
}

/** Where a message is stored, as arguments of functions. */
export function place({ origin }: Message): Record<"stream" | "stream_sequence" | "stored_at", string | null> {
  return { stream: origin?.stream ?? null, stream_sequence: origin ? String(origin.sequence) : null, stored_at: origin?.storedAt ?? null };
}

export function headers({ headers, sentHeaders }: Message): string {
  const pairs = Object.entries<string | string[]>(sentHeaders ?? headers).map(([name, several]) => {
    const values = [several].flat().map(printable);
    return [printable(name), values.length === 1 ? values[0] : values];
  });
  return JSON.stringify(Object.fromEntries(pairs));
}

export function json(payload: Uint8Array): any {
  return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(payload));
}

export function sha256(parts: Uint8Array[]): Buffer {
  return hash("sha256", Buffer.concat(parts), "buffer");
}

/**
 * A value as JSON. One that has none, or is too long, would be so at each attempt: the message is
 * given up.
 */
export function stringified(reply: unknown, what = "the handler's reply"): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(reply);
  } catch (error) {
    throw new Dead(`${what} has no JSON: ${line(error)}`);
  }
  if (text === undefined) {
    throw new Dead(`${what} has no JSON: it is a ${typeof reply}`);
  }
  const length = Buffer.byteLength(text);
  if (length > REPLY_MAX) {
    throw new Dead(`${what} is ${length} bytes of JSON; the limit is ${REPLY_MAX} bytes (1 MiB)`);
  }
  return text;
}

/**
 * How a key ends whose handler has returned this: the verdict, and its status and reply as they are
 * stored.
 */
export function ended(result: unknown): { verdict: Verdict; status: string; text: string } {
  const isReject = isKind(result, "Reject");
  const reply = (isReject ? (result as Reject).reply : result) ?? null;
  const verdict: Verdict = { name: isReject ? "rejected" : "handled", reply, after: 0 };
  return { verdict, status: isReject ? "rejected" : "completed", text: stringified(reply) };
}

/** Milliseconds as an interval of PostgreSQL. */
export function seconds(ms: number): string {
  return `${ms / 1000} seconds`;
}

/** Tells payloads of one key apart, as the function inbox_fingerprint() does. */
export function fingerprint({ payload }: Message): Buffer {
  return sha256([Buffer.from("oncebox payload 1\0"), payload]);
}

/** A text that PostgreSQL can store: well-formed, without NUL. */
export function printable(text: string): string {
  return text.toWellFormed().replaceAll("\0", "\ufffd");
}

/** Whether a pattern of NATS, in its tokens, has a subject. */
export function matches(pattern: string[], subject: string[]): boolean {
  if (pattern.at(-1) === ">") {
    return subject.length >= pattern.length && matches(pattern.slice(0, -1), subject.slice(0, pattern.length - 1));
  }
  return pattern.length === subject.length && pattern.every((wanted, n) => wanted === "*" || wanted === subject[n]);
}
