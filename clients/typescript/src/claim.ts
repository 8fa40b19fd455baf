import { single } from "./headers.ts";
import { checkKey } from "./keys.ts";
import type { Message } from "./message.ts";
import type { Run } from "./transaction.ts";

/** A message, its key, and the run under way. */
export interface Claim extends Run {
  message: Message;
  tenant: string;
  key: string | null;
  /** Whether the handler was called. */
  hasRun?: boolean;
}

/** A message that no handler can be run for, and the claim as far as it can be read. */
export class Unreadable extends Error {
  readonly claim: Claim;
  constructor(claim: Claim, reason: string) {
    super(reason);
    this.claim = claim;
  }
}

export function keyOf(message: Message, names = ["Idempotency-Key", "x-idempotency-key"]): string {
  for (const name of names) {
    const key = single(message.headers, name);
    if (key !== undefined) {
      return checkKey(key);
    }
  }
  throw new RangeError(`no key: none of the headers ${names.join(", ")} is present`);
}

export function tenantOf(message: Message, header: string | undefined): string {
  if (header === undefined) {
    return "";
  }
  const tenant = single(message.headers, header) ?? "";
  if (tenant === "" || Buffer.byteLength(tenant) > 255 || /[\u0000-\u001f\u007f-\u009f]/.test(tenant)) {
    throw new RangeError(`tenant header ${header} is not 1 to 255 bytes without control characters`);
  }
  return tenant;
}
