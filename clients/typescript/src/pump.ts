/** The loop of a consumer: pulls, keeps messages in order, hands them out, acknowledges. */
import { setImmediate as turn, setTimeout as sleep } from "node:timers/promises";
import type { Consumer as Source, JetStreamClient, JsMsg } from "@nats-io/jetstream";

import type { Batch } from "./batch.ts";
import { Copies, MOST } from "./copies.ts";
import { ackWaitMs, apiCode, type Durable, Refused } from "./durable.ts";
import { line, remedied } from "./errors.ts";
import { collected } from "./headers.ts";
import { type InLine, Lines } from "./lines.ts";
import { isElsewhere, whole, Wrong } from "./large.ts";
import type { Message, Verdict } from "./message.ts";
import { type Held, Queue } from "./queue.ts";
import { count } from "./spans.ts";
import { checked, continued, Lead, type Place } from "./strict.ts";
import { matches } from "./text.ts";

/** How long one pull waits for messages; a drain may have to wait for it as long. */
const PULL_MS = 1000;

/** One worker tries so often while PostgreSQL does not answer, so that it is not stormed with connections. */
const AWAY_MS = 500;

/** Between two looks at stopped lines. */
const LOOK_MS = 1000;

/** A message of another service comes again after this time. */
const ELSEWHERE_MS = 5000;

export interface Limits {
  batch: number;
  concurrency: number;
  graceMs: number;
  objectBytesMax: number;
  isStrict: boolean;
  behindDead: number | null;
}

/** How many messages a process holds: those it works on, and a few more, so that no worker waits. */
export function heldMax({ batch, concurrency }: { batch: number; concurrency: number }): number {
  return Math.max(16, 2 * concurrency * Math.max(batch, 2));
}

interface Delivery {
  /** Undefined for a message of a stopped line, which the database has. */
  source: JsMsg | undefined;
  given: Message;
  inLine?: InLine;
}

interface Session {
  source: Source;
  /** Set in strict order. */
  place: Place | undefined;
}

export class Pump<T> {
  readonly #jetstream: JetStreamClient;
  readonly #durable: Durable;
  readonly #batch: Batch<T>;
  readonly #limits: Limits;
  readonly #stop: AbortSignal;
  readonly #queue = new Queue<Delivery>(() => this.#wake());
  readonly #copies: Copies<Delivery>;
  readonly #running = new Set<Promise<void>>();
  readonly #lines: Lines;
  /** When stopped lines are looked at again. */
  #lookAt = 0;
  /** How many messages got each answer. */
  readonly ends: Record<string, number> = {};
  #woken = Promise.withResolvers<void>();
  #lead: Lead | undefined;
  /** When the stream was created whose messages are held. */
  #created: string | undefined;
  /** While PostgreSQL does not answer, the time from which one worker tries; else 0. */
  #tryAt = 0;
  /** Between two tries while the consumer cannot be pulled from; 0 when it can. */
  #delay = 0;

