// Services that set the HTTP layer up in ways that could do a request twice, as tests: each is refused, and nothing is done.
import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { Readable } from "node:stream";
import { after, test } from "node:test";
import express from "express";
import fastify from "fastify";
import { claim, idempotency } from "oncebox/express";
import { idempotency as plugin } from "oncebox/fastify";
import { Pool } from "pg";

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 4 });
await pool.query("CREATE TABLE refused (at text)");
after(() => pool.end());
const log = { warn() {}, error: (text: string) => logged.push(text) };
const logged: string[] = [];
const options = { scope: "refusing", tenant: () => "t", log, handlerTimeoutMs: 5000 };
const once = idempotency(pool, options);

async function ask(url: string, body = '{"amount":1}', key = crypto.randomUUID()) {
  const headers: Record<string, string> = { "idempotency-key": key, "content-type": "application/json" };
  const response = await fetch(url, { method: "POST", headers, body });
  return { status: response.status, text: await response.text(), headers: response.headers };
}

async function listening(app: express.Express, work: (url: string) => Promise<void>): Promise<void> {
  const server = app.listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  await work(`http://127.0.0.1:${(server.address() as AddressInfo).port}`).finally(() => server.close());
}

const act: express.RequestHandler = async (request, response) => {
  await claim(request).client.query("INSERT INTO refused VALUES ($1)", [request.originalUrl]);
  response.writeHead(201, [["x-made", "yes"]] as never).end("made");
};
const wrong = ({ status, text }: { status: number; text: string }) => assert.deepEqual([status, JSON.parse(text).type], [500, "urn:oncebox:problem:set-up-wrongly"]);
const done = async (at: string) => (await pool.query("SELECT FROM refused WHERE at = $1", [at])).rowCount;

test("express: a body that something has read before the layer", async () => {
  const app = express();
  app.use(async (request, _, next) => {
    for await (const _ of request) {
      // Such as a logger of bodies.
    }
    next();
  });
  app.post("/read", once, act);
  await listening(app, async (url) => wrong(await ask(`${url}/read`)));
  assert.equal(await done("/read"), 0);
  assert.match(logged.at(-1)!, /read before the layer/);
});

test("express: a router on a path with parameters is no scope for each user, unless the layer has a route", async () => {
  const [app, router, named] = [express(), express.Router(), express.Router()];
  router.post("/pay", once, act);
  named.post("/pay", idempotency(pool, { ...options, route: "/named/:user/pay" }), act);
  app.use("/users/:user", router).use("/named/:user", named);
  await listening(app, async (url) => {
    for (let n = 0; n < 20; n++) {
      const answer = await ask(`${url}/users/${n}/pay`);
      n < 8 ? assert.equal(answer.status, 201) : wrong(answer);
      assert.equal((await ask(`${url}/named/${n}/pay`)).headers.get("x-made"), n < 0 ? "" : "yes");
    }
  });
  const { rows } = await pool.query("SELECT scope FROM oncebox.inbox_scope WHERE scope LIKE '%/named/%'");
  assert.deepEqual(rows, [{ scope: "refusing POST /named/{user}/pay" }]);
});

test("express: the root of a router is its mount's path, as a NestJS controller has it", async () => {
  const [app, router] = [express(), express.Router()];
  router.post("/", once, act);
  app.use("/mounted", router);
  await listening(app, async (url) => {
    for (const path of ["/mounted", "/mounted/"]) {
      assert.equal((await ask(url + path)).status, 201, path);
    }
  });
  const { rows } = await pool.query("SELECT scope FROM oncebox.inbox_scope WHERE scope LIKE '%/mounted%'");
  assert.deepEqual(rows, [{ scope: "refusing POST /mounted" }]);
});

test("express: a tenant function that throws is no outage, and a scope that is too long is none", async () => {
  const app = express();
  const tenant = () => { throw new Error("as it was told"); };
  app.post("/throws", idempotency(pool, { ...options, tenant }), act);
  app.post("/long", idempotency(pool, { ...options, route: "x".repeat(250) }), act);
  await listening(app, async (url) => {
    const { status, text } = await ask(`${url}/throws`);
    assert.deepEqual([status, JSON.parse(text).type], [500, "urn:oncebox:problem:failed"]);
    wrong(await ask(`${url}/long`));
  });
});

test("a middleware of another framework's signature is refused", async () => {
  await assert.rejects(once({ req: {} } as never, (() => {}) as never, undefined as never), /Hono and Koa/);
});

test("fastify: hijacked replies and failing streams do nothing; unknown paths are 404", async () => {
  const app = fastify();
  await app.register(plugin, { pool, ...options });
  const insert = async (request: object, at: string) => await claim(request).client.query("INSERT INTO refused VALUES ($1)", [at]);
  app.post("/f-hijack", async (request, reply) => {
    await insert(request, "/f-hijack");
    reply.hijack();
    reply.raw.end("made");
  });
  app.post("/f-stream", async (request, reply) => {
    await insert(request, "/f-stream");
    async function* parts() {
      yield "a";
      throw new Error("as it was told");
    }
    return reply.send(Readable.from(parts()));
  });
  app.post("/f-good", async (request) => (await insert(request, "/f-good"), "made"));
  const url = await app.listen({ port: 0, host: "127.0.0.1" });
  try {
    const began = Date.now();
    assert.equal((await ask(`${url}/f-hijack`)).status, 500);
    assert.equal((await ask(`${url}/f-stream`)).status, 500);
    assert.ok(Date.now() - began < 3000, "and no key is held to the handler's limit");
    assert.equal((await ask(`${url}/f-unknown`)).status, 404);
    assert.equal((await ask(`${url}/f-good`)).status, 200);
  } finally {
    await app.close();
  }
  assert.deepEqual(await Promise.all(["/f-hijack", "/f-stream", "/f-good"].map(done)), [0, 0, 1]);
});
