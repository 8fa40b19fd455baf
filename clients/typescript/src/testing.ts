/**
 * For the tests of your own service: which messages a transaction has enqueued, handlers without
 * NATS, crashes on purpose, and a database for each test. See docs/testing.md.
 */
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { Client, Pool, type PoolClient } from "pg";

import { collected } from "./headers.ts";
import type { Inbox } from "./inbox.ts";
import type { LeasedHandler } from "./leased.ts";
import { rowsOf, type Transaction } from "./library.ts";
import type { Handler, Message, Verdict } from "./message.ts";
import { toJson } from "./outbox.ts";
import { close, quoted } from "./wire.ts";

export { Flow, FlowError, type FlowOptions, type Running } from "./flow.ts";

/** A message that this transaction has enqueued. */
export interface Enqueued {
  key: string;
  subject: string;
  /** The payload as JSON has it; a Buffer if it is none. */
  payload: unknown;
  headers: Record<string, string>;
  orderingKey: string | null;
  notBefore: Date | null;
}

/** The messages that the open transaction has enqueued, in their order. */
export async function enqueued(transaction: Transaction, schema = "oncebox"): Promise<Enqueued[]> {
  const text = `SELECT m.key, m.subject, encode(coalesce(d.payload, m.payload), 'hex') AS payload, coalesce(d.headers, m.headers)::text AS headers,
      coalesce(d.ordering_key, m.ordering_key) AS ordering_key, (1000 * extract(epoch FROM d.not_before))::text AS not_before
    FROM ${quoted(schema)}.message AS m LEFT JOIN ${quoted(schema)}.delayed AS d ON m.lane = -1 AND d.id = m.id
    WHERE m.xact = pg_current_xact_id_if_assigned() ORDER BY m.id`;
  const rows = await rowsOf(transaction, text, []);
  return rows.map(([key, subject, payload, headers, orderingKey, time]) => {
    const { traceparent, tracestate, ...own } = JSON.parse(headers!);
    const notBefore = time == null ? null : new Date(Number(time));
    return { key: key!, subject: subject!, payload: decoded(Buffer.from(payload!, "hex")), headers: own, orderingKey: orderingKey!, notBefore };
  });
}

/** A message as a consumer would get it, for `inbox.run`. */
export function message(key: string, payload: unknown, more: Partial<Message> = {}): Message {
  const body = payload instanceof Uint8Array ? payload : toJson(payload);
  const headers = collected(Object.entries({ "idempotency-key": key, ...more.headers }).map(([name, value]) => [name, value.split("\n")]));
  return { subject: "test", payload: body, ...more, headers };
}

/** Runs a message again as JetStream would, without its pauses, until it has ended. */
export async function runUntilFinal<T>(inbox: Inbox<T>, handler: Handler<T> | LeasedHandler<T>, given: Message, runsMax = 20): Promise<Verdict> {
  for (let run = 0; run < runsMax; run++) {
    const verdict = await inbox.run(handler, given).catch(() => null);
    if (verdict !== null && !["retry", "snoozed", "in_flight"].includes(verdict.name)) {
      return verdict;
    }
    await sleep(20);
  }
  throw new Error(`the message has not ended after ${runsMax} runs`);
}

/** The parts of a test of crashes. */
export interface Crashes<T> {
  /** Makes the inbox on a pool, whose connections are cut. */
  inbox: (pool: Pool) => Inbox<T>;
  handler: Handler<T> | LeasedHandler<T>;
  /** Of the message with this key. */
  payload: (key: string) => T;
  /** The effects of this key. */
  effects: (key: string) => Promise<unknown>;
}

/**
 * Runs a handler through duplicates, crashes, a lost commit and races; returns in which it did not
 * have its effects once. Each scenario has a key of its own. Under a lease the process dies before
 * and after each statement and each call of a provider, whose calls settle at once.
 */
export async function crashes<T>(url: string, { inbox: inboxOn, handler, payload, effects }: Crashes<T>): Promise<string[]> {
  const pools: Pool[] = [];
  const inboxAs = (life: Life) => {
    const pool = new Pool({ connectionString: url, max: 4 });
    pools.push(pool);
    living(pool, life);
    return inboxOn(pool);
  };
  const calm = new Life();
  const [inbox, isLeased] = [inboxAs(calm), typeof handler !== "function"];
  const handlerAs = (life: Life) => (typeof handler === "function" ? handler : dying(handler, life));
  const again = (given: Message) => runUntilFinal(inbox, handlerAs(calm), given, 1000);
  const beforeCommit = async (given: Message) => {
    const last: Handler<T> = async (cx, data) => {
      await (handler as Handler<T>)(cx, data);
      await cx.client.query("SELECT pg_terminate_backend(pg_backend_pid())");
    };
    await inbox.run(last, given);
    await again(given);
  };
  const lostCommit = async (given: Message) => {
    const losing = new Life("behind COMMIT");
    await inboxAs(losing).run(handlerAs(losing), given).catch(() => null);
    if (!losing.hasEnded) {
      throw new Error("the inbox has other connections than those of the given pool");
    }
    await again(given);
  };
  const scenarios: Record<string, (given: Message) => Promise<unknown>> = {
    calm: again,
    duplicate: async (given) => [await again(given), await again(given), await again(given)],
    ...(isLeased ? {} : { "crash-before-commit": beforeCommit }),
    // The process dies before it acknowledges, so another one gets the message again.
    "crash-after-commit": async (given) => [await again(given), await again({ ...given, deliveries: 2 })],
    "lost-commit": lostCommit,
    "concurrent-pair": async (given) => await Promise.all([again(given), again(given)]),
  };
  const wrong: string[] = [];
  let expected = "";
  const check = async (key: string, name: string) => {
    const found = JSON.stringify(await effects(key));
    expected ||= found;
    if (found !== expected) {
      wrong.push(`${name}: ${found} instead of ${expected}`);
    }
  };
  try {
    for (const [name, scenario] of Object.entries(scenarios)) {
      await scenario(message(name, payload(name)));
      await check(name, name);
    }
    for (let at = 0, isWhole = !isLeased; !isWhole && at < 500; at++) {
      const [key, life] = [`dies-${at}`, new Life(at)];
      const verdict = await inboxAs(life).run(handlerAs(life), message(key, payload(key))).catch(() => null);
      await again(message(key, payload(key)));
      await check(key, `the process dies ${life.place}`);
      isWhole = !life.hasEnded && ["handled", "rejected", "dead"].includes(verdict?.name ?? "");
    }
    return wrong;
  } finally {
    await Promise.all(pools.map((pool) => pool.end()));
  }
}

