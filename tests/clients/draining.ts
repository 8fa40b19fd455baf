// A consumer whose handler does not end: prints how its drain ends.
import { jetstream } from "@nats-io/jetstream";
import { connect, headers } from "@nats-io/transport-node";
import { Consumer, Inbox } from "oncebox";
import { Pool } from "pg";

const client = jetstream(await connect({ servers: process.env.NATS_URL! }));
const key = headers();
key.set("Idempotency-Key", "endless");
await client.publish(process.env.SUBJECT!, "null", { headers: key });

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 2, pipeline: true });
const inbox = new Inbox<null>(pool, "draining:test", { stepTimeoutMs: 1000, log: { info() {}, warn() {} } });
const consumer = new Consumer(client, process.env.STREAM!, "draining", { concurrency: 2, graceMs: 100 });
const stop = new AbortController();
const handle = () => {
  stop.abort();
  return new Promise(() => {});
};
const running = consumer.run(inbox, handle, stop.signal);
console.log(await running.then(() => "ends without an error", (error) => error.message));
process.exit();
