/**
 * For the tests of your own service: which messages a transaction has enqueued, handlers without NATS, crashes on
 * purpose, and a database for each test. See docs/testing.md.
 */
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { Client, Pool, type PoolClient } from "pg";

import { collected } from "./headers.ts";
import type { Inbox } from "./inbox.ts";
import { rowsOf, type Transaction } from "./library.ts";
import type { Handler, Message, Verdict } from "./message.ts";
import { toJson } from "./outbox.ts";
import { close, quoted } from "./wire.ts";

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
export async function runUntilFinal<T>(inbox: Inbox<T>, handler: Handler<T>, given: Message, runsMax = 20): Promise<Verdict> {
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
  handler: Handler<T>;
  /** Of the message with this key. */
  payload: (key: string) => T;
  /** What was done for this key. */
  effects: (key: string) => Promise<unknown>;
}

/**
 * Runs a handler through duplicates, crashes, a lost commit and races; returns in which it did not have its effects
 * once. Each scenario has a key of its own.
 */
export async function crashes<T>(url: string, { inbox: inboxOn, handler, payload, effects }: Crashes<T>): Promise<string[]> {
  const pool = new Pool({ connectionString: url, max: 4 });
  const lost = losing(pool);
  const inbox = inboxOn(pool);
  const again = (given: Message) => runUntilFinal(inbox, handler, given);
  const scenarios: Record<string, (given: Message) => Promise<unknown>> = {
    calm: again,
    duplicate: async (given) => [await again(given), await again(given), await again(given)],
    "crash-before-commit": async (given) => {
      const dying: Handler<T> = async (cx, data) => {
        await handler(cx, data);
        await cx.client.query("SELECT pg_terminate_backend(pg_backend_pid())");
      };
      await inbox.run(dying, given);
      await again(given);
    },
    // The process dies before it acknowledges, so another one gets the message again.
    "crash-after-commit": async (given) => [await again(given), await again({ ...given, deliveries: 2 })],
    "lost-commit": async (given) => {
      lost.isArmed = true;
      await inbox.run(handler, given);
      if (lost.isArmed) {
        throw new Error("the inbox has other connections than those of the given pool");
      }
      await again(given);
    },
    "concurrent-pair": async (given) => await Promise.all([again(given), again(given)]),
  };
  try {
    const wrong: string[] = [];
    let expected = "";
    for (const [name, scenario] of Object.entries(scenarios)) {
      await scenario(message(name, payload(name)));
      const found = JSON.stringify(await effects(name));
      expected ||= found;
      if (found !== expected) {
        wrong.push(`${name}: ${found} instead of ${expected}`);
      }
    }
    return wrong;
  } finally {
    await pool.end();
  }
}

/** Once armed, the answer to the next COMMIT of this pool is lost, though it is done. */
function losing(pool: Pool): { isArmed: boolean } {
  const state = { isArmed: false };
  pool.on("connect", (client) => {
    const original = client.query.bind(client) as (...given: unknown[]) => Promise<unknown>;
    const patched = async (...given: unknown[]) => {
      const result = await original(...given);
      if (state.isArmed && (given[0] as { text?: string }).text === "COMMIT") {
        state.isArmed = false;
        close(client as PoolClient);
        throw new Error("the answer to COMMIT was lost");
      }
      return result;
    };
    Object.assign(client, { query: patched });
  });
  return state;
}

/** A database with the schema of Oncebox and your own tables, of which each test gets a copy within milliseconds. */
export class Template {
  readonly #url: string;
  readonly #name = `oncebox_template_${randomUUID().slice(0, 8)}`;

  private constructor(url: string) {
    this.#url = url;
  }

  /** `url` names a database from which others can be made, `sql` makes your tables, `program` migrates. */
  static async make(url: string, sql: string[] = [], program = "oncebox"): Promise<Template> {
    const template = new Template(url);
    await execute(url, [`CREATE DATABASE ${template.#name}`]);
    // All databases of a server share the roles; those of a template would stay behind it.
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
