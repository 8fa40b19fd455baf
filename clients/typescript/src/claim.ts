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
