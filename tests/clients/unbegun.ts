// The BEGIN of a message fails, as when it is cancelled, and the claim that was sent after it does
// not: prints how the first and the second run end, and how many charges there are.
import { Inbox, type Context } from "oncebox";
import { Pool } from "pg";

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 1, pipeline: process.argv[2] === "pipeline" });
let fails = 1;
pool.on("connect", (client) => {
  const query = client.query.bind(client) as (...given: any[]) => any;
  client.query = (first: any, ...rest: any[]) => {
    const isBegin = `${first.text ?? first}`.startsWith("BEGIN") && fails-- > 0;
    return query(isBegin ? { text: "SELECT 1 / 0" } : first, ...rest);
  };
});

async function charge(cx: Context) {
  await cx.client.query("INSERT INTO charge (id, cents) VALUES ($1, 1)", [cx.key]);
}

const inbox = new Inbox(pool, "unbegun:charge");
await inbox.register();
const message = { subject: "orders.placed", payload: Buffer.from("null"), headers: { "idempotency-key": "begun" } };
const answers = [await inbox.run(charge, message), await inbox.run(charge, message)].map(({ name }) => name);
console.log(...answers, (await pool.query("SELECT FROM charge")).rowCount);
await pool.end();
