/**
 * Copies: messages whose keys have ended. While they come they are looked up together, before a worker has them.
 *
 * A copy needs no transaction and no handler, only to be acknowledged. A first delivery must not pay for that:
 * messages are looked up that were delivered before, and those that follow a copy, as long as half of them are
 * copies.
 */
import { claimed } from "./claim.ts";
import type { Inbox } from "./inbox.ts";
import { isElsewhere } from "./large.ts";
import type { Message } from "./message.ts";
import { fingerprint } from "./text.ts";

/** How many are looked up at once, and how many wait for it. */
export const MOST = 256;
/** Longer they do not wait for a connection: then the workers have them all. */
const WAIT_MS = 1000;

/** Stands before a queue: `settle` acknowledges a copy, `push` takes any other message. */
export class Copies<D extends { given: Message }> {
  readonly #inbox: Inbox<any>;
  readonly #settle: (delivery: D, name: "replayed" | "rejected") => void;
  readonly #push: (delivery: D) => void;
  #waiting: D[] = [];
  #isLooking = false;
  areExpected = false;

  constructor(inbox: Inbox<any>, settle: (delivery: D, name: "replayed" | "rejected") => void, push: (delivery: D) => void) {
    [this.#inbox, this.#settle, this.#push] = [inbox, settle, push];
  }

  get waiting(): readonly D[] {
    return this.#waiting;
  }

  /** Looks the message up, if it may be a copy or comes after such a one. */
  take(delivery: D): void {
    if (!this.areExpected && this.#waiting.length === 0 && delivery.given.deliveries! < 2) {
      this.#push(delivery);
      return;
    }
    this.#waiting.push(delivery);
    if (!this.#isLooking) {
      void this.#look();
    }
  }

  /** Takes out all that wait. */
  drain(): D[] {
    const drained = this.#waiting;
    this.#waiting = [];
    return drained;
  }

  async #look(): Promise<void> {
    this.#isLooking = true;
    while (this.#waiting.length > 0) {
      const waiting = this.#waiting;
      const group = waiting.slice(0, MOST);
      const answers = await this.#answers(group.map(({ given }) => given));
      if (waiting !== this.#waiting) {
        continue; // they were taken out
      }
      waiting.splice(0, group.length);
      group.forEach((delivery, n) => (answers[n] === "" ? this.#push(delivery) : this.#settle(delivery, answers[n] as "replayed")));
      this.areExpected = 2 * answers.filter((name) => name !== "").length >= group.length;
    }
    this.#isLooking = false;
  }

  /** An empty answer means that the message is to be claimed. */
  async #answers(messages: Message[]): Promise<string[]> {
    const answers = messages.map(() => "");
    const claims = messages.flatMap((message, place) => {
      try {
        // The payload of one that is elsewhere is not known.
        return isElsewhere(message) ? [] : [{ ...claimed(message, this.#inbox.options), place }];
      } catch {
        return []; // it has no key
      }
    });
    if (claims.length === 0) {
      return answers;
    }
    const { database, scope } = this.#inbox;
    const text = `SELECT array_to_string(${database.of("look_up_copies")}($1, $2::text[], $3::text[], $4::bytea[]), ',', '')`;
    const values = [scope, claims.map(({ tenant }) => tenant), claims.map(({ key }) => key), claims.map(({ message }) => fingerprint(message))];
    // Where the look fails, the claim tells why.
    const rows = await database.rowsSoon(WAIT_MS, text, values).catch(() => []);
    rows[0]?.[0]?.split(",").forEach((name, n) => (answers[claims[n]!.place] = name));
    return answers;
  }
}
