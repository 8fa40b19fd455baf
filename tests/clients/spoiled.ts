// A handler that hides an error of PostgreSQL, or rolls back by itself, or does neither and meets a
// copy: prints what becomes of each message.
import { Inbox, type Context } from "oncebox";
import { Pool } from "pg";

async function spoil(cx: Context, reply: object | null) {
  await cx.client.query("INSERT INTO charge (id, cents) VALUES ($1, 1)", [cx.key]);
  if (cx.key !== "sound") {
    await cx.client.query(cx.key.endsWith("rollback") ? "ROLLBACK" : "SELECT 1 / 0").catch(() => {});
  }
  return reply;
}

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 2, pipeline: true });
const log = { info() {}, warn() {} };
const inbox = new Inbox<object | null>(pool, "spoiled:charge", { attemptsMax: 1, log });
for (const key of ["silent", "replying", "silent-rollback", "replying-rollback", "sound", "sound"]) {
  const payload = Buffer.from(key.startsWith("s") ? "null" : "{}");
  const message = { subject: "orders.placed", payload, headers: { "idempotency-key": key } };
  console.log(key, (await inbox.run(spoil, message)).name);
}
await pool.end();
