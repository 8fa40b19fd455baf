// Producers and handlers through the libraries of teams, as tests: with DATABASE_URL of a migrated database.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { drizzle } from "drizzle-orm/node-postgres";
import { drizzle as drizzleOver } from "drizzle-orm/postgres-js";
import { integer, pgTable, text } from "drizzle-orm/pg-core";
import { Kysely, PostgresDialect } from "kysely";
import pg from "pg";
import postgres from "postgres";
import { DataSource, EntitySchema } from "typeorm";
import { PrismaPg } from "@prisma/adapter-pg";
import { PrismaClient } from "./prisma/client.ts";
import { cancelDelayed, enqueue, enqueueAll, Inbox, SagaRefused, startSaga, type Context, type Transaction } from "../dist/index.js";
import { poolOf, sqlOf } from "../dist/postgres-js.js";

const url = process.env.DATABASE_URL!;
const pool = new pg.Pool({ connectionString: url, max: 4 });
const charges = pgTable("charge", { id: text().primaryKey(), cents: integer().notNull() });
interface Charge {
  id: string;
  cents: number;
}
const Charges = new EntitySchema<Charge>({ name: "charge", columns: { id: { type: "text", primary: true }, cents: { type: "int" } } });

const drizzled = drizzle({ client: pool });
const kysely = new Kysely<{ charge: Charge }>({ dialect: new PostgresDialect({ pool }) });
const typeorm = new DataSource({ type: "postgres", url, entities: [Charges] });
const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: url, max: 2 }) });
const sql = postgres(url, { max: 2, onnotice: () => {} });
const drizzledToo = drizzleOver({ client: sql });

/** Each library's transaction, and a write in it. */
const producers: Record<string, (work: (tx: Transaction, write: (id: string) => PromiseLike<unknown>) => Promise<void>) => Promise<unknown>> = {
  drizzle: (work) => drizzled.transaction((tx) => work(tx, (id) => tx.insert(charges).values({ id, cents: 1 }))),
  "drizzle over postgres.js": (work) => drizzledToo.transaction((tx) => work(tx, (id) => tx.insert(charges).values({ id, cents: 1 }))),
  kysely: (work) => kysely.transaction().execute((tx) => work(tx, (id) => tx.insertInto("charge").values({ id, cents: 1 }).execute())),
  prisma: (work) => prisma.$transaction((tx) => work(tx, (id) => tx.charge.create({ data: { id, cents: 1 } }))),
  typeorm: (work) => typeorm.transaction((tx) => work(tx, (id) => tx.insert(Charges, { id, cents: 1 }))),
  pg: async (work) => {
    const client = await pool.connect();
    try {
      await client.query("BEGIN");
      await work(client, (id) => client.query("INSERT INTO charge (id, cents) VALUES ($1, 1)", [id]));
      return await client.query("COMMIT");
    } catch (error) {
      await client.query("ROLLBACK");
      throw error;
    } finally {
      client.release();
    }
  },
  "postgres.js": (work) => sql.begin((tx) => work(tx, (id) => tx`INSERT INTO charge (id, cents) VALUES (${id}, 1)`)),
};

before(async () => {
  await pool.query("CREATE TABLE charge (id text PRIMARY KEY, cents int NOT NULL)");
  await typeorm.initialize();
});
after(async () => {
  await Promise.all([typeorm.destroy(), prisma.$disconnect(), sql.end()]);
  await kysely.destroy();
});

const messages = async (prefix: string) =>
  (await pool.query("SELECT key, subject, convert_from(payload, 'UTF8') AS payload, headers FROM oncebox.message WHERE key LIKE $1 ORDER BY key", [`${prefix}%`])).rows;
const charged = async (prefix: string) => (await pool.query("SELECT id FROM charge WHERE id LIKE $1 ORDER BY id", [`${prefix}%`])).rows.map(({ id }) => id);

