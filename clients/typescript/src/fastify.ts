/** The HTTP layer as a plugin of Fastify, for the routes that are registered with it or after it. */
import { Readable } from "node:stream";
import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import type { Pool } from "pg";

import { type Answer, Misuse, pairs, Problem } from "./problem.ts";
import { checkBody, offer, type RequestOptions, Requests, whole } from "./requests.ts";

export { claim, type Claim, type RequestOptions } from "./requests.ts";

type Headers = Record<string, string | number | string[] | undefined>;

/** A request that is in the layer. */
interface Asking {
  body: Buffer;
  /** The headers of the reply that hooks before the layer have set. */
  before: Headers;
  /** Takes the handler's answer, or its failure, as long as there is a handler. */
  finish?: ((answer: Answer | Promise<never>) => void) | undefined;
  answer?: Promise<Answer>;
}

/** `app.register(idempotency, { pool, scope: "shop", tenant: (request) => request.user?.id })` */
export async function idempotency(app: FastifyInstance, { pool, ...options }: RequestOptions<FastifyRequest> & { pool: Pool }): Promise<void> {
  const requests = new Requests<FastifyRequest>(pool, options);
  const asking = new WeakMap<FastifyRequest, Asking>();
  const refuse = (reply: FastifyReply, error: unknown) => {
    if (!(error instanceof Problem || error instanceof Misuse)) {
      throw error;
    }
    send(reply, requests.refused(error), { ...reply.getHeaders() });
  };

  app.addHook("preParsing", async (request, reply, payload) => {
    try {
      if (request.is404 || requests.passes(request.method, request.raw.rawHeaders)) {
        return payload;
      }
      checkBody(request.headers, payload === request.raw && request.raw.readableDidRead);
      const body = await whole(payload, requests.options.requestBodyMax);
      checkBody(request.headers, false, payload === request.raw ? body.length : undefined);
      offer(request.raw, body);
      asking.set(request, { body, before: {} });
      return Object.assign(Readable.from([body]), { receivedEncodedLength: body.length });
    } catch (error) {
      refuse(reply, error);
      return reply as never;
    }
  });

  app.addHook("preHandler", async (request, reply) => {
    const own = asking.get(request);
    if (own === undefined) {
      return;
    }
    own.before = { ...reply.getHeaders() };
    reply.hijack = () => {
      throw new Misuse("reply.hijack() is refused behind the idempotency layer: it sends the answer after the COMMIT");
    };
    const { method, raw } = request;
    const asked = { request, method, url: raw.url!, rawHeaders: raw.rawHeaders, route: options.route ?? request.routeOptions.url, body: own.body };
    const isClaimed = await new Promise<boolean>((resolve) => {
      own.answer = requests.run(asked, () => {
        request.headers["accept-encoding"] = "identity";
        resolve(true);
        return new Promise<Answer>((finish) => (own.finish = finish));
      });
      void own.answer.then(() => resolve(false));
    });
    if (!isClaimed) {
      send(reply, await own.answer!, own.before);
      return reply;
    }
    // A handler that is too slow goes on, and its answer goes nowhere.
    void own.answer!.then((answer) => {
      if (own.finish !== undefined) {
        own.finish = undefined;
        send(reply, answer, own.before);
      }
    });
    return undefined;
  });

  app.addHook("onSend", async (request, reply, payload) => {
    const own = asking.get(request);
    const finish = own?.finish;
    if (own === undefined || finish === undefined) {
      return payload;
    }
    own.finish = undefined;
    let body: Buffer;
    try {
      body = await buffered(payload);
    } catch (error) {
      // A stream that has failed: nothing is sent yet.
      finish(Promise.reject(error));
      return prepared(reply, await own.answer!, own.before).body;
    }
    finish({ status: reply.statusCode, headers: pairs(reply.getHeaders()), body });
    return prepared(reply, await own.answer!, own.before).body;
  });
}
// As fastify-plugin does: the hooks are for the routes beside the plugin, and not only for those in it.
Object.assign(idempotency, { [Symbol.for("skip-override")]: true });

function send(reply: FastifyReply, answer: Answer, before: Headers): void {
  void prepared(reply, answer, before).reply.send(answer.body);
}

/** Sets status and headers of an answer, in place of those that the handler has set. */
function prepared(reply: FastifyReply, answer: Answer, before: Headers): { reply: FastifyReply; body: Buffer } {
  Object.keys(reply.getHeaders()).forEach((name) => reply.removeHeader(name));
  void reply.headers(before);
  for (const [name, pairs] of Map.groupBy(answer.headers, ([name]) => name.toLowerCase())) {
    const values = pairs.map(([, value]) => value);
    void reply.removeHeader(name).header(name, values.length === 1 ? values[0] : values);
  }
  return { reply: reply.code(answer.status), body: answer.body };
}

async function buffered(payload: unknown): Promise<Buffer> {
  if (payload == null) {
    return Buffer.alloc(0);
  }
  if (typeof payload === "string" || payload instanceof Uint8Array) {
    return Buffer.from(payload as string);
  }
  return await whole(payload as AsyncIterable<Uint8Array>, Infinity);
}