/**
 * The life of a process, which ends at the first place of this name, or at a place of this number.
 */
class Life {
  readonly #end: string | number | undefined;
  #places = 0;
  /** Where it has come to. */
  place = "";
  hasEnded = false;

  constructor(end?: string | number) {
    this.#end = end;
  }

  async pass<R>(what: string, work: () => Promise<R>): Promise<R> {
    this.#reach(`before ${what}`);
    const result = await work();
    this.#reach(`behind ${what}`);
    return result;
  }

  #reach(place: string): void {
    // A renewal comes at any time, and would be another place each time.
    if (!this.hasEnded && !place.endsWith("renew_lease")) {
      this.place = place;
      this.hasEnded = this.#end === place || this.#end === this.#places++;
    }
    if (this.hasEnded) {
      throw new Error(`the process has died ${this.place}`);
    }
  }
}

/** Lets the connections of a pool end with a life. */
function living(pool: Pool, life: Life): void {
  pool.on("connect", (client) => {
    // Without a listener, a connection that ends while it is idle would end the test's process.
    client.on("error", () => {});
    const original = client.query.bind(client) as (...given: unknown[]) => Promise<unknown>;
    const query = async (...given: unknown[]) => {
      const text = (given[0] as { text?: string }).text ?? String(given[0]);
      const what = /"\."?([a-z_]+)"?\(/.exec(text)?.[1] ?? text.trim().split(/\s+/, 2).join(" ");
      return await life.pass(what, () => original(...given)).catch((error) => {
        life.hasEnded && close(client as PoolClient);
        throw error;
      });
    };
    Object.assign(client, { query });
  });
}

/** A handler under a short lease, the calls of whose providers end with a life. */
function dying<T>(handler: LeasedHandler<T>, life: Life): LeasedHandler<T> {
  const handle: LeasedHandler<T>["handle"] = (cx, data) => {
    const effect: typeof cx.effect = (step, call, options) =>
      cx.effect(step, (...given) => life.pass(`the call of ${step}`, () => call(...given)), { ...options, settlesWithinMs: 0 });
    return handler.handle({ ...cx, effect }, data);
  };
  return { leaseMs: 400, handle, ...(handler.finish && { finish: (cx, reply) => handler.finish!(cx, reply) }) };
}

/**
 * A database with the schema of Oncebox and your own tables, of which each test gets a copy within
 * milliseconds.
 */
export class Template {
  readonly #url: string;
  readonly #name = `oncebox_template_${randomUUID().slice(0, 8)}`;

  private constructor(url: string) {
    this.#url = url;
  }

  /**
   * `url` names a database from which others can be made, `sql` makes your tables, `program`
   * migrates.
   */
  static async make(url: string, sql: string[] = [], program = "oncebox"): Promise<Template> {
    const template = new Template(url);
    await execute(url, [`CREATE DATABASE ${template.#name}`]);
    // All databases of a server share the roles; those of a template would outlive it.
    const migrate = ["migrate", "--role-prefix", "oncebox", "--database-url", template.#of(template.#name)];
    await promisify(execFile)(program, migrate);
    await execute(template.#of(template.#name), sql);
    return template;
  }

  /** Does something with the URL of a fresh copy, which is dropped afterwards. */
  async database<R>(work: (url: string) => Promise<R>): Promise<R> {
    const name = `oncebox_test_${randomUUID().slice(0, 8)}`;
    await execute(this.#url, [`CREATE DATABASE ${name} TEMPLATE ${this.#name}`]);
    try {
      return await work(this.#of(name));
    } finally {
      await execute(this.#url, [`DROP DATABASE ${name} WITH (FORCE)`]);
    }
  }

  async drop(): Promise<void> {
    await execute(this.#url, [`DROP DATABASE IF EXISTS ${this.#name} WITH (FORCE)`]);
  }

  #of(name: string): string {
    return Object.assign(new URL(this.#url), { pathname: `/${name}` }).href;
  }
}

async function execute(url: string, texts: string[]): Promise<void> {
  const client = new Client(url);
  await client.connect();
  try {
    for (const text of texts) {
      await client.query(text);
    }
  } finally {
    await client.end();
  }
}

function decoded(payload: Buffer): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(payload));
  } catch {
    return payload;
  }
}
