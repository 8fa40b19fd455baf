import type { Run } from "./database.ts";
import { single } from "./headers.ts";
import { checkKey } from "./keys.ts";
import type { Message } from "./message.ts";

/** A message, its key, and the run under way. */
export interface Claim extends Run {
  message: Message;
  tenant: string;
  /** Null if it has none. */
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

/** The claim of a message; throws `Unreadable`. */
export function claimed(message: Message, { tenantHeader, keyHeaders }: { tenantHeader?: string; keyHeaders?: string[] }): Claim {
  try {
    return { message, tenant: tenantOf(message, tenantHeader), key: keyOf(message, keyHeaders) };
  } catch (problem) {
    throw new Unreadable({ message, tenant: "", key: null }, (problem as Error).message);
  }
}

function keyOf(message: Message, names = ["Idempotency-Key", "x-idempotency-key"]): string {
  for (const name of names) {
    const key = single(message.headers, name);
    if (key !== undefined) {
      return checkKey(key);
    }
  }
  throw new RangeError(`no key: none of the headers ${names.join(", ")} is present`);
}

function tenantOf(message: Message, header: string | undefined): string {
  if (header === undefined) {
    return "";
  }
  const tenant = single(message.headers, header) ?? "";
  if (!isTenant(tenant)) {
    throw new RangeError(`tenant header ${header} is not 1 to 255 bytes without control characters`);
  }
  return tenant;
}

export function isTenant(tenant: string): boolean {
  return tenant !== "" && Buffer.byteLength(tenant) <= 255 && !/[\u0000-\u001f\u007f-\u009f]/.test(tenant);
}