for (const [name, transaction] of Object.entries(producers)) {
  const prefix = `p-${name.replaceAll(/[ .]/g, "")}`;
  test(`${name}: a message is committed with the producer's writes, or neither is`, async () => {
    await transaction(async (tx, write) => {
      await write(`${prefix}-1`);
      const message = { key: `${prefix}-1`, subject: "orders.placed", payload: { order: "ä" }, headers: { a: "b" }, orderingKey: "o" };
      assert.equal(typeof (await enqueue(tx, message)), "bigint");
      assert.equal(await enqueue(tx, message), null);
      const later = { key: `${prefix}-later`, subject: "orders.remind", payload: {}, notBefore: new Date(Date.now() + 60_000) };
      assert.equal(typeof (await enqueue(tx, later)), "bigint");
      assert.equal(await cancelDelayed(tx, later.key), true);
      const many = [2, 3, 4].map((n) => ({ key: `${prefix}-${n}`, subject: "orders.placed", payload: new Uint8Array([123, 125]) }));
      const saga = await startSaga(tx, "order", `saga-${prefix}`, { order: 1 });
      assert.deepEqual([saga.key, saga.isNew, typeof saga.id], [`saga-${prefix}:order`, true, "bigint"]);
      assert.deepEqual(await startSaga(tx, "order", `saga-${prefix}`, { order: 1 }, undefined, 1), { ...saga, isNew: false });
      const bare = await startSaga(tx, "order", `saga-${prefix}-1`, { order: 1 }, "oncebox", 1);
      assert.deepEqual([bare.key, bare.isNew], [`saga-${prefix}-1:order`, true]);
      const ids = await enqueueAll(tx, [...many, { ...message, payload: { order: "ä" } }]);
      assert.deepEqual(ids.map((id) => typeof id), ["bigint", "bigint", "bigint", "object"]);
    });
    const starts = [["order", `saga-${prefix}`, 2, "used"], ["order", "a b", 1, "businessId"], ["order", "other", "one", "data"], ["none", "other", 1, "definition"], ["order", "other", 1, "definition", 2]] as const;
    for (const [type, id, order, reason, version] of starts) {
      const refused = transaction((tx) => startSaga(tx, type, id, { order }, undefined, version).then(() => {}));
      await assert.rejects(refused, (error) => error instanceof SagaRefused && error.reason === reason);
    }
    const error = await transaction(async (tx, write) => {
      await write(`${prefix}-back`);
      await enqueue(tx, { key: `${prefix}-back`, subject: "orders.placed", payload: {} });
      throw new Error("no");
    }).then(() => null, (error: Error) => error.message);
    assert.equal(error, "no");
    assert.deepEqual(await charged(prefix), [`${prefix}-1`]);
    const sent = await messages(prefix);
    assert.deepEqual(sent.map(({ key }) => key), [1, 2, 3, 4].map((n) => `${prefix}-${n}`));
    assert.deepEqual([sent[0].payload, sent[0].headers.a, sent[1].payload], ['{"order":"ä"}', "b", "{}"]);
  });
}

/** Of the inboxes that run over no pool of pg. */
const pools: Record<string, pg.Pool> = { "postgres.js": poolOf(sql) };
type Db = { insert(id: string): PromiseLike<unknown>; transaction(work: (db: { insert(id: string): PromiseLike<unknown> }) => Promise<void>): Promise<unknown> };
/** The handler's transaction, as each library has it. */
const handlers: Record<string, (cx: Context) => Db> = {
  drizzle: (cx) => {
    const db = drizzle({ client: cx.client });
    const insert = (tx: Pick<typeof db, "insert">) => (id: string) => tx.insert(charges).values({ id, cents: 1 });
    return { insert: insert(db), transaction: (work) => db.transaction((tx) => work({ insert: insert(tx) })) };
  },
  kysely: (cx) => {
    const db = new Kysely<{ charge: Charge }>({ dialect: new PostgresDialect({ pool: cx.pool }) });
    const insert = (tx: Kysely<{ charge: Charge }>) => (id: string) => tx.insertInto("charge").values({ id, cents: 1 }).execute();
    return { insert: insert(db), transaction: (work) => db.transaction().execute((tx) => work({ insert: insert(tx) })) };
  },
  typeorm: (cx) => {
    const runner = Object.assign(typeorm.createQueryRunner(), { databaseConnection: cx.client, isTransactionActive: true, transactionDepth: 1 });
    const insert = (tx: typeof runner.manager) => (id: string) => tx.insert(Charges, { id, cents: 1 });
    return { insert: insert(runner.manager), transaction: (work) => runner.manager.transaction((tx) => work({ insert: insert(tx) })) };
  },
};

handlers["postgres.js"] = (cx) => {
  const own = sqlOf<postgres.ReservedSql>(cx);
  const insert = (id: string) => own`INSERT INTO charge (id, cents) VALUES (${id}, 1)`;
  const transaction: Db["transaction"] = async (work) => {
    await own`SAVEPOINT inner_one`;
    await work({ insert }).catch(async (error) => {
      await own`ROLLBACK TO SAVEPOINT inner_one`;
      throw error;
    });
  };
  return { insert, transaction };
};

