/** The HTTP layer as a middleware of Express, or of anything with its signature, such as NestJS on Express. */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Pool } from "pg";

import { type Answer, Misuse, pairs } from "./problem.ts";
import { checkBody, offer, type RequestOptions, Requests, whole } from "./requests.ts";

export { claim, type Claim, type RequestOptions } from "./requests.ts";

/** The parts of a request of Express that are used here. */
export interface ExpressRequest extends IncomingMessage {
  baseUrl?: string;
  originalUrl?: string;
  route?: { path: unknown };
  body?: unknown;
}

const bodies = new WeakMap<object, Buffer>();

/** Keeps the bytes of a body, for parsers before the layer: `express.json({ verify: keepBody })`. */
export function keepBody(request: IncomingMessage, _: ServerResponse, body: Buffer): void {
  bodies.set(request, body);
}

/** A middleware for routes: `app.post("/orders", idempotency(pool, options), handler)`. */
export function idempotency<R extends ExpressRequest = ExpressRequest>(pool: Pool, options: RequestOptions<R>) {
  const requests = new Requests<R>(pool, options);
  return async (request: R, response: ServerResponse, next: (error?: unknown) => void): Promise<void> => {
    if (typeof response?.getHeaders !== "function") {
      throw new TypeError("this middleware has the signature of Express: (request, response, next); Hono and Koa have another one");
    }
    const before = Object.entries(response.getHeaders());
    let answer: Answer;
    const { setHeader, writeHead, write, end, flushHeaders } = response;
    try {
      if (requests.passes(request.method!, request.rawHeaders)) {
        return next();
      }
      const body = await bodyOf(request, requests.options.requestBodyMax);
      const { rawHeaders, method, originalUrl, url } = request;
      const route = options.route ?? (request.route ? mounted(request) : undefined);
      const asked = { request, method: method!, url: originalUrl ?? url!, rawHeaders, route, body };
      answer = await requests.run(asked, () => {
        request.headers["accept-encoding"] = "identity";
        const whole = captured(response);
        next();
        return whole;
      });
    } catch (error) {
      answer = requests.refused(error);
    }
    Object.assign(response, { setHeader, writeHead, write, end, flushHeaders });
    response.statusCode = answer.status;
    response.getHeaderNames().forEach((name) => response.removeHeader(name));
    const named = Map.groupBy(answer.headers, ([name]) => name.toLowerCase());
    before.filter(([name]) => !named.has(name)).forEach(([name, value]) => response.setHeader(name, value!));
    named.forEach((pairs, name) => response.setHeader(name, pairs.map(([, value]) => value)));
    if (answer.status !== 204 && answer.status !== 304) {
      response.setHeader("content-length", answer.body.length);
    }
    response.end(answer.body);
    // A handler that was too slow may go on: its answer goes nowhere.
    Object.assign(response, { setHeader: () => response, writeHead: () => response, write: () => true, end: () => response });
  };
}

/** A router on `/users/:user` has as many places as there are users, and each would be a scope of its own. */
const MOUNTS_MAX = 8;
const mounts = new WeakMap<object, Set<string>>();

/** The route with the place where its router is mounted, whose pattern Express does not tell. */
function mounted({ baseUrl = "", route }: ExpressRequest): string {
  const known = mounts.get(route!) ?? new Set();
  mounts.set(route!, known.add(baseUrl));
  if (known.size > MOUNTS_MAX) {
    throw new Misuse(`the router of ${route!.path} is mounted on a path with parameters, such as ${baseUrl}: give the layer a \`route\``);
  }
  // A router's "/" is the path of its mount: `/orders`, as every other language has it.
  return `${baseUrl}${route!.path}`.replace(/(?<=.)\/$/, "");
}

/** The answer of the later handlers, which write to this response. */
function captured(response: ServerResponse): Promise<Answer> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    const take = (chunk: unknown, encoding: unknown) => {
      if (chunk != null && typeof chunk !== "function") {
        chunks.push(typeof chunk === "string" ? Buffer.from(chunk, typeof encoding === "string" ? (encoding as BufferEncoding) : "utf8") : Buffer.from(chunk as Uint8Array));
      }
    };
    const call = (given: unknown[]) => {
      const callback = given.find((value) => typeof value === "function") as (() => void) | undefined;
      callback?.();
    };
    const writeHead = (status: number, ...given: unknown[]) => {
      response.statusCode = status;
      const headers = given.find((value) => typeof value === "object") ?? {};
      const flat = Array.isArray(headers) ? headers.flat() : Object.entries(headers).flat();
      flat.forEach((name, n) => n % 2 === 0 && response.setHeader(name, flat[n + 1]));
      return response;
    };
    const write = (...given: unknown[]) => {
      take(given[0], given[1]);
      call(given);
      return true;
    };
    const end = (...given: unknown[]) => {
      take(given[0], given[1]);
      resolve({ status: response.statusCode, headers: pairs(response.getHeaders()), body: Buffer.concat(chunks) });
      call(given);
      return response;
    };
    Object.assign(response, { writeHead, write, end, flushHeaders: () => {} });
  });
}

/**
 * The whole body: the bytes that a parser before the layer has kept; or those that were not read
 * yet, which become `request.body`.
 */
async function bodyOf(request: ExpressRequest, max: number): Promise<Buffer> {
  const kept = bodies.get(request);
  if (kept !== undefined) {
    return kept;
  }
  checkBody(request.headers, request.readableDidRead || request.readableEnded);
  const body = await whole(request.iterator({ destroyOnReturn: false }), max).catch((error: unknown) => {
    request.resume();
    throw error;
  });
  checkBody(request.headers, false, body.length);
  offer(request, body);
  if (body.length > 0) {
    request.body = body;
  }
  return body;
}
