// Uploads through the HTTP layer, with the parsers that teams use, as tests: with DATABASE_URL of a
// migrated database.
import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import multipart from "@fastify/multipart";
import express from "express";
import fastify from "fastify";
import multer from "multer";
import pg from "pg";
import { claim, idempotency } from "../dist/express.js";
import { idempotency as plugin } from "../dist/fastify.js";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 4 });
const options = { scope: "uploads", tenant: () => "t", handlerTimeoutMs: 5000 };
before(() => pool.query("CREATE TABLE upload (name text, content text)"));
after(() => pool.end());

/** The same bytes each time, as a client that repeats its request sends them. */
async function upload(url: string, key: string, content: string) {
  const body = `--b\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\n${content}\r\n--b--\r\n`;
  const headers = { "idempotency-key": key, "content-type": "multipart/form-data; boundary=b" };
  const response = await fetch(url, { method: "POST", headers, body });
  return [response.status, await response.text(), response.headers.get("idempotent-replayed")];
}

const insert = async (request: object, name: string, content: string) => {
  await claim(request).client.query("INSERT INTO upload VALUES ($1, $2)", [name, content]);
};

async function check(url: string, name: string) {
  assert.deepEqual(await upload(url, name, "first"), [200, "first", "false"]);
  assert.deepEqual(await upload(url, name, "first"), [200, "first", "true"]);
  assert.equal((await upload(url, name, "other"))[0], 422);
  assert.deepEqual((await pool.query("SELECT content FROM upload WHERE name = $1", [name])).rows, [{ content: "first" }]);
}

test("multer behind the layer of Express has the file, once", async () => {
  const app = express();
  app.post("/upload", idempotency(pool, options), multer().single("file"), async (request, response) => {
    const content = request.file!.buffer.toString();
    await insert(request, "express", content);
    response.type("text").send(content);
  });
  const server = app.listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  await check(`http://127.0.0.1:${(server.address() as AddressInfo).port}/upload`, "express").finally(() => server.close());
});

test("multer before the layer is refused", async () => {
  const app = express();
  app.post("/before", multer().single("file"), idempotency(pool, { ...options, log: { warn() {}, error() {} } }), (_, response) => void response.send("done"));
  const server = app.listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const answer = upload(`http://127.0.0.1:${(server.address() as AddressInfo).port}/before`, "before", "x").finally(() => server.close());
  assert.equal((await answer)[0], 500);
});

test("@fastify/multipart has the file, once", async () => {
  const app = fastify();
  await app.register(plugin, { pool, ...options });
  await app.register(multipart);
  app.post("/upload", async (request) => {
    const content = (await (await request.file())!.toBuffer()).toString();
    await insert(request, "fastify", content);
    return content;
  });
  const url = await app.listen({ port: 0, host: "127.0.0.1" });
  await check(`${url}/upload`, "fastify").finally(() => app.close());
});