  constructor(jetstream: JetStreamClient, durable: Durable, batch: Batch<T>, limits: Limits, stop: AbortSignal) {
    [this.#jetstream, this.#durable, this.#batch, this.#limits, this.#stop] = [jetstream, durable, batch, limits, stop];
    this.#lines = new Lines(batch.inbox, limits.isStrict ? limits.behindDead : null);
    const settle = ({ source }: Delivery, name: Verdict["name"]) => {
      count(batch.inbox.scope, name);
      this.#tally(name);
      this.#acknowledge(source!, name);
      this.#wake();
    };
    this.#copies = new Copies(batch.inbox, settle, (delivery) => this.#push(delivery));
  }

  /** Consumes until the signal, and then waits for the running handlers. */
  async run(ackWait: number): Promise<void> {
    const wake = () => this.#wake();
    this.#stop.addEventListener("abort", wake);
    let beat: NodeJS.Timeout | undefined;
    try {
      for (let hasBegun = false; !this.#stop.aborted; ) {
        try {
          const session = await this.#begin();
          if (session === undefined) {
            continue;
          }
          beat ??= setInterval(() => this.#progress(), (await ackWaitMs(session.source, ackWait)) / 3);
          hasBegun = true;
          await this.#consume(session);
        } catch (error) {
          if (isClosed(error) || (!hasBegun && isRefused(error))) {
            throw error;
          }
          await this.#pause(hasBegun ? "be pulled from" : "begin", error);
        }
      }
      await this.#drain();
    } finally {
      this.#stop.removeEventListener("abort", wake);
      clearInterval(beat);
      this.#lead?.end();
    }
  }

  /** Everything that consuming needs; undefined once the signal is aborted. */
  async #begin(): Promise<Session | undefined> {
    const { inbox } = this.#batch;
    const tookOver = this.#limits.isStrict && (this.#lead?.lost.aborted ?? true);
    await inbox.register(this.#batch.isLeased ? "lease" : "transaction").catch((error: unknown) => {
      throw remedied(error);
    });
    if (tookOver) {
      this.#lead = await Lead.won(inbox, this.#durable, this.#stop);
      if (this.#lead === undefined) {
        return undefined;
      }
    }
    const manager = await this.#durable.manager();
    const { created } = await this.#durable.stream(manager);
    if (this.#created !== undefined && this.#created !== created) {
      // Acknowledgements go by sequence: that of an old message would settle a new one.
      inbox.options.log.warn(`stream ${this.#durable.wanted.stream} was created again: the old messages held are dropped`);
      await Promise.all(this.#running);
      this.#drainIdle();
    }
    this.#created = created;
    if (!this.#limits.isStrict) {
      const source = await this.#durable.open();
      await this.#lines.follow();
      return { source, place: undefined };
    }
    // Messages without a running handler come again, in their place.
    this.#drainIdle();
    const [source, place] = await continued(inbox, this.#durable, tookOver);
    await this.#lines.follow();
    return { source, place };
  }

  async #consume({ source, place }: Session): Promise<void> {
    const lost = this.#lead?.lost;
    const wake = () => this.#wake();
    lost?.addEventListener("abort", wake);
    const look = setInterval(wake, LOOK_MS);
    let [failure, reading] = [undefined as unknown, undefined as Promise<void> | undefined];
    const max = heldMax(this.#limits);
    while (!this.#stop.aborted && !lost?.aborted && failure === undefined) {
      await this.#takeOfLines();
      this.#handOut();
      const room = (this.#copies.areExpected ? Math.max(max, MOST) : max) - this.#queue.size - this.#copies.waiting.length;
      // Not one pull for each message: of a few at once, unless nothing is left to do.
      if (reading === undefined && room > 0 && (room >= max / 4 || this.#queue.ready === 0)) {
        const read = this.#read(source, room, place).catch((error) => (failure = error ?? new Error("the pull ended")));
        reading = read.finally(() => {
          reading = undefined;
          this.#wake();
        });
      }
      await this.#woken.promise;
      this.#woken = Promise.withResolvers();
      // The messages of one packet arrive together, and may share a batch.
      await turn();
    }
    lost?.removeEventListener("abort", wake);
    clearInterval(look);
    await reading;
    if (failure !== undefined) {
      throw failure;
    }
    if (lost?.aborted && !this.#stop.aborted) {
      throw new Error("the connection that holds the right to consume is gone");
    }
  }

  /** Takes messages of stopped lines whose turn has come, of each line one. */
  async #takeOfLines(): Promise<void> {
    if (!this.#lines.areStopped || this.#lookAt > Date.now()) {
      return;
    }
    this.#lookAt = Date.now() + LOOK_MS;
    let room = this.#limits.concurrency - this.#queue.all().filter(({ message }) => message.source === undefined).length;
    try {
      for (let after = "0"; room > 0; ) {
        const found = await this.#lines.next(this.#durable.wanted.stream, after);
        if (found === undefined) {
          return;
        }
        const [given, inLine] = found;
        after = inLine.id;
        // One that is held already is refused. It has no place among those that the stream
        // delivers: they wait for it in the database.
        room -= this.#queue.push(`line ${inLine.id} ${inLine.since}`, undefined, { source: undefined, given, inLine }) ? 1 : 0;
      }
    } catch (error) {
      this.#batch.inbox.options.log.warn(`consumer ${this.#durable.wanted.durable}: stopped lines are looked at again soon: ${line(error)}`);
    }
  }

  /** One pull. */
  async #read(source: Source, room: number, place: Place | undefined): Promise<void> {
    const messages = await source.fetch({ max_messages: room, expires: PULL_MS });
    for await (const message of messages) {
      this.#delay = 0;
      this.#take(message, place);
      this.#wake();
    }
    this.#delay = 0;
  }

  #take(source: JsMsg, place: Place | undefined): void {
    const given = received(source);
    if (place !== undefined) {
      given.deliveries! += checked(place, source.info.deliverySequence, source.seq);
    }
    if (given.headers["nats-marker-reason"] !== undefined) {
      // The server writes it where messages of a subject have expired or were deleted: no producer
      // has sent it.
      tell(() => source.ack());
      return;
    }
    const { filterSubject, durable } = this.#durable.wanted;
    if (filterSubject && !matches(filterSubject.split("."), source.subject.split("."))) {
      const which = `consumer ${durable}: a message on ${source.subject} is outside its filter ${filterSubject}, and is not handled`;
      this.#batch.inbox.options.log.warn(`${which}: does another service use this durable? Give each its own`);
      tell(() => source.nak(ELSEWHERE_MS));
      return;
    }
    const delivery = { source, given };
    this.#batch.isLeased || this.#queue.has(idOf(delivery)) ? this.#push(delivery) : this.#copies.take(delivery);
  }

  #push(delivery: Delivery): void {
    this.#queue.push(idOf(delivery), delivery.given.headers["oncebox-ordering-key"], delivery);
    this.#wake();
  }

