// A consumer under leases, whose provider waits at a gate: see tests/it/clients/crossing.rs.
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { Consumer, Inbox, type Context, type LeasedContext } from "oncebox";
import { Pool } from "pg";

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 8 });

async function provider(key: string) {
  await pool.query("INSERT INTO called (key) VALUES ($1)", [key]);
  while ((await pool.query("SELECT FROM gate WHERE key = $1", [key])).rowCount) {
    await sleep(50);
  }
  return `receipt of ${key}`;
}

async function handle(cx: LeasedContext, payload: Uint8Array) {
  await cx.effect("pay", provider, { providerIdempotent: true });
  return createHash("sha256").update(payload).digest("hex");
}

async function finish(cx: Context, digest: string) {
  await cx.client.query("INSERT INTO arrived (key, digest) VALUES ($1, $2)", [cx.key, digest]);
}

const connection = await connect({ servers: process.env.NATS_URL!, maxReconnectAttempts: -1 });
const inbox = new Inbox<Uint8Array>(pool, "tests:crossing", { attemptsMax: 9, backoffMs: [100, 100], decode: (payload) => payload });
const options = { concurrency: 4, order: process.env.ORDER as "strict", ackWaitMs: 2000 };
const consumer = new Consumer(jetstream(connection), process.env.STREAM!, "crossing", options);
await consumer.run(inbox, { leaseMs: 2000, handle, finish });
// As a process does that drains nothing: the acknowledgements have been sent.
process.exit();
