// The helpers for users' tests, in their own test: see tests/it/clients/testing.rs.
import { randomUUID } from "node:crypto";
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { execFileSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { Consumer, Dead, enqueue, Replier, startSaga, stepKey, type Context, type EffectOptions, type Handler, Inbox, type LeasedContext, type Message } from "oncebox";
import { crashes, enqueued, Flow, FlowError, message, Template } from "oncebox/testing";
import { Client, Pool } from "pg";

let template: Template;
before(async () => {
  const table = "CREATE TABLE charge (key text, cents bigint)";
  template = await Template.make(process.env.DATABASE_URL!, [table], process.env.ONCEBOX);
});
after(() => template.drop());

test("which messages a transaction has enqueued, and how a message arrives", async () => {
  const given = message("k", { cents: 7 }, { headers: { Tenant: " t " } });
  assert.deepEqual([given.headers, String(given.payload)], [{ "idempotency-key": "k", tenant: "t" }, '{"cents":7}']);
  await template.database(async (url) => {
    const client = new Client(url);
    await client.connect();
    await enqueue(client, { key: "before", subject: "a.b", payload: {} });
    await client.query("BEGIN");
    assert.deepEqual(await enqueued(client), []);
    const notBefore = new Date("2035-01-01T00:00:00Z");
    await enqueue(client, { key: "k:pay", subject: "a.pay", payload: { cents: 7 }, orderingKey: "o", headers: { A: "b" } });
    await client.query("SAVEPOINT s");
    await enqueue(client, { key: "k:later", subject: "a.later", payload: Buffer.from([255]), notBefore });
    assert.deepEqual(await enqueued(client), [
      { key: "k:pay", subject: "a.pay", payload: { cents: 7 }, headers: { A: "b" }, orderingKey: "o", notBefore: null },
      { key: "k:later", subject: "a.later", payload: Buffer.from([255]), headers: {}, orderingKey: null, notBefore },
    ]);
    await client.query("ROLLBACK");
    await client.end();
  });
});

/** Breaks the promise that the scenarios are about. */
class Forgetful<T> extends Inbox<T> {
  readonly #pool: Pool;
  constructor(pool: Pool) {
    super(pool, "test");
    this.#pool = pool;
  }
  override run(handler: Handler<T>, message: Message) {
    return new Inbox<T>(this.#pool, randomUUID(), { log }).run(handler, message);
  }
}

const log = { info: () => {}, warn: () => {} };
const twice = [["duplicate", 21], ["crash-after-commit", 14], ["lost-commit", 14], ["concurrent-pair", 14]];
for (const [name, isBad, isForgetful, expected] of [
  ["good", false, false, []],
  ["bad", true, false, [["crash-before-commit", 14]]],
  ["forgotten", false, true, twice],
] as const) {
  test(`a ${name} handler through crashes`, async () => {
    await template.database(async (url) => {
      const own = new Pool({ connectionString: url });
      own.on("error", () => {});
      const wrong = await crashes<{ cents: number }>(url, {
        inbox: (pool) => (isForgetful ? new Forgetful(pool) : new Inbox(pool, "test", { log })),
        payload: () => ({ cents: 7 }),
        handler: async (cx, { cents }) => {
          const insert = "INSERT INTO charge (key, cents) VALUES ($1, $2)";
          await (isBad ? own : cx.client).query(insert, [cx.key, cents]);
        },
        effects: async (key) => (await own.query("SELECT sum(cents)::int FROM charge WHERE key = $1", [key])).rows[0].sum,
      });
      await own.end();
      assert.deepEqual(wrong, expected.map(([scenario, cents]) => `${scenario}: ${cents} instead of 7`));
    });
  });
}

for (const [name, isBad] of [["good", false], ["bad", true]] as const) {
  test(`a ${name} handler under a lease dies at each statement and call`, async () => {
    await template.database(async (url) => {
      const own = new Pool({ connectionString: url });
      own.on("error", () => {});
      const made = "SELECT count(*)::int FROM charge WHERE key = $1";
      const count = async (key: string) => (await own.query(made, [key])).rows[0].count as number;
      const insert = (key: string) => own.query("INSERT INTO charge (key) VALUES ($1)", [key]);
      // A provider that carries out each call, and one that answers a key once.
      const reconciled: EffectOptions<null> = { reconcile: async (key) => (!isBad && (await count(key)) > 0 ? { happened: null } : "absent") };
      const wrong = await crashes<null>(url, {
        inbox: (pool) => new Inbox(pool, "leased", { log, backoffMs: [10, 10] }),
        payload: () => null,
        handler: {
          handle: async (cx: LeasedContext) => {
            await cx.effect("pay", async (key) => (await insert(key), null), reconciled);
            await cx.effect("mail", async (key) => void ((await count(key)) > 0 || (await insert(key))), { providerIdempotent: true });
          },
          finish: (cx) => cx.client.query("INSERT INTO charge (key) VALUES ($1)", [cx.key]),
        },
        effects: async (key) => [await count(`${key}:pay`), await count(`${key}:mail`), await count(key)],
      });
      await own.end();
      const twice = ["behind the call of pay", "before end_effect"].map((place) => `the process dies ${place}: [2,1,1] instead of [1,1,1]`);
      assert.deepEqual(wrong, isBad ? twice : []);
    });
  });
}

const SAGA = (name: string) => `
name = "order"
version = 1
[data]
"/order" = "integer"
[[step]]
name = "reserve"
subject = "${name}.do.reserve"
scope = "reserve"
no_compensation = true
payload = { from = "/data" }
`;

test("a flow until all is done, and what is left", async () => {
  const [program, natsUrl, name] = [process.env.ONCEBOX!, process.env.NATS_URL!, `flow${randomUUID().slice(0, 8)}`];
  const [connection, replier, done] = [await connect({ servers: natsUrl }), new Replier([`${name}.replies`]), new Set<string>()];
  const file = join(mkdtempSync(join(tmpdir(), "flow-")), "order.toml");
  writeFileSync(file, SAGA(name));
  const charge = async (cx: Context, { order }: { order?: number }) => {
    done.add(cx.key);
    if (order === 13) {
      throw new Dead("a bad number");
    }
    if (cx.message.subject.endsWith(".placed")) {
      await enqueue(cx.client, { key: stepKey(cx.key, "ship"), subject: `${name}.do.shipped`, payload: {} });
    }
    await replier.reply(cx, undefined);
  };
  await template.database(async (url) => {
    const pool = new Pool({ connectionString: url, max: 6 });
    const flow = () => {
      const consumer = new Consumer(jetstream(connection), name, "charge", { filterSubject: `${name}.do.>`, concurrency: 2 });
      const inbox = new Inbox<{ order?: number }>(pool, "reserve", { log });
      return new Flow(url, natsUrl, { streams: [`${name}=${name}.>`], program }).consumer(`${name}/charge`, (stop) => consumer.run(inbox, charge, stop));
    };
    const answers = ["--reply-to", `${name}.replies`];
    execFileSync(program, ["saga", "apply", file, ...answers, "--database-url", url]);
    await enqueue(pool as any, { key: "k", subject: `${name}.do.placed`, payload: {} });
    assert.equal((await startSaga(pool as any, "order", "4711", { order: 1 })).key, "4711:order");
    await flow().consumer(`${name}/oncebox-saga-replies`, [program, "saga", "run", file, ...answers]).runUntilQuiet(30_000);
    assert.deepEqual([...done].sort(), ["4711:order:reserve", "k", "k:ship"]);
    assert.deepEqual((await pool.query("SELECT state FROM oncebox.saga")).rows, [{ state: "completed" }]);
    await enqueue(pool as any, { key: "bad", subject: `${name}.do.placed`, payload: { order: 13 } });
    await assert.rejects(flow().runUntilQuiet(30_000), (error) => error instanceof FlowError && /bad.*a bad number/.test(error.message));
    const lame = flow().consumer(`${name}/lame`, ["sh", "-c", "echo its stream is needed >&2; exit 1"]).runUntilQuiet(30_000);
    await assert.rejects(lame, /the consumer .*\/lame has ended \(1\): .*is needed/);
    await pool.end();
  });
  await connection.close();
});
