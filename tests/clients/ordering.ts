// A consumer that keeps the order of each key: see tests/it/clients/ordering.rs. Each seventh message fails twice.
// One whose negative number is in the table `tried` is given up.
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { Consumer, Dead, Inbox, type Context } from "oncebox";
import { Pool } from "pg";

interface Numbered {
  key: string;
  n: number;
}

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 9, pipeline: true } as object);

async function handle(cx: Context, { key, n }: Numbered) {
  const broken = await cx.client.query("SELECT FROM tried WHERE key = $1 AND n = $2", [key, -n || null]);
  if (broken.rowCount) {
    throw new Dead(`no account ${n}`);
  }
  if (n % 7 === 3) {
    const { rows } = await pool.query("INSERT INTO tried (key, n) VALUES ($1, $2) RETURNING (SELECT count(*)::int FROM tried WHERE key = $1 AND n = $2)", [key, n]);
    if (rows[0].count < 2) {
      throw new Error("as it was told");
    }
  }
  await cx.client.query("INSERT INTO effect (key, n) VALUES ($1, $2)", [key, n]);
}

const connection = await connect({ servers: process.env.NATS_URL!, maxReconnectAttempts: -1 });
const inbox = new Inbox<Numbered>(pool, "ordering:test", { backoffMs: [150, 150] });
const consumer = new Consumer(jetstream(connection), process.env.STREAM!, "ordering", {
  order: process.env.ORDER as "strict",
  ackWaitMs: 2000,
  batch: Number(process.env.BATCH ?? 1),
  concurrency: 8,
});
await consumer.run(inbox, handle);
process.exit();
