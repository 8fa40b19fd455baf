import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import {
  AckPolicy, JetStreamApiCodes, JetStreamApiError,
  type Consumer as Source, type JetStreamClient, type JsMsg,
} from "@nats-io/jetstream";

import { Batch, type SetHandler } from "./batch.ts";
import { collected } from "./headers.ts";
import type { Inbox } from "./inbox.ts";
import { isElsewhere, whole, Wrong } from "./large.ts";
import type { Verdict, Handler, Message } from "./message.ts";
import { line } from "./text.ts";

/** How long one pull request waits for a message; a drain may have to wait for it as long. */
const PULL_MS = 1000;
const NANOSECONDS = 1_000_000;

/** Optional settings of a consumer. */
export interface ConsumerOptions {
  /** Limits the consumer to some subjects. Default: every subject of the stream. */
  filterSubject?: string;
  /** Up to so many messages, of those that are there, share a transaction. Default: 1; at most 1000. */
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

/** Runs an inbox on a durable JetStream consumer, which is created when it is missing. */
export class Consumer {
  readonly #jetstream: JetStreamClient;
  readonly #stream: string;
  readonly #durable: string;
  readonly #options: Required<Omit<ConsumerOptions, "filterSubject">> & ConsumerOptions;

  constructor(jetstream: JetStreamClient, stream: string, durable: string, options: ConsumerOptions = {}) {
    [this.#jetstream, this.#stream, this.#durable] = [jetstream, stream, durable];
    const batch = options.batch ?? 1;
    if (!(Number.isInteger(batch) && batch >= 1 && batch <= 1000)) {
      throw new RangeError(`a batch of ${batch} messages; the limit is 1 to 1000`);
    }
    this.#options = { batch, concurrency: batch === 1 ? 16 : 4, ackWaitMs: 30_000, graceMs: 30_000, objectBytesMax: 64 << 20, ...options };
  }

  /**
   * Consumes until `stop` is aborted, or until SIGTERM or SIGINT if `stop` is left out, and then waits
   * for the running handlers. Throws when it cannot go on, or when handlers do not end in time.
   */
  async run<T>(inbox: Inbox<T>, handler: Handler<T>, stop: AbortSignal = onSignals()): Promise<void> {
    await this.#run(new Batch(inbox, handler), stop);
  }

  /** As `run`, with a handler for all messages of a batch at once: see `batch` of the options. */
  async runSet<T>(inbox: Inbox<T>, handler: SetHandler<T>, stop: AbortSignal = onSignals()): Promise<void> {
    await this.#run(new Batch(inbox, undefined, handler), stop);
  }

  async #run<T>(batch: Batch<T>, stop: AbortSignal): Promise<void> {
    const { inbox } = batch;
    const source = await this.#begin(inbox, stop);
    if (source === undefined) {
      return;
    }
    const ended = new AbortController();
    const stopped = AbortSignal.any([stop, ended.signal]);
    // A worker ends before the signal only with an error, and then all workers end.
    const work = () => this.#work(source, batch, stopped).finally(() => ended.abort());
    const workers = Promise.all(Array.from({ length: this.#options.concurrency }, work));
    await Promise.race([stopped.aborted || once(stopped, "abort"), workers]);
    // Nothing waits for handlers that are still running then; when the process ends, PostgreSQL
    // rolls them back.
    const late = sleep(this.#options.graceMs + inbox.options.stepTimeoutMs, undefined, { ref: false }).then(() => {
      throw new Error(`consumer ${this.#durable}: handlers go on after the grace of its drain`);
    });
    await Promise.race([workers, late]);
  }

  /** Registers the scope and finds or creates the consumer; tries again until both servers answer. */
  async #begin<T>(inbox: Inbox<T>, stop: AbortSignal): Promise<Source | undefined> {
    while (!stop.aborted) {
      try {
        await inbox.register();
        return await this.#create();
      } catch (error) {
        if (isRefused(error) || isClosed(error)) {
          throw error;
        }
        inbox.options.log.warn(`consumer ${this.#durable} cannot begin, will retry: ${line(error)}`);
        await pause(1000, stop);
      }
    }
    return undefined;
  }

  /** Finds or creates the consumer, and changes what would lose or withhold messages. */
  async #create(): Promise<Source> {
    const [stream, durable] = [this.#stream, this.#durable];
    const { filterSubject, concurrency, batch, ackWaitMs } = this.#options;
    // With a limit, JetStream would forget a message that has failed so often, before it is a dead letter.
    const wanted = { ack_policy: AckPolicy.Explicit, max_deliver: -1, filter_subject: filterSubject || undefined, headers_only: false };
    const manager = await this.#jetstream.jetstreamManager();
    try {
      const { config } = await manager.consumers.info(stream, durable);
      if (config.deliver_subject) {
        throw new RangeError(`consumer ${durable} of stream ${stream} pushes; delete it, or choose another name`);
      }
      const found = { max_deliver: -1, filter_subject: undefined, headers_only: false, ...config };
      const names = Object.keys(wanted) as (keyof typeof wanted)[];
      const hasMore = [config.filter_subjects, config.backoff].some((list) => (list ?? []).length > 0);
      if (hasMore || names.some((name) => found[name] !== wanted[name])) {
        await manager.consumers.update(stream, durable, { ...wanted, filter_subjects: undefined, backoff: undefined });
      }
    } catch (error) {
      if (!(error instanceof JetStreamApiError && error.code === JetStreamApiCodes.ConsumerNotFound)) {
        throw error;
      }
      const pending = Math.max(1000, 16 * concurrency * batch);
      const fresh = { durable_name: durable, ack_wait: ackWaitMs * NANOSECONDS, max_ack_pending: pending };
      await manager.consumers.add(stream, { ...fresh, ...wanted });
    }
    return await this.#jetstream.consumers.get(stream, durable);
  }

  /** Handles a batch at a time. While it does, more messages may arrive, for the next batch. */
  async #work<T>(source: Source, batch: Batch<T>, stop: AbortSignal): Promise<void> {
    const held = new Set<JsMsg>();
    const arrived: JsMsg[] = [];
    let [delay, reading, wake] = [0, undefined as Promise<void> | undefined, () => {}];
    const ackWait = ((await source.info(true)).config.ack_wait ?? 0) / NANOSECONDS || this.#options.ackWaitMs;
    // Tells JetStream that messages are in progress, so that they are not delivered again meanwhile.
    const heartbeat = setInterval(() => held.forEach((message) => tell(() => message.working())), ackWait / 3);
    const hold = (message: JsMsg) => {
      held.add(message);
      arrived.push(message);
      wake();
    };
    const read = async (messages: AsyncIterable<JsMsg>) => {
      for await (const message of messages) {
        hold(message);
      }
    };
    try {
      while (!stop.aborted) {
        try {
          // Behind a failure: it may have been deleted, or its stream replaced.
          source = delay > 0 ? await this.#create() : source;
          if (arrived.length === 0 && reading !== undefined) {
            await Promise.race([reading, new Promise<void>((resolve) => (wake = resolve))]);
          } else if (arrived.length === 0) {
            const message = await source.next({ expires: PULL_MS });
            message === null || hold(message);
          }
          const behind = Math.min(this.#options.batch - 1, arrived.at(-1)?.info.pending ?? 0);
          if (behind > 0 && reading === undefined) {
            // An error comes again with the next message.
            const fetched = await source.fetch({ max_messages: behind, expires: PULL_MS });
            reading = read(fetched).catch(() => {}).finally(() => (reading = undefined));
          }
          delay = 0;
        } catch (error) {
          if (isClosed(error)) {
            throw error;
          }
          // The server is away, or the stream has no leader. The client reconnects by itself.
          delay = Math.min(2 * delay || 200, 5000);
          batch.inbox.options.log.warn(`consumer ${this.#durable} cannot be pulled from, again in ${delay} ms: ${line(error)}`);
          await pause(delay, stop);
        }
        const taken = arrived.splice(0, this.#options.batch);
        await this.#handle(batch, taken);
        taken.forEach((message) => held.delete(message));
      }
      await reading;
      arrived.forEach((message) => tell(() => message.nak()));
    } finally {
      clearInterval(heartbeat);
    }
  }

  async #handle<T>(batch: Batch<T>, messages: JsMsg[]): Promise<void> {
    const taken = messages.map((message) => [message, received(message)] as const);
    const here = taken.filter(([, message]) => !isElsewhere(message));
    const answers = await batch.run(here.map(([, message]) => message));
    here.forEach(([message, given], n) => this.#acknowledge(batch.inbox, message, given, answers[n]!));
    // Of payloads that are elsewhere one is in memory at a time.
    for (const [message, given] of taken.filter(([, message]) => isElsewhere(message))) {
      this.#acknowledge(batch.inbox, message, given, await this.#fetched(batch, given).catch((error: Error) => error));
    }
  }

  #acknowledge<T>(inbox: Inbox<T>, message: JsMsg, { origin, deliveries = 1 }: Message, answer: Verdict | Error): void {
    const { log, backoffMs } = inbox.options;
    if (answer instanceof Error) {
      log.warn(`scope ${inbox.scope}: the message could not be handled now, will retry: ${line(answer)}`);
      answer = { name: "retry", after: backoffMs[0] };
    }
    const { name, after } = answer;
    if (name === "in_flight" || name === "retry") {
      // nats-server wants a whole number, and would deliver the message again at once.
      tell(() => message.nak(Math.ceil(after)));
      return;
    }
    if (deliveries > 2 && (name === "replayed" || name === "rejected")) {
      const which = `message ${origin?.sequence} of stream ${origin?.stream} comes again, delivery ${deliveries}`;
      log.warn(`${which}: may this user publish to $JS.ACK.>?`);
    }
    tell(() => (name === "dead" || name === "mismatch" ? message.term() : message.ack()));
  }

  async #fetched<T>(batch: Batch<T>, message: Message): Promise<Verdict | Error> {
    let complete: Message;
    try {
      complete = await whole(this.#jetstream, message, this.#options.objectBytesMax);
    } catch (problem) {
      if (problem instanceof Wrong) {
        return await batch.inbox.incomplete(message, problem);
      }
      throw problem;
    }
    return (await batch.run([complete]))[0]!;
  }
}

/** Makes the message that an inbox takes. */
export function received(message: JsMsg): Message {
  let headers: Record<string, string> = {};
  try {
    headers = collected(message.headers ?? []);
  } catch {
    // nats.js reads no header of a message that has a name with a blank or the like, as other clients
    // can send. So the message has no key, and becomes a dead letter; else it would come for ever.
  }
  const { stream, streamSequence, deliveryCount } = message.info;
  const microseconds = message.timestampNanos / 1000n;
  const seconds = new Date(Number(microseconds / 1_000_000n) * 1000).toISOString().slice(0, 19);
  const storedAt = `${seconds}.${String(microseconds % 1_000_000n).padStart(6, "0")}Z`;
  const origin = { stream, sequence: streamSequence, storedAt };
  return { subject: message.subject, payload: message.data, headers, origin, deliveries: deliveryCount };
}

/** Whether PostgreSQL or JetStream refused for a reason that does not go away: a wrong argument, a missing grant. */
function isRefused(error: unknown): boolean {
  const code = String((error as { code?: unknown }).code);
  const isOurs = error instanceof RangeError;
  return isOurs || /^(3F|42|OB)[0-9A-Z]{3}$/.test(code) || (error instanceof JetStreamApiError && error.status !== 503);
}

/** Whether the client has given up its reconnects: it never connects again, only a new process does. */
function isClosed(error: unknown): boolean {
  return (error as Error).name === "ClosedConnectionError";
}

/** Sends an acknowledgement. If it is lost, the message is delivered again and answered from the stored outcome. */
function tell(send: () => void): void {
  try {
    send();
  } catch {
    // The connection is closed.
  }
}

function onSignals(): AbortSignal {
  const stop = new AbortController();
  (["SIGTERM", "SIGINT"] as const).forEach((name) => process.once(name, () => stop.abort()));
  return stop.signal;
}

async function pause(ms: number, stop: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal: stop }).catch(() => {});
}