for (const [name, db] of Object.entries(handlers)) {
  const run = async (key: string, handler: (cx: Context) => Promise<unknown>) => {
    const inbox = new Inbox(pools[name] ?? pool, `libraries:${name}`, { attemptsMax: 1, log: { info() {}, warn() {} } });
    await inbox.register();
    return await inbox.run(handler, { subject: "s", payload: Buffer.from("{}"), headers: { "idempotency-key": key } });
  };
  test(`${name}: a handler writes through it, once, and a transaction in it is a savepoint`, async () => {
    const handler = async (cx: Context) => {
      const own = db(cx);
      await own.insert(`${name}-1`);
      await own.transaction((tx) => Promise.resolve(tx.insert(`${name}-2`)).then(() => {}));
      const failed = own.transaction(async (tx) => {
        await tx.insert(`${name}-3`);
        throw new Error("within");
      });
      await assert.rejects(failed, /within/);
      await own.insert(`${name}-4`);
    };
    assert.equal((await run("one", handler)).name, "handled");
    assert.equal((await run("one", handler)).name, "replayed");
    assert.deepEqual(await charged(name), [1, 2, 4].map((n) => `${name}-${n}`));
  });
  test(`${name}: a handler that fails behind a transaction of the library leaves nothing`, async () => {
    const handler = async (cx: Context) => {
      await db(cx).transaction((tx) => Promise.resolve(tx.insert(`${name}-5`)).then(() => {}));
      throw new Error("as it was told");
    };
    assert.equal((await run("two", handler)).name, "dead");
    assert.deepEqual(await charged(`${name}-5`), []);
  });
  test(`${name}: replies, attempts and dead letters are stored as ever, and a COMMIT is refused`, async () => {
    assert.deepEqual(await run("reply", async (cx) => (await db(cx).insert(`${name}-7`), { "ä": [1] })).then(({ reply }) => reply), { "ä": [1] });
    assert.deepEqual((await run("reply", async () => {})).reply, { "ä": [1] });
    const own = new Inbox(pools[name] ?? pool, `libraries:${name}`, { attemptsMax: 2, backoffMs: [1, 1], handlerTimeoutMs: 300, log: { info() {}, warn() {} } });
    const origin = { stream: "S", sequence: 1, storedAt: "2026-11-23T13:00:00.000001Z" };
    const again = (handler: (cx: Context) => Promise<unknown>, key: string) =>
      own.run(handler, { subject: "s", payload: Buffer.from("{}"), headers: { "idempotency-key": key }, origin, deliveries: 2 });
    const commits = async (cx: Context) => (await db(cx).insert(`${name}-8`), await (pools[name] ? sqlOf(cx)`COMMIT` : cx.client.query("COMMIT")));
    assert.deepEqual([(await again(commits, "commits")).name, (await again(commits, "commits")).name], ["retry", "dead"]);
    const hangs = async (cx: Context) => (await db(cx).insert(`${name}-9`), await new Promise(() => {}));
    assert.deepEqual([(await again(hangs, "hangs")).name, (await again(hangs, "hangs")).name], ["retry", "dead"]);
    assert.equal((await again(async (cx) => await db(cx).insert(`${name}-10`).then(() => {}), "after")).name, "handled");
    assert.deepEqual((await Promise.all(["-8", "-9", "-10"].map((end) => charged(`${name}${end}`)))).map(({ length }) => length), [0, 0, 1]);
  });
  test(`${name}: work that a handler leaves behind is refused`, async () => {
    let late: Promise<unknown> = Promise.resolve();
    let go = () => {};
    const ended = new Promise<void>((resolve) => (go = resolve));
    const handler = async (cx: Context) => {
      const own = db(cx);
      late = ended.then(() => own.insert(`${name}-6`));
      late.catch(() => {});
    };
    assert.equal((await run("three", handler)).name, "handled");
    go();
    await assert.rejects(late);
    assert.deepEqual(await charged(`${name}-6`), []);
  });
}

