/**
 * Strict order after a dead letter: later messages of its ordering key wait in the database, and
 * follow it.
 *
 * PostgreSQL decides which ones wait. A process only remembers whether any line of its scope may be stopped, and asks
 * nothing otherwise: inbox/src/inbox/lines.rs says why it never misses one.
 */
import { claimed, Unreadable } from "./claim.ts";
import { collected } from "./headers.ts";
import type { Inbox } from "./inbox.ts";
import type { Message, Verdict } from "./message.ts";
import { headers, place } from "./text.ts";

/** The place of a message in a line, and since when it is there. */
export interface InLine {
  id: string;
  since: string;
}

/** The stopped lines of an inbox. */
export class Lines {
  readonly #inbox: Inbox<any>;
  /** How many messages of each line may wait; null when all overtake. */
  readonly #behindMax: number | null;
  /** How many dead letters were seen, and how many when no line was stopped. */
  #seen = 0;
  #free = 0;
  #isFull = false;

  constructor(inbox: Inbox<any>, behindMax: number | null) {
    [this.#inbox, this.#behindMax] = [inbox, behindMax];
  }

  /** Whether a line may be stopped. */
  get areStopped(): boolean {
    return this.#seen > this.#free;
  }

  /** A message is a dead letter: that is committed. */
  noteDead(): void {
    this.#seen++;
  }

  /** Called when the place in the stream is known: each message that died before is known to the database then. */
  async follow(): Promise<void> {
    const { database, scope } = this.#inbox;
    if ((await database.ask("follow_lines", { scope, behind_max: this.#behindMax })) === "true") {
      this.noteDead();
    }
  }

  /**
   * Has a message wait until the dead letter of its ordering key is retried or discarded; undefined
   * when it is to be claimed.
   */
  async wait(message: Message): Promise<Verdict | undefined> {
    if (this.#behindMax === null || !this.areStopped || message.headers["oncebox-ordering-key"] === undefined) {
      return undefined;
    }
    const { database, scope, options } = this.#inbox;
    let claim;
    try {
      claim = claimed(message, options);
    } catch (problem) {
      if (problem instanceof Unreadable) {
        return undefined;
      }
      throw problem;
    }
    const { key, tenant } = claim;
    const given = { payload: message.payload, subject: message.subject, headers: headers(message), ...place(message) };
    const answer = await database.ask("wait_in_line", { scope, key, tenant, ...given });
    if (answer === "free") {
      return undefined;
    }
    if (answer === "behind") {
      return { name: "in_line", after: 0 };
    }
    if (!this.#isFull) {
      const what = `as many messages as may wait behind a dead letter of ordering key ${message.headers["oncebox-ordering-key"]}`;
      const then = "the next ones wait in the stream, and hold up the consumer when it holds no others";
      options.log.warn(`scope ${scope}, key ${key}: ${what}: ${then}: retry or discard the dead letter (logged once)`);
      this.#isFull = true;
    }
    return { name: "in_flight", after: options.backoffMs[1] };
  }

  /** The next message above this id that is to run from a line. */
  async next(stream: string, after: string): Promise<[Message, InLine] | undefined> {
    const { database, scope } = this.#inbox;
    const seen = this.#seen;
    const columns = `id::text, since::text, subject, headers::text, encode(payload, 'hex'), stream_sequence::text,
      to_char(stored_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`;
    const [row] = await database.rows(`SELECT ${columns} FROM ${database.of("next_in_line")}($1, $2, $3::bigint)`, [scope, stream, after]);
    if (row === undefined) {
      [this.#free, this.#isFull] = [Math.max(this.#free, seen), false];
      return undefined;
    }
    if (row[0] === null) {
      return undefined;
    }
    const [id, since, subject, texts, payload, sequence, storedAt] = row as string[] as [string, string, string, string, string, string, string];
    const pairs = Object.entries(JSON.parse(texts) as Record<string, string | string[]>);
    const sentHeaders = Object.fromEntries(pairs.map(([name, values]) => [name, [values].flat()]));
    const origin = { stream, sequence: Number(sequence), storedAt };
    // It counts as delivered before: a run that ends its process is known then.
    const known = { headers: collected(Object.entries(sentHeaders)), sentHeaders, origin, deliveries: 2 };
    return [{ subject, payload: Buffer.from(payload, "hex"), ...known }, { id, since }];
  }

  /** Takes a message out of its line that has ended. */
  async end({ id, since }: InLine): Promise<void> {
    await this.#inbox.database.ask("end_in_line", { scope: this.#inbox.scope, id, since });
  }
}
