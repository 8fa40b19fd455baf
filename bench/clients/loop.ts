// The loop of clients.sh in TypeScript: loop.ts bare|inbox MESSAGES, prints messages a second.
import { jetstream, type JetStreamClient } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { Consumer, Inbox, type Context } from "oncebox";
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
  await new Consumer(js, "BENCH", "bench").run(new Inbox<number>(pool, "bench:typescript"), handler, done.signal);
}
console.log(Math.round((1000 * (messages - Math.floor(messages / 5))) / (ended - begun)));
await connection.drain();
await pool.end();
