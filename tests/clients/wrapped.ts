// The word of a handler, and lost races, through errors that libraries wrap; dead connections; spans that throw: as tests.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { context, propagation } from "@opentelemetry/api";
import { NodeTracerProvider, type SpanProcessor } from "@opentelemetry/sdk-trace-node";
import { Dead, enqueue, Inbox, Reject, RetryAfter, type Context } from "oncebox";
import { Pool } from "pg";

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 2 });
const logged: string[] = [];
const log = { info: () => {}, warn: (text: string) => logged.push(text) };
const inbox = new Inbox(pool, "wrapped", { attemptsMax: 3, log });
await inbox.register();
after(() => pool.end());
const run = (key: string, handler: (cx: Context) => Promise<unknown>, payload = "{}", own = inbox) =>
  own.run(handler, { subject: "s", payload: Buffer.from(payload), headers: { "idempotency-key": key } });
const wrapped = (cause: unknown) => new Error("Failed query: INSERT\nparams: secret", { cause: new AggregateError([new Error("beside"), cause]) });

test("the word of a handler is found in causes and groups", async () => {
  assert.equal((await run("dead", async () => { throw wrapped(new Dead("no use")); })).name, "dead");
  const retry = await run("retry", async () => { throw wrapped(new RetryAfter(3_600_000)); });
  assert.deepEqual([retry.name, retry.after], ["retry", 3_600_000]);
  const rejected = await run("reject", async () => { throw wrapped(new Reject("no")); });
  assert.deepEqual([rejected.name, rejected.reply], ["rejected", "no"]);
  assert.equal((await run("reject", async () => {})).name, "rejected");
});

test("a lost race runs again at once, however it is wrapped", async () => {
  let runs = 0;
  const verdict = await run("race", async (cx) => {
    if (++runs < 3) {
      await cx.client.query("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$").catch((error) => {
        throw wrapped(error);
      });
    }
  });
  assert.deepEqual([verdict.name, runs], ["handled", 3]);
});

test("the reason has the causes, and the log the stacks", async () => {
  const { reason } = await run("fails", async () => { throw wrapped(new RangeError("too far")); });
  assert.equal(reason, "Error: Failed query: INSERT; caused by AggregateError; caused by Error: beside; caused by RangeError: too far");
  assert.match(logged.at(-1)!, /wrapped\.ts:\d+/);
});

test("a payload that fails validation names the field, and not its value", async () => {
  const decode = () => { throw Object.assign(new Error("secret"), { name: "ZodError", issues: [{ path: ["lines", 0, "cents"], code: "too_small" }] }); };
  const own = new Inbox(pool, "wrapped", { decode, log });
  assert.equal((await run("zod", async () => {}, "{}", own)).reason, "the payload does not decode: ZodError at lines.0.cents: too_small");
});

test("a connection that is dead before the handler is called costs no attempt", async () => {
  await (await pool.connect()).release();
  let runs = 0;
  // The pool's own connections end just when the claim is sent.
  const victim = await pool.connect();
  const { rows: [{ pid }] } = await victim.query("SELECT pg_backend_pid() AS pid");
  victim.release();
  const killer = new Pool({ connectionString: process.env.DATABASE_URL, max: 1 });
  const original = pool.connect.bind(pool) as () => Promise<any>;
  let kills = 0;
  pool.connect = (async () => {
    const client = await original();
    if (kills++ === 0) {
      // It may break before the inbox, which listens then, has begun with it.
      client.on("error", () => {});
      await killer.query("SELECT pg_terminate_backend($1)", [client.processID ?? pid]);
    }
    return client;
  }) as typeof pool.connect;
  const handler = async () => { runs++; };
  await assert.rejects(run("gone", handler));
  const { rows } = await killer.query("SELECT failures FROM oncebox.inbox_attempt WHERE key = 'gone'");
  assert.deepEqual([rows, runs], [[], 0]);
  pool.connect = original as typeof pool.connect;
  assert.equal((await run("gone", handler)).name, "handled");
  await killer.end();
});

test("connections of a server that only reads are closed, and cost no attempt", async () => {
  const demoted = new Pool({ connectionString: process.env.DATABASE_URL, max: 1, options: "-c default_transaction_read_only=on" });
  const own = new Inbox(demoted, "wrapped", { log });
  await assert.rejects(run("reads", async () => {}, "{}", own));
  assert.equal(demoted.totalCount, 0);
  const { rows } = await pool.query("SELECT failures FROM oncebox.inbox_attempt WHERE key = 'reads'");
  assert.deepEqual(rows, []);
  await demoted.end();
});

test("a processor of spans that throws costs no attempt, and baggage stays out of headers", async () => {
  const throws = () => {
    throw new Error("as it was told");
  };
  const processor: SpanProcessor = { onStart() {}, onEnd: throws, forceFlush: async () => {}, shutdown: async () => {} };
  const spanProcessors = [processor];
  new NodeTracerProvider({ spanProcessors }).register();
  const baggage = propagation.createBaggage({ user: { value: "secret" } });
  let runs = 0;
  const verdict = await run("spans", async (cx) => {
    runs++;
    const message = { key: "baggage", subject: "a.b", payload: 7 };
    await context.with(propagation.setBaggage(context.active(), baggage), () => enqueue(cx.client, message));
  });
  assert.deepEqual([verdict.name, runs], ["handled", 1]);
  const { rows } = await pool.query("SELECT headers FROM oncebox.message WHERE key = 'baggage'");
  assert.deepEqual(Object.keys(rows[0].headers), ["traceparent"]);
  processor.onStart = throws;
  assert.equal((await run("begins", async () => {})).name, "handled");
});
