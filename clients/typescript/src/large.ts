import { createHash } from "node:crypto";
import type { JetStreamClient, JetStreamManager, MsgRequest } from "@nats-io/jetstream";

import { apiCode } from "./durable.ts";
import type { Message } from "./message.ts";

/** The payload cannot be had: its object is missing, or is not the one that the message names. A failed attempt. */
export class Wrong extends Error {
  override readonly name = "Wrong";
}

/** Whether the payload lies in a bucket. */
export function isElsewhere({ headers, payload }: Message): boolean {
  return headers["oncebox-object"] !== undefined && payload.length === 0;
}

/**
 * The message with its payload, which may lie in a bucket of the NATS Object Store. Throws `Wrong`; any
 * other error says that NATS does not answer now.
 */
export async function whole(jetstream: JetStreamClient, message: Message, bytesMax: number): Promise<Message> {
  const { headers } = message;
  if (!isElsewhere(message)) {
    return message;
  }
  const place = headers["oncebox-object"]!;
  const [, bucket, name] = /^([A-Za-z0-9_-]+)\/(.+)$/.exec(place) ?? [];
  const [size, digest] = [headers["oncebox-object-bytes"] ?? "", headers["oncebox-object-digest"]];
  if (!bucket || !name || !/^[0-9]{1,15}$/.test(size) || !digest) {
    throw new Wrong("the headers that name the object of the payload are incomplete");
  }
  if (Number(size) > bytesMax) {
    throw new Wrong(`object ${place} has ${size} bytes, and objectBytesMax allows ${bytesMax}`);
  }
  const payload = await read(await jetstream.jetstreamManager(), bucket, name, Number(size));
  if (`SHA-256=${urlSafe(createHash("sha256").update(payload).digest())}` !== digest) {
    throw new Wrong(`object ${place} is not the one that the message names`);
  }
  return { ...message, payload };
}

/** Chunk by chunk, and so each answer is small, and one that is missing is known at once. */
async function read(manager: JetStreamManager, bucket: string, name: string, size: number): Promise<Uint8Array> {
  const query = { last_by_subj: `$O.${bucket}.M.${urlSafe(Buffer.from(name))}` };
  let nuid: unknown;
  const described = await stored(manager, bucket, name, query);
  try {
    nuid = described.json<{ nuid: unknown }>().nuid;
  } catch {
    throw new Wrong(`object ${bucket}/${name} has no readable description`);
  }
  const chunks: Uint8Array[] = [];
  for (let [length, seq] = [0, 1]; length < size; ) {
    // The server takes this question here as well; the type has it for another API only.
    const next = { seq, next_by_subj: `$O.${bucket}.C.${nuid}` } as MsgRequest;
    const chunk = await stored(manager, bucket, name, next);
    if (chunk.data.length === 0) {
      break;
    }
    chunks.push(chunk.data);
    [length, seq] = [length + chunk.data.length, chunk.seq + 1];
  }
  return Buffer.concat(chunks);
}

async function stored(manager: JetStreamManager, bucket: string, name: string, query: MsgRequest) {
  const found = await manager.streams.getMessage(`OBJ_${bucket}`, query).catch((error: unknown) => {
    if (apiCode(error) !== undefined && (error as { status?: number }).status === 404) {
      return null;
    }
    throw error;
  });
  if (found === null) {
    throw new Wrong(`object ${bucket}/${name} is not there, or not all of it`);
  }
  return found;
}

/** Base64 with padding, as names of objects and digests have it. */
function urlSafe(bytes: Buffer): string {
  return bytes.toString("base64").replaceAll("+", "-").replaceAll("/", "_");
}
