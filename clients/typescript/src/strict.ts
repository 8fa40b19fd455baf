/**
 * Strict order: one process consumes, and goes on where everything before is settled.
 *
 * JetStream delivers the messages of a dead process again after `ack_wait`, and newer ones meanwhile. So the process
 * that takes over deletes the durable consumer, and creates it again at the acknowledgement floor: then all that is
 * not settled comes in the order of the stream. The same is done when a delivery went missing on the way, which
 * shows as a gap in the consumer's sequence.
 *
 * That suffices even when two processes overlap for a moment: each passes a message only once it is committed, by
 * itself or, as a copy, by the other. The right to consume only keeps them from doing the work twice.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { DeliverPolicy, type Consumer as Source, type ConsumerInfo, RetentionPolicy } from "@nats-io/jetstream";
import type { PoolClient } from "pg";

import { type Durable, Refused } from "./durable.ts";
import type { Inbox } from "./inbox.ts";
import { step } from "./database.ts";
import { close, query } from "./wire.ts";

/** How long a statement may take with which a leader sees whether it still leads. */
const ANSWER_MS = 3000;
const STANDBY_MS = 500;
const LOOK_MS = 1000;

/** Where a consumer in strict order goes on. */
export interface Place {
  /** The consumer's sequence of the last delivery. */
  delivered: number;
  /** How many deliveries the next message had under earlier consumers. */
  firstDeliveries: number;
  /** Up to here in the stream, messages were delivered by earlier consumers. */
  deliveredBefore: number;
}

/** The right to consume: a transaction of its own connection, which stays open. */
export class Lead {
  readonly #client: PoolClient;
  readonly #lost = new AbortController();
  #hasEnded = false;

  private constructor(client: PoolClient) {
    this.#client = client;
    client.on("error", () => this.end());
  }

  /** Aborted when another process may consume. */
  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  /** Waits until no other process consumes; undefined once `stop` is aborted. */
  static async won(inbox: Inbox<any>, { wanted: { stream, durable } }: Durable, stop: AbortSignal): Promise<Lead | undefined> {
    const text = `SELECT ${inbox.database.of("lead_consumer")}($1, $2, $3)::text`;
    const lead = new Lead(await inbox.database.connect());
    const over = AbortSignal.any([stop, lead.lost]);
    try {
      await lead.#ask("BEGIN ISOLATION LEVEL READ COMMITTED");
      for (let isStandby = false; !over.aborted; isStandby = true) {
        const [[isLeader] = []] = await lead.#ask(text, [inbox.scope, stream, durable]);
        if (isLeader === "true") {
          inbox.options.log.info(`consumer ${durable}: this process consumes, in strict order`);
          void lead.#watch();
          return lead;
        }
        if (!isStandby) {
          inbox.options.log.info(`consumer ${durable}: stands by while another process consumes, in strict order`);
        }
        await sleep(STANDBY_MS, undefined, { signal: over }).catch(() => {});
      }
      lead.end();
      return undefined;
    } catch (error) {
      lead.end();
      throw error;
    }
  }

  /** Gives the right up, at once. */
  end(): void {
    if (!this.#hasEnded) {
      this.#hasEnded = true;
      this.#lost.abort();
      close(this.#client);
      this.#client.release(true);
    }
  }

  async #watch(): Promise<void> {
    try {
      while (!this.#hasEnded) {
        await this.#ask("SELECT");
        await sleep(LOOK_MS, undefined, { ref: false, signal: this.lost });
      }
    } catch {
      this.end();
    }
  }

  #ask(text: string, values: unknown[] = []) {
    return step(this.#client, ANSWER_MS, () => query(this.#client, text, values));
  }
}

/** Continues after the acknowledgement floor. `tookOver`: this process leads since just now. */
export async function continued(inbox: Inbox<any>, durable: Durable, tookOver: boolean): Promise<[Source, Place]> {
  const { stream, durable: name } = durable.wanted;
  const manager = await durable.manager();
  const found = await durable.info(manager);
  const { config, state, created } = await durable.stream(manager);
  if (config.retention === RetentionPolicy.Interest) {
    const why = "interest retention, which deletes messages when a consumer is created again";
    throw new Refused(`stream ${stream} has ${why}: strict order needs limits or work-queue retention`);
  }
  // A takeover that ended before anything was delivered does not know which messages were delivered
  // before it.
  const isUntouched = found?.delivered.consumer_seq === 0 && found.config.deliver_policy === DeliverPolicy.StartSequence;
  if (found !== undefined && !isUntouched && found.num_ack_pending === 0 && found.delivered.stream_seq <= state.last_seq) {
    const place = { delivered: found.delivered.consumer_seq, firstDeliveries: 0, deliveredBefore: 0 };
    return [await durable.open(), place];
  }
  const next = found ? nextSequence(found, state.last_seq)
    : Number(await inbox.database.ask("consumer_place", { stream, durable: name, stream_created: created }));
  if (next === 0) {
    return [await durable.open(), { delivered: 0, firstDeliveries: 0, deliveredBefore: 0 }];
  }
  const place = { stream, durable: name, stream_created: created, next_sequence: String(next), took_over: tookOver };
  const takeovers = await inbox.database.ask("continue_consumer", place);
  if (found !== undefined) {
    await manager.consumers.delete(stream, name);
  }
  const before = found === undefined || isUntouched ? state.last_seq : found.delivered.stream_seq;
  // A settled message is gone from a work queue, which allows no other start.
  const isQueue = config.retention === RetentionPolicy.Workqueue;
  const begin = isQueue ? {} : { deliver_policy: DeliverPolicy.StartSequence, opt_start_seq: next };
  const source = await durable.create(manager, begin);
  inbox.options.log.info(`consumer ${name}: goes on in order at sequence ${next} of stream ${stream}`);
  return [source, { delivered: 0, firstDeliveries: Number(takeovers), deliveredBefore: before }];
}

/** Never beyond the stream's end: after a loss there, new messages get the numbers of the lost ones. */
export function nextSequence({ ack_floor, config }: ConsumerInfo, last: number): number {
  // nats-server 2.9 reports a floor of 0 until the first message after the start is settled.
  const start = config.deliver_policy === DeliverPolicy.StartSequence ? config.opt_start_seq! : 1;
  return Math.min(Math.max(ack_floor.stream_seq + 1, start), last + 1);
}

/** How often a delivery's message was delivered before; throws if a delivery before it is missing. */
export function checked(place: Place, sequence: number, streamSequence: number): number {
  if (sequence !== place.delivered + 1) {
    throw new Error(`deliveries ${place.delivered + 1} to ${sequence - 1} went elsewhere`);
  }
  const before = Math.max(place.firstDeliveries, streamSequence <= place.deliveredBefore ? 1 : 0);
  [place.delivered, place.firstDeliveries] = [sequence, 0];
  return before;
}
