// An inbox whose connection falls silent: prints its first answer, and the one of the runs after that.
import { Inbox, type Context } from "oncebox";
import { Pool } from "pg";

const what = process.argv[2]!;
const answers: string[] = [];

async function charge(cx: Context, order: object) {
  await cx.client.query("INSERT INTO charge (id, cents) VALUES ($1, 1)", [cx.key]);
  if (what.startsWith("failing") && answers.length === 0) {
    throw new Error("the first run fails");
  }
  return order;
}

async function run(): Promise<string> {
  try {
    if (what === "register") {
      await inbox.register();
      return "registered";
    }
    const payload = Buffer.from(what === "poison" ? "no JSON" : "{}");
    return (await inbox.run(charge, { subject: "orders.placed", payload, headers: { "idempotency-key": what } })).name;
  } catch (error) {
    console.error(error);
    return "silent";
  }
}

const log = { info() {}, warn() {} };
const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 1, pipeline: true });
const inbox = new Inbox<object>(pool, "silent:charge", { stepTimeoutMs: 1000, log });
while (answers.length === 0 || ["silent", "retry", "in_flight"].includes(answers.at(-1)!)) {
  answers.push(await run());
}
await pool.end();
console.log(answers[0], answers.at(-1));
