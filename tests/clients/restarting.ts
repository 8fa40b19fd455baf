// Consumers that are started again while a message waits for its next run, as tests: see tests/it/clients/libraries.rs.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect, headers } from "@nats-io/transport-node";
import { Consumer, Inbox, RetryAfter, Snooze, type ConsumerOptions } from "oncebox";
import { Pool } from "pg";

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 20 });
const connection = await connect({ servers: process.env.NATS_URL! });
const client = jetstream(connection);
const manager = await jetstreamManager(connection);
await manager.streams.add({ name: "RESTARTING", subjects: ["restarting.>"] });
after(async () => {
  await manager.streams.delete("RESTARTING");
  await connection.close();
  await pool.end();
});

const log = { info() {}, warn() {} };
const PAUSE_MS = 3000;

/** Runs a consumer five times, for half a second each, and then to the message's end; returns when its handler was called. */
async function restarted(name: string, order: ConsumerOptions["order"], fail: () => Error): Promise<number[]> {
  const given = headers();
  given.set("Idempotency-Key", name);
  given.set("Oncebox-Ordering-Key", "one");
  await client.publish(`restarting.${name}`, "null", { headers: given });
  const inbox = new Inbox(pool, `restarting:${name}`, { attemptsMax: 3, backoffMs: [2 * PAUSE_MS, 2 * PAUSE_MS], log });
  const runs: number[] = [];
  const began = Date.now();
  const handle = async () => {
    runs.push(Date.now() - began);
    if (runs.length === 1) {
      throw fail();
    }
  };
  const run = async (ms: number) => {
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), ms);
    const running = new Consumer(client, "RESTARTING", name, { filterSubject: `restarting.${name}`, order: order!, ackWaitMs: 2000 }).run(inbox, handle, stop.signal);
    for (let n = 0; runs.length < 2 && n * 20 < ms; n++) {
      await sleep(20);
    }
    stop.abort();
    clearTimeout(timer);
    await running;
  };
  for (let n = 0; n < 3; n++) {
    await run(600);
  }
  await run(10_000);
  return runs;
}

for (const order of ["strict", "process"] as const) {
  for (const [name, fail] of [
    ["failed", () => new Error("as it was told")],
    ["retry", () => new RetryAfter(PAUSE_MS)],
    ["snoozed", () => new Snooze(PAUSE_MS, "the gateway is away")],
  ] as const) {
    test(`${order}: a message that ${name} keeps its pause through restarts`, async () => {
      const runs = await restarted(`${order}-${name}`, order, fail);
      assert.equal(runs.length, 2);
      // The pause after a failure varies: at least half of the longest.
      assert.ok(runs[1]! - runs[0]! >= PAUSE_MS - 100, `${runs}`);
    });
  }
}

test("a snooze is no attempt, and is bounded", async () => {
  const inbox = new Inbox(pool, "restarting:snoozes", { attemptsMax: 2, snoozeMaxMs: 1000, log });
  await inbox.register();
  const message = { subject: "s", payload: Buffer.from("null"), headers: { "idempotency-key": "k" } };
  const snooze = async () => {
    throw new Snooze(300_000, "not yet");
  };
  for (let n = 0; n < 5; n++) {
    const verdict = await inbox.run(snooze, message);
    assert.deepEqual([verdict.name, verdict.after, verdict.reason], ["snoozed", 300_000, "not yet"]);
  }
  assert.equal((await pool.query("SELECT FROM oncebox.inbox_attempt WHERE scope = 'restarting:snoozes'")).rowCount, 0);
  await sleep(1100);
  const verdict = await inbox.run(snooze, message);
  assert.equal(verdict.name, "dead");
  assert.match(verdict.reason!, /snoozed for too long: not yet/);
  assert.throws(() => new Snooze(Number.NaN, "x"), /no number of at least 0/);
});
