// The loop of clients.sh in TypeScript: loop.ts bare|inbox|batch|set MESSAGES, prints messages a second.
import { jetstream, type JetStreamClient } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { Consumer, Inbox, type Context, type Entry, type SetContext } from "oncebox";
import { Pool } from "pg";

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

async function bare(js: JetStreamClient, pool: Pool) {
  const source = await js.consumers.get("BENCH", "bench");
  while (!done.signal.aborted) {
    const message = await source.next({ expires: 1000 });
    if (message === null) {
      continue;
    }
    const client = await pool.connect();
    await client.query("BEGIN");
    await client.query(EFFECT, [message.json<number>()]);
    await client.query("COMMIT");
    client.release();
    message.ack();
    count();
  }
}

const connection = await connect({ servers: process.env.NATS_URL! });
const js = jetstream(connection);
const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: concurrency, pipeline: true });
await Promise.all(Array.from({ length: concurrency }, () => pool.query("SELECT pg_sleep(0.1)")));
if (mode === "bare") {
  await Promise.all(Array.from({ length: concurrency }, () => bare(js, pool)));
} else {
  const inbox = new Inbox<number>(pool, "bench:typescript");
  const consumer = new Consumer(js, "BENCH", "bench", { batch: mode === "inbox" ? 1 : 64 });
  await (mode === "set" ? consumer.runSet(inbox, handleSet, done.signal) : consumer.run(inbox, handler, done.signal));
}
console.log(Math.round((1000 * (messages - Math.floor(messages / 5))) / (ended - begun)));
await connection.drain();
await pool.end();