/** Libraries over `cx.pool`, where each transaction thinks that it has a connection of its own. */
const beside: Record<string, (cx: Context) => Db> = {
  kysely: handlers.kysely!,
  prisma: (cx) => {
    const db = new PrismaClient({ adapter: new PrismaPg(cx.pool) });
    const insert = (tx: Pick<typeof db, "charge">) => (id: string) => tx.charge.create({ data: { id, cents: 1 } });
    return { insert: insert(db), transaction: (work) => db.$transaction((tx) => work({ insert: insert(tx) })) };
  },
  pg: (cx) => {
    const insert = (client: Pick<pg.Pool, "query">) => (id: string) => client.query("INSERT INTO charge (id, cents) VALUES ($1, 1)", [id]);
    const transaction: Db["transaction"] = async (work) => {
      const client = await cx.pool.connect();
      try {
        await client.query("BEGIN");
        await work({ insert: insert(client) });
        await client.query("COMMIT");
      } catch (error) {
        await client.query("ROLLBACK");
        throw error;
      } finally {
        client.release();
      }
    };
    return { insert: insert(cx.pool), transaction };
  },
};
for (const [name, db] of Object.entries(beside)) {
  test(`${name}: transactions and statements side by side are kept apart`, async () => {
    const inbox = new Inbox(pool, `beside:${name}`, { attemptsMax: 1, log: { info() {}, warn() {} } });
    await inbox.register();
    const id = (end: string) => `beside-${name}-${end}`;
    const handler = async (cx: Context) => {
      const own = db(cx);
      const work = (end: string, ms: number, fails = false) => own.transaction(async (tx) => {
        await tx.insert(id(end));
        await sleep(ms);
        if (fails) {
          throw new Error("within");
        }
      });
      const all = [work("a", 80, true), sleep(20).then(() => work("b", 100)), sleep(40).then(() => own.insert(id("c"))), sleep(60).then(() => work("d", 10, true))];
      assert.deepEqual((await Promise.allSettled(all)).map(({ status }) => status), ["rejected", "fulfilled", "fulfilled", "rejected"]);
      // One that waits for itself is told so.
      await assert.rejects(own.transaction(async () => void (await own.insert(id("e")))), /end it first/);
      await own.insert(id("f"));
    };
    const ran = await inbox.run(handler, { subject: "s", payload: Buffer.from("{}"), headers: { "idempotency-key": name } });
    assert.equal(ran.name, "handled");
    assert.deepEqual(await charged(`beside-${name}`), ["b", "c", "f"].map(id));
  });
}

test("pg: a borrowed client that begins again nests its transactions", async () => {
  const inbox = new Inbox(pool, "nested:pg", { attemptsMax: 1, log: { info() {}, warn() {} } });
  await inbox.register();
  const handler = async (cx: Context) => {
    const client = await cx.pool.connect();
    const steps = ["BEGIN", "nested-a", "BEGIN", "nested-b", "ROLLBACK", "nested-c", "BEGIN", "nested-d", "COMMIT", "COMMIT"];
    for (const step of steps) {
      await client.query(step.startsWith("nested") ? `INSERT INTO charge (id, cents) VALUES ('${step}', 1)` : step);
    }
    client.release();
    await cx.pool.query("INSERT INTO charge (id, cents) VALUES ('nested-e', 1)");
  };
  const ran = await inbox.run(handler, { subject: "s", payload: Buffer.from("{}"), headers: { "idempotency-key": "k" } });
  assert.deepEqual([ran.name, ran.reason], ["handled", undefined]);
  assert.deepEqual(await charged("nested"), ["nested-a", "nested-c", "nested-d", "nested-e"]);
});

test("prisma: the shop of the README answers a request that is repeated", async () => {
  const port = await new Promise<number>((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(port));
    });
  });
  const shop = spawn(process.execPath, [join(import.meta.dirname, "prisma_shop.ts")], { env: { ...process.env, PORT: String(port) }, stdio: "inherit" });
  const place = async (key: string, order: string) => {
    const [headers, body] = [{ "content-type": "application/json", "idempotency-key": key }, JSON.stringify({ order, cents: 7 })];
    const answer = await fetch(`http://127.0.0.1:${port}/orders`, { method: "POST", headers, body });
    return [answer.status, await answer.text()];
  };
  try {
    for (let left = 100; left > 0 && !(await fetch(`http://127.0.0.1:${port}`).then(() => true, () => false)); left--) {
      await sleep(100);
    }
    assert.deepEqual(await place("prisma-shop", "shop-1"), [201, '{"placed":"shop-1"}']);
    assert.deepEqual(await place("prisma-shop", "shop-1"), [201, '{"placed":"shop-1"}']);
    assert.equal((await place("prisma-shop", "shop-2"))[0], 422);
    assert.equal((await place("prisma-shop-2", "shop-1"))[0], 500, "the order is there already");
    assert.deepEqual(await charged("shop"), ["shop-1"]);
    const { rows } = await pool.query("SELECT count(*)::int AS n FROM oncebox.backlog() WHERE key LIKE '%prisma-shop%:charge'");
    assert.equal(rows[0].n, 1);
  } finally {
    shop.kill();
  }
});

test("prisma: the reason of a dead letter says what was refused", async () => {
  const inbox = new Inbox(pool, "refused:prisma", { attemptsMax: 1, log: { info() {}, warn() {} } });
  await inbox.register();
  const handler = async (cx: Context) => {
    await beside.prisma!(cx).insert("twice");
    await beside.prisma!(cx).insert("twice");
  };
  const ran = await inbox.run(handler, { subject: "s", payload: Buffer.from("{}"), headers: { "idempotency-key": "k" } });
  assert.match(JSON.stringify(ran), /PrismaClientKnownRequestError: Unique constraint failed/);
});
