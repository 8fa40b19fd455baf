/** The durable consumer on the server: found, created, brought up to date. */
import {
  AckPolicy, DeliverPolicy, type Consumer as Source, type ConsumerConfig, type ConsumerInfo,
  type JetStreamClient, type JetStreamManager, type StreamInfo,
} from "@nats-io/jetstream";

const NANOSECONDS = 1_000_000;

/** The fixed settings of a durable consumer. */
export interface Wanted {
  stream: string;
  durable: string;
  filterSubject: string | undefined;
  ackWaitMs: number;
  ackPending: number;
  /** Where a new one begins. */
  start: "all" | "now" | Date;
}

/** Why it cannot be consumed, which a person must mend. */
export class Refused extends Error {
  override readonly name = "Refused";
}

export class Durable {
  readonly wanted: Wanted;
  readonly #jetstream: JetStreamClient;

  constructor(jetstream: JetStreamClient, wanted: Wanted) {
    [this.#jetstream, this.wanted] = [jetstream, wanted];
  }

  manager(): Promise<JetStreamManager> {
    return this.#jetstream.jetstreamManager();
  }

  /** Finds or creates it, and changes settings that would lose or withhold messages. */
  async open(): Promise<Source> {
    const { stream, durable, start } = this.wanted;
    const manager = await this.manager();
    const found = await this.info(manager);
    if (found === undefined) {
      const begin = start === "all" ? {} : start === "now" ? { deliver_policy: DeliverPolicy.New }
        : { deliver_policy: DeliverPolicy.StartTime, opt_start_time: start.toISOString() };
      return await this.create(manager, begin);
    }
    const { config } = found;
    if (config.deliver_subject) {
      throw new Refused(`consumer ${durable} of stream ${stream} pushes; delete it, or choose another name`);
    }
    const wanted = this.#kept();
    const has = { max_deliver: -1, filter_subject: undefined, headers_only: false, ...config };
    const names = Object.keys(wanted) as (keyof typeof wanted)[];
    const hasMore = [config.filter_subjects, config.backoff].some((list) => (list ?? []).length > 0);
    if (hasMore || names.some((name) => has[name] !== wanted[name])) {
      await manager.consumers.update(stream, durable, { ...wanted, filter_subjects: undefined, backoff: undefined });
    }
    return await this.#jetstream.consumers.get(stream, durable);
  }

  async stream(manager: JetStreamManager): Promise<StreamInfo> {
    return await manager.streams.info(this.wanted.stream).catch((error: unknown) => {
      throw this.#named(error);
    });
  }

  /** The server's description of it; undefined if there is none. */
  async info(manager: JetStreamManager): Promise<ConsumerInfo | undefined> {
    try {
      return await manager.consumers.info(this.wanted.stream, this.wanted.durable);
    } catch (error) {
      if (apiCode(error) === CONSUMER_NOT_FOUND) {
        return undefined;
      }
      throw this.#named(error);
    }
  }

  async create(manager: JetStreamManager, begin: Partial<ConsumerConfig>): Promise<Source> {
    const { stream, durable, ackWaitMs, ackPending } = this.wanted;
    const fresh = { durable_name: durable, ack_wait: ackWaitMs * NANOSECONDS, max_ack_pending: ackPending };
    await manager.consumers.add(stream, { ...fresh, ...this.#kept(), ...begin }).catch((error: unknown) => {
      throw this.#named(error);
    });
    return await this.#jetstream.consumers.get(stream, durable);
  }

  /**
   * These settings replace those that it was created with. With a limit, JetStream would forget a
   * message before it is a dead letter.
   */
  #kept() {
    const filter = this.wanted.filterSubject || undefined;
    return { ack_policy: AckPolicy.Explicit, max_deliver: -1, filter_subject: filter, headers_only: false };
  }

  #named(error: unknown): unknown {
    const { stream } = this.wanted;
    const remedy = `a relay with --stream '${stream}=SUBJECTS' creates it, or: nats stream add ${stream}`;
    return apiCode(error) === STREAM_NOT_FOUND ? new Refused(`stream ${stream} does not exist; ${remedy}`, { cause: error }) : error;
  }
}

const CONSUMER_NOT_FOUND = 10014;
const STREAM_NOT_FOUND = 10059;

/** The number of an error of JetStream. By its shape: a program may have two copies of the library. */
export function apiCode(error: unknown): number | undefined {
  const { code, status } = (error ?? {}) as { code?: unknown; status?: unknown };
  return error instanceof Error && typeof code === "number" && typeof status === "number" ? code : undefined;
}

/** How often a held message is said to be in progress. */
export async function ackWaitMs(source: Source, otherwise: number): Promise<number> {
  return ((await source.info(true)).config.ack_wait ?? 0) / NANOSECONDS || otherwise;
}
