/** A relay and consumers, until all messages of a test are done. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { line } from "./errors.ts";

/** In the log of a relay that has made its streams, and how many lines of a log an error shows. */
const [RUNNING, LOG_LINES] = ["relay is running", 10];
/** How long consumers have to finish. */
const STOP_MS = 10_000;

/** A function that ends with the signal, or a program and its arguments. */
export type Running = ((stop: AbortSignal) => Promise<unknown>) | string[];

export interface FlowOptions {
  /** Streams that the relay makes if they are missing, in the words of its option: `ORDERS=orders.>,payments.>`. */
  streams?: string[];
  /** Default: `oncebox` of PATH. */
  program?: string;
}

/**
 * Not all messages are done: the text names each that is left or was given up, with its reason; or the relay, or a
 * consumer, has ended.
 */
export class FlowError extends Error {
  override readonly name = "FlowError";
}

/**
 * Runs a relay and your consumers until all messages are done: those that your test has enqueued, those that
 * handlers enqueue, and so on. The relay is the program `oncebox`, on your PostgreSQL and nats-server.
 */
export class Flow {
  readonly #program: string;
  readonly #streams: string[];
  readonly #env: NodeJS.ProcessEnv;
  readonly #consumers: [string, Running][] = [];

  constructor(databaseUrl: string, natsUrl: string, { streams = [], program = "oncebox" }: FlowOptions = {}) {
    [this.#program, this.#streams] = [program, streams];
    this.#env = { ...process.env, DATABASE_URL: databaseUrl, NATS_URL: natsUrl, ONCEBOX_HTTP_LISTEN: "off", ONCEBOX_LOG: "info" };
  }

  /**
   * A consumer, by the names of stream and durable consumer, `ORDERS/payment`: `(stop) => consumer.run(inbox, handler,
   * stop)`; or a program with DATABASE_URL and NATS_URL, such as `["oncebox", "saga", "run", "order.toml"]` for
   * `SAGAS/oncebox-saga-replies`.
   */
  consumer(name: string, running: Running): this {
    this.#consumers.push([name, running]);
    return this;
  }

  /**
   * Runs them until no message is due, parked or at a consumer; one that is delayed for later is not waited for. A
   * FlowError says which messages are left after this time, an hour at most, or were given up.
   */
  async runUntilQuiet(withinMs = 20_000): Promise<void> {
    const [begun, stop] = [Promise.withResolvers<void>(), new AbortController()];
    const streams = this.#streams.length > 0 ? ["--stream", this.#streams.join(";")] : [];
    const relay = this.#run("the relay", [this.#program, "relay", ...streams], stop.signal, begun.resolve);
    const consumers = this.#consumers.map(async ([name, running]) => {
      // It would find no stream before.
      await Promise.race([begun.promise, once(stop.signal, "abort")]);
      await this.#consume(`the consumer ${name}`, running, stop.signal);
    });
    try {
      await Promise.race([this.#quiet(withinMs, stop.signal), relay, ...consumers]);
    } finally {
      stop.abort();
      await Promise.race([Promise.allSettled([relay, ...consumers]), sleep(STOP_MS, undefined, { ref: false })]);
    }
  }

  async #consume(what: string, running: Running, stop: AbortSignal): Promise<void> {
    if (stop.aborted) {
      return;
    }
    if (typeof running !== "function") {
      return await this.#run(what, running, stop);
    }
    await running(stop).catch((error: unknown) => {
      throw new FlowError(`${what} has ended: ${line(error)}`, { cause: error });
    });
    if (!stop.aborted) {
      throw new FlowError(`${what} has ended without an error`);
    }
  }

  /** Runs a program until it is told to stop; fails if it ends before. */
  async #run(what: string, [program, ...given]: string[], stop: AbortSignal, begun?: () => void): Promise<void> {
    const last: string[] = [];
    const child = spawn(program!, given, { env: this.#env, stdio: ["ignore", "ignore", "pipe"] });
    createInterface(child.stderr).on("line", (text) => {
      last.push(text);
      last.splice(0, last.length - LOG_LINES);
      text.includes(RUNNING) && begun?.();
    });
    stop.addEventListener("abort", () => ended(child), { once: true });
    const [status] = await once(child, "close").catch((error: unknown) => [line(error)]);
    if (!stop.aborted) {
      throw new FlowError(`${what} has ended (${status}): ${last.join("\n")}`);
    }
  }

  async #quiet(withinMs: number, stop: AbortSignal): Promise<void> {
    const seconds = Math.round(Math.min(Math.max(withinMs / 1000, 1), 3600));
    const names = this.#consumers.flatMap(([name]) => ["--consumer", name]);
    const child = spawn(this.#program, ["status", "--until-quiet", String(seconds), ...names], { env: this.#env, stdio: ["ignore", "pipe", "pipe"] });
    const said: string[] = [];
    [child.stdout, child.stderr].forEach((stream) => stream.setEncoding("utf8").on("data", (text: string) => said.push(text)));
    stop.addEventListener("abort", () => ended(child), { once: true });
    const [status] = await once(child, "close").catch((error: unknown) => [said.push(line(error))]);
    if (status !== 0 && !stop.aborted) {
      throw new FlowError(said.join(""));
    }
  }
}

function ended(child: ChildProcess): void {
  child.kill("SIGTERM");
  setTimeout(() => child.kill("SIGKILL"), STOP_MS).unref();
}