  /** Takes out all messages without a running handler. */
  #drainIdle(): Delivery[] {
    return [...this.#copies.drain(), ...this.#queue.drainIdle().map(({ message }) => message)];
  }

  #handOut(): void {
    const { batch } = this.#limits;
    if (this.#tryAt > Date.now()) {
      return;
    }
    const concurrency = this.#tryAt === 0 ? this.#limits.concurrency : 1;
    while (this.#running.size < concurrency && this.#queue.ready > 0 && !this.#stop.aborted) {
      // A few messages go to workers that have none, rather than into one batch.
      const share = Math.ceil(this.#queue.ready / (concurrency - this.#running.size));
      const work = this.#handle(this.#queue.take(Math.min(batch, share))).finally(() => {
        this.#running.delete(work);
        this.#wake();
      });
      this.#running.add(work);
    }
  }

  async #handle(all: Held<Delivery>[]): Promise<void> {
    const taken: Held<Delivery>[] = [];
    for (const held of all) {
      const { source, given } = held.message;
      const waits = source === undefined ? undefined : await this.#lines.wait(given).catch((error: Error) => error);
      waits === undefined ? taken.push(held) : await this.#ended(held, waits);
    }
    const here = taken.filter(({ message }) => !isElsewhere(message.given));
    const answers = await this.#batch.run(here.map(({ message }) => message.given));
    for (const [n, held] of here.entries()) {
      await this.#ended(held, answers[n]!);
    }
    // Of payloads that are elsewhere one is in memory at a time.
    for (const held of taken.filter(({ message }) => isElsewhere(message.given))) {
      await this.#ended(held, await this.#fetched(held.message.given).catch((error: Error) => error));
    }
  }

  async #fetched(message: Message): Promise<Verdict | Error> {
    let complete: Message;
    try {
      complete = await whole(this.#jetstream, message, this.#limits.objectBytesMax);
    } catch (problem) {
      if (problem instanceof Wrong) {
        return await this.#batch.inbox.incomplete(message, problem);
      }
      throw problem;
    }
    return (await this.#batch.run([complete]))[0]!;
  }

  /** Acknowledges the message, or has it run again: here, in its place, if it has an ordering key. */
  async #ended(held: Held<Delivery>, answer: Verdict | Error): Promise<void> {
    const { log, backoffMs, scope } = { ...this.#batch.inbox.options, scope: this.#batch.inbox.scope };
    const { source, given, inLine } = held.message;
    const isAway = answer instanceof Error;
    this.#tally(isAway ? "unavailable" : answer.name);
    if (isAway && this.#tryAt <= Date.now()) {
      this.#tryAt = Date.now() + AWAY_MS;
      setTimeout(() => this.#wake(), AWAY_MS + 1).unref();
    } else if (!isAway) {
      this.#tryAt = 0;
    }
    if (answer instanceof Error) {
      log.warn(`scope ${scope}: the message could not be handled now, will retry: ${line(answer)}`);
      answer = { name: "in_flight", after: backoffMs[0] };
    }
    const { name, after } = answer;
    if (name === "dead" || name === "mismatch") {
      this.#lines.noteDead();
    }
    if (name === "in_flight" || name === "retry" || name === "snoozed") {
      if (held.orderingKey !== undefined || source === undefined) {
        // A failed run counts like a delivery.
        given.deliveries! += name === "retry" ? 1 : 0;
        this.#queue.rest(held, after);
        return;
      }
      // nats-server wants a whole number, and would deliver the message again at once.
      tell(() => source.nak(Math.ceil(after)));
    } else if (source === undefined) {
      try {
        await this.#lines.end(inLine!);
      } catch (error) {
        log.warn(`scope ${scope}: a line is not moved on yet: ${line(error)}`);
        this.#queue.rest(held, backoffMs[0]);
        return;
      }
      this.#lookAt = 0;
    } else {
      this.#acknowledge(source, name);
    }
    this.#queue.remove(held);
  }

  #tally(name: string): void {
    this.ends[name] = (this.ends[name] ?? 0) + 1;
  }

  #acknowledge(source: JsMsg, name: Verdict["name"]): void {
    if (name === "replayed") {
      this.#copies.areExpected = true;
      // Under a lease a copy may have waited for long.
      if (source.info.deliveryCount > 2 && !this.#batch.isLeased) {
        const which = `message ${source.seq} of stream ${source.info.stream} comes again, delivery ${source.info.deliveryCount}`;
        this.#batch.inbox.options.log.warn(`${which}: may this user publish to $JS.ACK.>?`);
      }
    }
    tell(() => (name === "dead" || name === "mismatch" ? source.term() : source.ack()));
  }

  /** Tells JetStream that messages are in progress, so that they are not delivered again meanwhile. */
  #progress(): void {
    const held = [...this.#copies.waiting, ...this.#queue.all().map(({ message }) => message)];
    held.forEach(({ source }) => tell(() => source?.working()));
  }

  /**
   * Gives back the messages without a running handler, and waits for the handlers. In strict order
   * they come again in their place.
   */
  async #drain(): Promise<void> {
    const giveBack = () => {
      const idle = this.#drainIdle();
      this.#limits.isStrict || idle.forEach(({ source }) => tell(() => source?.nak()));
    };
    giveBack();
    const { graceMs } = this.#limits;
    // Nothing waits for handlers that are still running then; when the process ends, PostgreSQL
    // rolls them back.
    const late = sleep(graceMs + this.#batch.inbox.database.stepTimeoutMs, undefined, { ref: false }).then(() => {
      throw new Error(`consumer ${this.#durable.wanted.durable}: handlers go on after the grace of its drain`);
    });
    await Promise.race([Promise.all(this.#running), late]);
    giveBack();
  }

  async #pause(what: string, error: unknown): Promise<void> {
    // The server is away, or the stream has no leader. The client reconnects by itself.
    this.#delay = Math.min(2 * this.#delay || 200, 5000);
    const which = `consumer ${this.#durable.wanted.durable} cannot ${what}, again in ${this.#delay} ms`;
    this.#batch.inbox.options.log.warn(`${which}: ${line(error)}`);
    await sleep(this.#delay, undefined, { signal: this.#stop }).catch(() => {});
  }

  #wake(): void {
    this.#woken.resolve();
  }
}

