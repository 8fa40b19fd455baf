// A consumer whose handler does as the payload says: see tests/it/clients/scenarios.rs.
import { setTimeout as sleep } from "node:timers/promises";
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { Consumer, Dead, enqueue, Inbox, Reject, RetryAfter, type Context, type LeasedContext } from "oncebox";
import pg from "pg";

interface Told {
  name: string;
  sql: string[];
  do: string;
  reply: boolean;
}

class Odd extends Error {
  override get message(): string {
    throw new Error("no text");
  }
}

const isSpoiled = process.env.SETTINGS === "spoiled";
const connectionString = process.env.DATABASE_URL!;
const log = new pg.Pool({ connectionString, max: 4 });
const exhausted = new pg.Pool({ connectionString, max: 1 });
const lost = new Set<string>();

/** Goes on until the message has ended, and then writes again and again. */
async function late(cx: Context): Promise<void> {
  while ((await log.query("SELECT FROM oncebox.inbox WHERE key = $1", [cx.key])).rowCount === 0) {
    await sleep(10);
  }
  for (let n = 0; n < 20; n++) {
    const write = async () => await cx.client.query("INSERT INTO public.effect (name) VALUES ($1)", [cx.key]);
    const said = await write().then(() => "written", (error) => String(error));
    await log.query("INSERT INTO late (name, said) VALUES ($1, $2)", [cx.key, said]);
    await sleep(10);
  }
}

const note = (cx: Context | LeasedContext, name: string) => log.query("INSERT INTO run (name, deliveries) VALUES ($1, $2)", [name, cx.message.deliveries]);

async function handle(cx: Context, told: Told): Promise<unknown> {
  await note(cx, told.name);
  await write(cx, told);
  return await end(cx, told);
}

/** Under a lease, all that a message with statements does is among the last writes, as in the Rust handler of this mode. */
const leased = {
  handle: async (cx: LeasedContext, told: Told) => {
    await note(cx, told.name);
    return told.sql.length === 0 ? await end(cx, told) : reply(told);
  },
  finish: async (cx: Context) => {
    const told: Told = JSON.parse(Buffer.from(cx.message.payload).toString());
    await write(cx, told);
    return told.sql.length === 0 ? undefined : await end(cx, told);
  },
};

const reply = (told: Told) => (told.reply ? { did: told.name } : undefined);

/** The writes of a handler through its transaction. */
async function write(cx: Context, { name, sql, do: action }: Told): Promise<void> {
  await cx.client.query("INSERT INTO effect (name) VALUES ($1)", [name]);
  for (const text of sql) {
    await cx.client.query(text).catch((error) => {
      if (error.code !== "22012") {
        throw error;
      }
    });
  }
  switch (action) {
    case "conflict":
      if (!lost.has(name)) {
        lost.add(name);
        await cx.client.query("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$");
      }
      break;
    case "late":
      void late(cx);
      break;
    case "types":
      for (const oid of [16, 20, 23, 25, 114]) {
        (cx.client as pg.Client).setTypeParser(oid, () => "spoiled");
      }
      for (const type of ["bigint", "object"]) {
        const id = await enqueue(cx.client, { key: name, subject: "orders.placed", payload: { name } });
        if (typeof id !== type) {
          throw new Error(`enqueue returns ${id}`);
        }
      }
  }
}

async function end(cx: Context | LeasedContext, told: Told): Promise<unknown> {
  switch (told.do) {
    case "reject":
      return new Reject("no");
    case "dead":
      throw new Dead("no use");
    case "fail":
      throw new Error("as it was told");
    case "panic":
      throw "as it was told";
    case "retry":
      throw new RetryAfter(700);
    case "hang":
      await sleep(60_000, undefined, { ref: false });
      break;
    case "pool":
      await exhausted.connect();
      break;
    case "exit":
      process.exit(9);
      break;
    case "odd-reply":
      return { cents: 1n };
    case "long-reply":
      return "x".repeat(1 << 20);
    case "odd-error":
      throw new Odd();
    case "odd-pause":
      throw new RetryAfter(cx.message.deliveries === 1 ? Number.NaN : ("5" as unknown as number));
  }
  return reply(told);
}

const types = { getTypeParser: () => () => "spoiled" };
const settings = isSpoiled ? { types, binary: false, pipeline: false } : { pipeline: true };
if (isSpoiled) {
  for (const oid of [16, 20, 23, 25, 114, 1184]) {
    pg.types.setTypeParser(oid, () => "spoiled");
  }
}
await exhausted.connect();
exhausted.options.connectionTimeoutMillis = 50;
const pool = new pg.Pool({ connectionString, max: process.env.SETTINGS === "strict" ? 4 : 3, ...settings } as pg.PoolConfig);
const inbox = new Inbox<Told>(pool, "conform:test", {
  tenantHeader: "Tenant",
  attemptsMax: 3,
  backoffMs: [400, 2000],
  handlerTimeoutMs: 5000,
});
const connection = await connect({ servers: process.env.NATS_URL!, maxReconnectAttempts: -1 });
const batch = ["batch", "set"].includes(process.env.SETTINGS!) ? 16 : 1;
const order = process.env.SETTINGS === "strict" ? "strict" : "process";
const consumer = new Consumer(jetstream(connection), process.env.STREAM!, "conform", { concurrency: 3, batch, order });
if (process.env.SETTINGS === "set") {
  await consumer.runSet(inbox, async (cx, entries) => {
    const results: unknown[] = [];
    for (const { data, ...rest } of entries) {
      results.push(await handle({ ...cx, ...rest }, data));
    }
    return results;
  });
} else {
  await consumer.run(inbox, process.env.SETTINGS === "leased" ? leased : handle);
}
process.exit();
