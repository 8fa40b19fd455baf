import type { JetStreamClient } from "@nats-io/jetstream";

import { Batch, type SetHandler } from "./batch.ts";
import { Durable } from "./durable.ts";
import type { Inbox } from "./inbox.ts";
import type { LeasedHandler } from "./leased.ts";
import type { Handler } from "./message.ts";
import { heldMax, Pump } from "./pump.ts";
import { line } from "./errors.ts";

export { received } from "./pump.ts";

/** Optional settings of a consumer. */
export interface ConsumerOptions {
  /** Limits the consumer to some subjects. Default: every subject of the stream. */
  filterSubject?: string;
  /**
   * The order of messages that share an ordering key. `process`: each process handles those it
   * receives one at a time in stream order, retries included; if a process dies, its messages come
   * after newer ones. `strict`: stream order through crashes, too; one process consumes, the others
   * stand by, each with a connection of the pool. Default: `process`.
   */
  order?: "process" | "strict";
  /**
   * In strict order, how many later messages of a dead letter's ordering key may wait in the database until it is
   * retried or discarded, 1 to 100,000; the next ones stay in the stream. Default: 1,000; null: all overtake it.
   */
  behindDead?: number | null;
  /** Where a consumer begins that the server does not have yet. Default: `all`, with the stream's first message. */
  start?: "all" | "now" | Date;
  /**
   * The most messages, of those that are there, that share a transaction. Default: 1; at most 1000.
   */
  batch?: number;
  /** How many transactions there are at once. Default: 16, or 4 of batches. */
  concurrency?: number;
  /** After how long the messages of a process that died are delivered again. Default: 30 seconds. */
  ackWaitMs?: number;
  /** How long a drain waits for running handlers, and then as long as an inbox's step may take. Default: 30 seconds. */
  graceMs?: number;
  /** A larger payload is not fetched from the Object Store, and its message fails. Default: 64 MiB. */
  objectBytesMax?: number;
}

const DEFAULTS = { order: "process", behindDead: 1000, start: "all", ackWaitMs: 30_000, graceMs: 30_000, objectBytesMax: 64 << 20 } as const;

/** Runs an inbox on a durable JetStream consumer, which is created when it is missing. */
export class Consumer {
  readonly #jetstream: JetStreamClient;
  readonly #stream: string;
  readonly #durable: string;
  readonly #options: Required<Omit<ConsumerOptions, "filterSubject">> & ConsumerOptions;

  constructor(jetstream: JetStreamClient, stream: string, durable: string, options: ConsumerOptions = {}) {
    [this.#jetstream, this.#stream, this.#durable] = [jetstream, stream, durable];
    const batch = options.batch ?? 1;
    const concurrency = batch === 1 ? 16 : 4;
    this.#options = { ...DEFAULTS, batch, concurrency, ...options };
    const { order, start, behindDead } = this.#options;
    if (behindDead !== null && !(Number.isInteger(behindDead) && behindDead >= 1 && behindDead <= 100_000)) {
      throw new RangeError(`behindDead ${behindDead} is not 1 to 100000 messages, nor null`);
    }
    if (!(Number.isInteger(batch) && batch >= 1 && batch <= 1000)) {
      throw new RangeError(`a batch of ${batch} messages; the limit is 1 to 1000`);
    }
    if (!["process", "strict"].includes(order)) {
      throw new RangeError(`order ${JSON.stringify(order)} is neither "process" nor "strict"`);
    }
    if (start !== "all" && start !== "now" && !(start instanceof Date && !Number.isNaN(start.getTime()))) {
      throw new RangeError(`start ${String(start)} is neither "all" nor "now" nor a Date`);
    }
  }

  /**
   * Consumes until `stop` is aborted, or until SIGTERM or SIGINT if `stop` is left out, and then waits
   * for the running handlers. Throws when it cannot go on, or when handlers do not end in time.
   */
  async run<T>(inbox: Inbox<T>, handler: Handler<T> | LeasedHandler<T>, stop: AbortSignal = onSignals()): Promise<void> {
    await this.#run(new Batch(inbox, handler), stop);
  }

  /** As `run`, with a handler for all messages of a batch at once: see `batch` of the options. */
  async runSet<T>(inbox: Inbox<T>, handler: SetHandler<T>, stop: AbortSignal = onSignals()): Promise<void> {
    await this.#run(new Batch(inbox, undefined, handler), stop);
  }

  async #run<T>(batch: Batch<T>, stop: AbortSignal): Promise<void> {
    const { filterSubject, start, ackWaitMs, order, ...limits } = this.#options;
    const [{ inbox }, isStrict] = [batch, order === "strict"];
    const connections = limits.concurrency + (isStrict ? 1 : 0);
    if (batch.isLeased && limits.batch > 1) {
      throw new RangeError(`a batch of ${limits.batch} messages shares a transaction, and a handler under a lease has none: leave \`batch\` out`);
    }
    inbox.check(isStrict ? 2 : 1, connections);
    const name = `consumer ${this.#durable} of stream ${this.#stream}`;
    const what = [`scope ${inbox.scope}`, `filter ${filterSubject ?? ">"}`, `order ${order}`];
    inbox.options.log.info(`${name} starts: ${what.join(", ")}, concurrency ${limits.concurrency}, batch ${limits.batch}`);
    // Those of all processes together; those whose next attempt waits count, too.
    const ackPending = Math.max(1000, 16 * heldMax(limits));
    const wanted = { stream: this.#stream, durable: this.#durable, filterSubject, ackWaitMs, ackPending, start };
    try {
      const pump = new Pump(this.#jetstream, new Durable(this.#jetstream, wanted), batch, { ...limits, isStrict }, stop);
      await pump.run(ackWaitMs);
      const ends = Object.entries(pump.ends).map(([answer, count]) => `${answer} ${count}`);
      inbox.options.log.info(`${name} has finished: ${ends.join(", ") || "no messages"}`);
    } catch (error) {
      // If the user does not await the promise, only this line says it.
      inbox.options.log.warn(`${name} has ended, and consumes no more: ${line(error)}`);
      throw error;
    }
  }
}

function onSignals(): AbortSignal {
  const stop = new AbortController();
  (["SIGTERM", "SIGINT"] as const).forEach((name) => process.once(name, () => stop.abort()));
  return stop.signal;
}
