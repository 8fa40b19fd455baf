// Notes each payload by its digest, and fails with one: see tests/it/clients/large.rs.
import { createHash } from "node:crypto";
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { Consumer, Dead, Inbox, type Context } from "oncebox";
import { Pool } from "pg";

async function handle(cx: Context, payload: Uint8Array) {
  const digest = createHash("sha256").update(payload).digest("hex");
  await cx.client.query("INSERT INTO arrived (key, digest) VALUES ($1, $2)", [cx.key, digest]);
  if (cx.key === "fails") {
    throw new Dead("the handler fails");
  }
}

const connection = await connect({ servers: process.env.NATS_URL!, maxReconnectAttempts: -1 });
const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 3 });
const inbox = new Inbox<Uint8Array>(pool, "large", { attemptsMax: 2, backoffMs: [100, 100], decode: (payload) => payload });
await new Consumer(jetstream(connection), process.env.STREAM!, "large", { concurrency: 2 }).run(inbox, handle);
await connection.drain();
await pool.end();
