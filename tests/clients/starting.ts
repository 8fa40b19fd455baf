// How a consumer starts, and which messages it leaves alone, as tests: see tests/it/clients/libraries.rs.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { jetstream, jetstreamManager, type JetStreamClient } from "@nats-io/jetstream";
import { connect, headers } from "@nats-io/transport-node";
import { Consumer, Inbox, type ConsumerOptions } from "oncebox";
import { Pool } from "pg";

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 20 });
const connection = await connect({ servers: process.env.NATS_URL! });
const client = jetstream(connection);
const manager = await jetstreamManager(connection);
await manager.streams.add({ name: "STARTING", subjects: ["starting.>"] });
after(async () => {
  await manager.streams.delete("STARTING");
  await connection.close();
  await pool.end();
});

const publish = async (subject: string, key: string, more: Record<string, string> = {}) => {
  const given = headers();
  Object.entries({ "Idempotency-Key": key, ...more }).forEach(([name, value]) => given.set(name, value));
  await client.publish(`starting.${subject}`, JSON.stringify(key), { headers: given });
};

/** Consumes until this many messages are handled and a moment has passed; returns their keys, and the log. */
async function consumed(durable: string, options: ConsumerOptions, count: number, through: JetStreamClient = client): Promise<[string[], string]> {
  const [stop, keys, log]: [AbortController, string[], string[]] = [new AbortController(), [], []];
  const say = (text: string) => void log.push(text);
  const inbox = new Inbox<string>(pool, `starting:${durable}`, { log: { info: say, warn: say } });
  const handler = async (_: unknown, key: string) => {
    keys.push(key);
    if (keys.length >= count) {
      setTimeout(() => stop.abort(), 300);
    }
  };
  await new Consumer(through, "STARTING", durable, options).run(inbox, handler, stop.signal);
  return [keys.sort(), log.join("\n")];
}

test("a new consumer begins with all, now, or at a time, and says what it consumes", async () => {
  await publish("a", "one");
  await new Promise((resolve) => setTimeout(resolve, 50));
  const between = new Date();
  await publish("a", "two");
  const now = consumed("now", { start: "now", filterSubject: "starting.a" }, 1);
  const isThere = () => manager.consumers.info("STARTING", "now").then(() => true, () => false);
  while (!(await isThere())) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  await publish("a", "three");
  const [keys, log] = await now;
  assert.deepEqual(keys, ["three"]);
  assert.match(log, /consumer now of stream STARTING starts: scope starting:now, filter starting\.a, order process, concurrency 16, batch 1/);
  assert.deepEqual((await consumed("at", { start: between }, 2))[0], ["three", "two"]);
  assert.deepEqual((await consumed("all", {}, 3))[0], ["one", "three", "two"]);
  assert.throws(() => new Consumer(client, "STARTING", "d", { start: new Date(Number.NaN) }), /neither "all" nor "now"/);
});

test("a missing stream and missing tables name the command that makes them, in the log as well", async () => {
  const log: string[] = [];
  const options = { log: { info() {}, warn: (text: string) => void log.push(text) } };
  const lost = new Consumer(client, "NOWHERE", "d").run(new Inbox(pool, "starting:lost", options), async () => {});
  await assert.rejects(lost, /stream NOWHERE does not exist; a relay with --stream 'NOWHERE=SUBJECTS' creates it/);
  assert.match(log.at(-1)!, /consumer d of stream NOWHERE has ended, and consumes no more: .*NOWHERE does not exist/);
  const bare = new Consumer(client, "STARTING", "d").run(new Inbox(pool, "starting:bare", { ...options, schema: "nowhere" }), async () => {});
  await assert.rejects(bare, /oncebox migrate/);
  const narrow = new Pool({ connectionString: process.env.DATABASE_URL, max: 1 });
  const strict = new Consumer(client, "STARTING", "d", { order: "strict" }).run(new Inbox(narrow, "starting:narrow", options), async () => {});
  await assert.rejects(strict, /1 connections at most, and 2 are needed/);
  await narrow.end();
});

test("who waits for a connection of the pool says so, and which setting is too small", async () => {
  const narrow = new Pool({ connectionString: process.env.DATABASE_URL, max: 1 });
  const held = await narrow.connect();
  const said = Promise.withResolvers<string>();
  const registering = new Inbox(narrow, "starting:waits", { log: { info() {}, warn: said.resolve } }).register();
  const late = setTimeout(() => said.reject(new Error("nothing was said")), 15_000);
  const text = await said.promise.finally(() => held.release());
  assert.match(text, /scope starting:waits: waits for a connection of the pool for 10 seconds: are all 1 in use \(then set its `max`\)/);
  clearTimeout(late);
  await registering;
  await narrow.end();
});

test("a marker of the server is passed over, and is no dead letter", async () => {
  await publish("markers", "m1");
  const given = headers();
  given.set("Nats-Marker-Reason", "MaxAge");
  await client.publish("starting.markers", new Uint8Array(), { headers: given });
  await publish("markers", "m2");
  assert.deepEqual((await consumed("markers", { filterSubject: "starting.markers" }, 2))[0], ["m1", "m2"]);
  const { num_ack_pending, num_pending } = await manager.consumers.info("STARTING", "markers");
  assert.deepEqual([num_ack_pending, num_pending], [0, 0]);
  assert.equal((await pool.query("SELECT FROM oncebox.dead_letter WHERE scope = 'starting:markers'")).rowCount, 0);
});

test("an error of another copy of the library of NATS is known by its code", async () => {
  // As another copy throws it: of the same shape, and of another class.
  const foreign = Object.assign(new Error("consumer not found"), { name: "ConsumerNotFoundError", code: 10014, status: 404 });
  const info = (stream: string, name: string) => manager.consumers.info(stream, name).catch(() => { throw foreign; });
  const consumers = new Proxy(manager.consumers, { get: (target, name) => (name === "info" ? info : (target as any)[name].bind(target)) });
  const other = new Proxy(manager, { get: (target, name) => (name === "consumers" ? consumers : typeof (target as any)[name] === "function" ? (target as any)[name].bind(target) : (target as any)[name]) });
  const through = new Proxy(client, { get: (target, name) => (name === "jetstreamManager" ? async () => other : typeof (target as any)[name] === "function" ? (target as any)[name].bind(target) : (target as any)[name]) });
  assert.equal((await consumed("copies", { filterSubject: "starting.a" }, 3, through))[0].length, 3);
});

test("a message outside of the consumer's own filter is left to the service that shares its durable", async () => {
  await manager.consumers.add("STARTING", { durable_name: "shared", ack_policy: "explicit", filter_subject: "starting.shared.one" });
  await publish("shared.one", "s1");
  const [stop, log, keys] = [new AbortController(), [] as string[], [] as string[]];
  const say = (text: string) => void log.push(text);
  const inbox = new Inbox<string>(pool, "starting:shared", { log: { info: say, warn: say } });
  const running = new Consumer(client, "STARTING", "shared", { filterSubject: "starting.shared.one" }).run(inbox, async (_, key) => void keys.push(key), stop.signal);
  const until = async (done: () => boolean) => {
    for (let n = 0; n < 100 && !done(); n++) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    assert.ok(done());
  };
  await until(() => keys.length === 1);
  // A second service overwrites the filter.
  await manager.consumers.update("STARTING", "shared", { filter_subject: "starting.shared.two" });
  await publish("shared.two", "s2");
  await until(() => log.some((text) => /starting\.shared\.two .*outside its filter starting\.shared\.one.*another service/.test(text)));
  stop.abort();
  await running;
  assert.deepEqual(keys, ["s1"]);
});
