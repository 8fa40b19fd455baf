// A shop with the HTTP layer, whose handler does as the header x-do says: see
// tests/it/clients/serving.rs. libraries/frameworks.ts has the frameworks that users of the package
// need not install.
import { randomUUID } from "node:crypto";
import express from "express";
import fastify from "fastify";
import { enqueue, stepKey } from "oncebox";
import { type Claim, claim, idempotency, type RequestOptions } from "oncebox/express";
import { idempotency as plugin } from "oncebox/fastify";
import { Pool } from "pg";

interface Made {
  status: number;
  headers?: Record<string, string | string[]>;
  body: string;
}

const INSERT = "INSERT INTO effect (key, n, line) VALUES ($1, $2, $3) RETURNING id";
export const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 4 });
const { request_body_max, response_body_max, in_flight_wait, handler_timeout, documentation } = JSON.parse(process.env.SETTINGS ?? "{}");
const defined = <T extends object>(options: T): T => Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as T;
const seconds = (value?: number) => (value === undefined ? undefined : 1000 * value);
/** As an authentication before the layer would find it out. */
const tenant = ({ headers }: { headers: Record<string, unknown> }) => {
  const value = (headers["x-tenant"] as string | undefined) ?? "main";
  return /^[ -~]*$/.test(value) ? value : null;
};
export const options: RequestOptions<any> = defined({
  ...{ scope: "shop", tenant, documentation, requestBodyMax: request_body_max, responseBodyMax: response_body_max },
  ...{ inFlightWaitMs: seconds(in_flight_wait), handlerTimeoutMs: seconds(handler_timeout) },
} as RequestOptions<any>);

/** Each run has a number, which no rollback takes back. */
export async function act(own: Claim, headers: Record<string, unknown>, body: string): Promise<Made> {
  const { client } = own;
  const { rows: [{ run }] } = await client.query("SELECT nextval('run') AS run");
  const n = /^-?[0-9]+$/.test(body) ? Number(body) : null;
  if (n === null) {
    return { status: 400, body: `${JSON.stringify(body)} is not a number` };
  }
  const [what, number = ""] = String(headers["x-do"] ?? "order").split(":");
  const { rows: [{ id }] } = await client.query(INSERT, [own.key, n, own.tenant]);
  switch (what) {
    case "status":
      return { status: Number(number), body: `status ${number} of run ${run}` };
    case "lost":
      await client.query("SELECT pg_terminate_backend(pg_backend_pid())").catch(() => {});
      return { status: Number(number), body: "no money" };
    case "keep":
      own.keepsWrites = true;
      return { status: Number(number), body: "no money" };
    case "panic":
      throw new Error("this handler fails");
    case "conflict":
      await client.query("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$");
      break;
    case "swallow":
      await client.query("SELECT 1 / 0").catch(() => {});
      break;
    case "restart":
      await client.query("ROLLBACK; BEGIN");
      await client.query(INSERT, [own.key, n, own.tenant]);
      break;
    case "commit":
      // Hidden after another statement, since the client refuses it otherwise.
      await client.query("SELECT 1; COMMIT");
      break;
    case "enqueue":
      await enqueue(client, { key: stepKey(own.key, "pay"), subject: "orders.placed", payload: { n } });
      break;
    case "locked":
      await client.query("SELECT pg_advisory_xact_lock_shared(4711)");
      break;
    case "hang":
      await new Promise(() => {});
      break;
    case "large":
      return { status: 201, headers: { location: `/orders/${id}` }, body: "x".repeat(Number(number)) };
    case "encoded":
      return { status: 201, headers: { "content-encoding": "gzip", "content-language": "de" }, body: "as if packed" };
  }
  const link = ['</orders>; rel="collection"', '</>; rel="index"'];
  const made = { "content-type": "application/vnd.shop+json; v=1", location: `/orders/${id}`, etag: 'W/"1"', link, "x-request-id": randomUUID() };
  return { status: 201, headers: made, body: `{"z" : 1.0,\n\t"id":${id}, "a":"\\u00e9" }\n` };
}

export const port = Number(process.env.PORT);
if (process.argv[2] === "express") {
  const app = express();
  const once = idempotency(pool, options);
  const handler: express.RequestHandler = async (request, response) => {
    const { status, headers = {}, body } = await act(claim(request), request.headers, String(request.body ?? ""));
    response.status(status);
    Object.entries(headers).forEach(([name, value]) => response.setHeader(name, value));
    response.end(body);
  };
  app.get("/orders", once, (_, response) => void response.send("nothing"));
  app.post("/orders", once, handler);
  app.put("/orders", once, handler);
  app.post("/orders/:id/items", once, handler);
  app.listen(port, "127.0.0.1");
} else if (process.argv[2] === "fastify") {
  const app = fastify();
  app.addContentTypeParser("*", { parseAs: "string" }, (_, body, done) => done(null, body));
  await app.register(plugin, { pool, ...options });
  app.get("/orders", async () => "nothing");
  app.route({
    method: ["POST", "PUT"],
    url: "/orders",
    handler: async (request, reply) => {
      const { status, headers = {}, body } = await act(claim(request), request.headers, String(request.body ?? ""));
      return reply.code(status).headers(headers).send(body);
    },
  });
  await app.listen({ port, host: "127.0.0.1" });
}