/** Tells a stored message from all others; a copy has the same. */
function idOf({ source }: Delivery): string {
  return `${source!.seq} ${source!.timestampNanos}`;
}

/** Makes the message that an inbox takes. */
export function received(message: JsMsg): Message {
  let headers: Record<string, string> = {};
  let sentHeaders: Record<string, string[]> = {};
  try {
    sentHeaders = Object.fromEntries(message.headers ?? []);
    headers = collected(Object.entries(sentHeaders));
  } catch {
    // nats.js reads no header of a message that has a name with a blank or the like, as other clients
    // can send. So the message has no key, and becomes a dead letter; else it would come for ever.
  }
  const { stream, streamSequence, deliveryCount } = message.info;
  const microseconds = message.timestampNanos / 1000n;
  const seconds = new Date(Number(microseconds / 1_000_000n) * 1000).toISOString().slice(0, 19);
  const storedAt = `${seconds}.${String(microseconds % 1_000_000n).padStart(6, "0")}Z`;
  const origin = { stream, sequence: streamSequence, storedAt };
  return { subject: message.subject, payload: message.data, headers, sentHeaders, origin, deliveries: deliveryCount };
}

/** Whether PostgreSQL or JetStream refused for a reason that does not go away: a wrong argument, a missing grant. */
function isRefused(error: unknown): boolean {
  const isOurs = error instanceof RangeError || error instanceof Refused;
  const isOfServer = apiCode(error) !== undefined && (error as { status?: number }).status !== 503;
  return isOurs || isOfServer || /^(3F|42|OB)[0-9A-Z]{3}$/.test(String((error as { code?: unknown }).code));
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
