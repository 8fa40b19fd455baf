// The loop of clients.sh in TypeScript: loop.ts bare|inbox|batch|set|pending|lease MESSAGES, prints
// messages a second.
import { setTimeout } from "node:timers/promises";

import { jetstream, type JetStreamClient, type JsMsg } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { Consumer, Inbox, type Context, type Entry, type LeasedContext, type SetContext } from "oncebox";
import { Pool, type PoolClient } from "pg";

const [mode, messages, concurrency] = [process.argv[2], Number(process.argv[3]), 16];
const EFFECT = "INSERT INTO effect (customer, cents) VALUES ($1, 100)";
const done = new AbortController();
let [handled, begun, ended] = [0, 0, 0];

/** Workers end up to a second after the last message, when nothing answers their pull. */
function count() {
  handled += 1;
  if (handled === Math.floor(messages / 5)) {
    begun = performance.now();
  } else if (handled === messages) {
    ended = performance.now();
    done.abort();
  }
}

async function handler(cx: Context, customer: number) {
  await cx.client.query(EFFECT, [customer]);
  count();
}

async function handleSet(cx: SetContext, entries: Entry<number>[]) {
  const values = entries.map(({ data }) => data);
  await cx.client.query("INSERT INTO effect (customer, cents) SELECT unnest($1::bigint[]), 100", [values]);
  entries.forEach(count);
}

async function provide(key: string) {
  await setTimeout(Number(process.env.CALL_MS));
  return `receipt of ${key}`;
}

async function leased(cx: LeasedContext, customer: number) {
  await cx.effect("charge", provide, { providerIdempotent: true });
  return customer;
}

async function transaction(pool: Pool, work: (client: PoolClient) => Promise<unknown>) {
  const client = await pool.connect();
  await client.query("BEGIN");
  await work(client);
  await client.query("COMMIT");
  client.release();
}

async function bare(message: JsMsg, pool: Pool) {
  await transaction(pool, (client) => client.query(EFFECT, [message.json<number>()]));
}

/** By hand: a row says that the call begins, and a transaction has its end and the handler's writes. */
async function pending(message: JsMsg, pool: Pool) {
  const key = message.headers!.get("Idempotency-Key");
  const begins = await pool.query("INSERT INTO pending (key) VALUES ($1) ON CONFLICT DO NOTHING", [key]);
  if (begins.rowCount === 0) {
    throw new Error(`${key} is pending, or done: ask the provider`);
  }
  const receipt = await provide(key);
  await transaction(pool, async (client) => {
    await client.query("UPDATE pending SET receipt = $1 WHERE key = $2", [receipt, key]);
    await client.query(EFFECT, [message.json<number>()]);
  });
}

async function byHand(handle: (message: JsMsg, pool: Pool) => Promise<void>, js: JetStreamClient, pool: Pool) {
  const source = await js.consumers.get("BENCH", "bench");
  while (!done.signal.aborted) {
    const message = await source.next({ expires: 1000 });
    if (message !== null) {
      await handle(message, pool);
      message.ack();
      count();
    }
  }
}

const connection = await connect({ servers: process.env.NATS_URL! });
const js = jetstream(connection);
const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: concurrency, pipeline: true });
await Promise.all(Array.from({ length: concurrency }, () => pool.query("SELECT pg_sleep(0.1)")));
if (mode === "bare" || mode === "pending") {
  await Promise.all(Array.from({ length: concurrency }, () => byHand(mode === "bare" ? bare : pending, js, pool)));
} else {
  const inbox = new Inbox<number>(pool, mode === "lease" ? "bench:typescript-lease" : "bench:typescript");
  const consumer = new Consumer(js, "BENCH", "bench", { batch: mode === "batch" || mode === "set" ? 64 : 1 });
  if (mode === "set") {
    await consumer.runSet(inbox, handleSet, done.signal);
  } else {
    await consumer.run(inbox, mode === "lease" ? { handle: leased, finish: handler } : handler, done.signal);
  }
}
console.log(Math.round((1000 * (messages - Math.floor(messages / 5))) / (ended - begun)));
await connection.drain();
await pool.end();
