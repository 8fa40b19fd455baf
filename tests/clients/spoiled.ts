// A handler that hides an error of PostgreSQL, with a reply and without: prints what becomes of each.
import { Inbox, type Context } from "oncebox";
import { Pool } from "pg";

async function spoil(cx: Context, reply: object | null) {
  await cx.client.query("INSERT INTO charge (id, cents) VALUES ($1, 1)", [cx.key]);
  await cx.client.query("SELECT 1 / 0").catch(() => {});
  return reply;
}

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 2, pipeline: true });
const log = { info() {}, warn() {} };
const inbox = new Inbox<object | null>(pool, "spoiled:charge", { attemptsMax: 1, log });
for (const [key, payload] of [["silent", "null"], ["replying", "{}"]] as const) {
  const message = { subject: "orders.placed", payload: Buffer.from(payload), headers: { "idempotency-key": key } };
  console.log(key, (await inbox.run(spoil, message)).name);
}
await pool.end();
