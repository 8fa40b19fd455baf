// The orders of ../orders/main.go, with the same protocol, through Graphile Worker: a local queue
// of 500 jobs and completion in batches, as its page on performance has them. It completes a job
// in a transaction of its own, after the handler's, so a unique index makes the effect happen once.
import { createInterface } from "node:readline";
import { setTimeout } from "node:timers/promises";

import { Logger, run, runMigrations } from "graphile-worker";
import pg from "pg";

const [producers, workers, note] = [8, 16, "x".repeat(200)];
const connectionString = process.env.DATABASE_URL;
const pool = new pg.Pool({ connectionString, max: producers });
let [before, begun, handled, committed, started] = [0, 0, 0, [], []];
const sinceBegin = () => performance.now() - begun;

async function order({ order, cents }, { query }) {
  if (started[order - before] === undefined) {
    started[order - before] = sinceBegin();
    handled += 1;
  }
  await query({
    name: "effect",
    text: "INSERT INTO effect (order_id, cents) VALUES ($1, $2) ON CONFLICT DO NOTHING",
    values: [order, cents],
  });
}

async function place(id) {
  const client = await pool.connect();
  await client.query("BEGIN");
  await client.query({ name: "order", text: "INSERT INTO orders (id, cents) VALUES ($1, $2)", values: [id, 100] });
  const job = JSON.stringify({ order: id, cents: 100, note });
  await client.query({ name: "job", text: "SELECT graphile_worker.add_job('order', $1::json)", values: [job] });
  await client.query("COMMIT");
  client.release();
}

async function sell(orders, rate) {
  [begun, handled, committed, started] = [performance.now(), 0, Array(orders), Array(orders)];
  let next = 0;
  const produce = async () => {
    for (let number = next++; number < orders; number = next++) {
      const wait = rate > 0 ? (number * 1000) / rate - sinceBegin() : 0;
      if (wait > 0) await setTimeout(wait);
      await place(before + number);
      committed[number] = sinceBegin();
    }
  };
  await Promise.all(Array.from({ length: producers }, produce));
  while (handled < orders) await setTimeout(1);
  before += orders;
  const deadline = performance.now() + 30_000;
  for (let effects = 0; effects < before && performance.now() < deadline; ) {
    effects = Number((await pool.query("SELECT count(*) FROM effect")).rows[0].count);
  }
  const seconds = sinceBegin() / 1000;
  const latencies = Float64Array.from(committed, (time, n) => Math.max(started[n] - time, 0)).sort();
  const percentile = (percent) => latencies[Math.ceil((orders * percent) / 100) - 1].toFixed(3);
  return `${seconds.toFixed(4)} ${percentile(50)} ${percentile(99)}`;
}

const logger = new Logger(() => (level, message) => level === "error" && console.error(message));
await runMigrations({ connectionString, logger });
const runner = await run({
  taskList: { order },
  logger,
  preset: {
    worker: {
      connectionString,
      concurrentJobs: workers,
      maxPoolSize: workers + 1,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
});
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  console.log(await sell(...line.split(" ").map(Number)));
}
await runner.stop();
await pool.end();
