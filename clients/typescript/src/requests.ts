/**
 * Answers a repeated request from its stored response: the middlewares for Express and Fastify
 * stand on this.
 *
 * A request's key is claimed in the transaction that the handler writes through, and the response
 * is stored in it. Which responses are stored, and the answers of the layer itself, are those of
 * the crate oncebox-http; services of both kinds may answer each other's requests.
 */
import type { IncomingHttpHeaders, IncomingMessage } from "node:http";
import { Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import type { Pool, PoolClient } from "pg";

import { isTenant } from "./claim.ts";
import { commit, Database, type DatabaseOptions, LIMITS, type Own, rollBack, type Run, TimedOut } from "./database.ts";
import { isConflict, line, stacks } from "./errors.ts";
import { rootKey } from "./keys.ts";
import { type Answer, Misuse, Problem } from "./problem.ts";
import { close, query, SESSION } from "./wire.ts";

const SAFE = ["GET", "HEAD", "OPTIONS", "TRACE"];

/** The claim of a request's key, and the transaction that it is claimed in. */
export interface Claim extends Own {
  /** The root of the keys of the request's messages: `stepKey(claim.key, "ship")`. */
  key: string;
  tenant: string;
  /** Set it to have the writes committed with a 4xx, too. */
  keepsWrites: boolean;
}

export interface RequestOptions<R> extends DatabaseOptions {
  /** The service's name; with method and route it is the scope of a key. Never rename it. */
  scope: string;
  /**
   * The user's id, by your authentication before this layer; without one the answer is 403. With
   * null all requests belong to one tenant, and a repeated request must have the same credentials.
   */
  tenant: ((request: R) => string | null | undefined) | null;
  /** Default without a tenant: authorization and cookie, else none. */
  credentials?: string[];
  /** Chooses the bytes that tell requests apart, instead of content type and body. */
  content?: (request: R, body: Buffer) => Uint8Array;
  /** The route, where the router does not say it. */
  route?: string;
  /** Requests without a key pass, and have no claim. */
  passesWithoutKey?: boolean;
  /** Statuses of the 4xx that are not stored. Default: 401, 403, 408, 409, 425, 429. */
  notStored?: number[];
  /** Default: content-type, location, etag, link. */
  keptHeaders?: string[];
  /** Bytes. Default: 256 KiB each. */
  requestBodyMax?: number;
  responseBodyMax?: number;
  /**
   * How long a repeated request waits for the first one, before it is answered with 409. Default:
   * 1.5 seconds.
   */
  inFlightWaitMs?: number;
  retryAfterSeconds?: number;
  /** How long a response is kept at least; null is for ever. Default: 1 day. */
  retentionMs?: number | null;
  /** Where your API's documentation is, for a `Link` in the layer's own answers. */
  documentation?: string;
  log?: Pick<Console, "warn" | "error">;
}

/** A request, as its framework knows it. */
export interface Asked<R> {
  request: R;
  method: string;
  /** As it was sent, with the query. */
  url: string;
  rawHeaders: string[];
  route: string | undefined;
  body: Buffer;
}

interface Pending extends Run {
  scope: string;
  tenant: string;
  key: string;
  content: unknown[];
}

const claims = new WeakMap<object, Claim>();

/** The claim of a request of Express or Fastify; throws if there is none. */
export function claim(request: object): Claim {
  const found = claims.get(request);
  if (found === undefined) {
    throw new Error("there is no claim: the request has no key, or its route no idempotency layer");
  }
  return found;
}

/** The layer that the middlewares use. */
export class Requests<R extends object> {
  readonly options: Required<Omit<RequestOptions<R>, "tenant" | "content" | "route" | "documentation" | keyof DatabaseOptions>> & RequestOptions<R>;
  readonly #database: Database;
  readonly #registered = new Map<string, Promise<unknown>>();

  constructor(pool: Pool, options: RequestOptions<R>) {
    this.options = {
      ...{ credentials: options.tenant === null ? ["authorization", "cookie"] : [], passesWithoutKey: false },
      ...{ notStored: [401, 403, 408, 409, 425, 429], keptHeaders: ["content-type", "location", "etag", "link"] },
      ...{ requestBodyMax: 256 << 10, responseBodyMax: 256 << 10, inFlightWaitMs: 1500, retryAfterSeconds: 1 },
      ...{ retentionMs: 86_400_000, log: console },
      ...options,
    };
    this.#database = new Database(pool, options.scope, options, (text) => this.options.log.warn(text));
  }

  /** Whether a request passes without a claim; throws a Problem if it has no valid key. */
  passes(method: string, rawHeaders: string[]): boolean {
    if (SAFE.includes(method)) {
      return true;
    }
    if (clientKey(rawHeaders) === undefined && !this.options.passesWithoutKey) {
      throw new Problem("key-missing");
    }
    return clientKey(rawHeaders) === undefined;
  }

  /**
   * Answers a request: by its stored response, a problem, or the answer of the handler, which it
   * then stores.
   */
  async run(asked: Asked<R>, handle: (claim: Claim) => Promise<Answer>): Promise<Answer> {
    try {
      return await this.#run(asked, this.#identify(asked), handle);
    } catch (error) {
      return this.refused(error);
    }
  }

  /** The answer to a request that is not handled. */
  refused(error: unknown): Answer {
    let problem = error instanceof Problem ? error : new Problem("unavailable");
    if (error instanceof Misuse) {
      problem = new Problem("set-up-wrongly");
      this.options.log.error(`scope ${this.options.scope}: a request is refused with 500: ${error.message}`);
    } else if (!(error instanceof Problem)) {
      this.options.log.warn(`scope ${this.options.scope}: a request is answered with 503: ${line(error)}`);
    }
    return problem.answer(this.options.retryAfterSeconds, this.options.documentation);
  }

  /** Calls a function of the service's before there is a claim. */
  #own<V>(what: string, call: () => V): V {
    try {
      return call();
    } catch (error) {
      this.options.log.error(`scope ${this.options.scope}: the function \`${what}\` failed: ${stacks(error) || line(error)}`);
      throw new Problem("failed");
    }
  }

  #identify({ request, method, url, rawHeaders, route, body }: Asked<R>): Pending {
    const { tenant: tenantOf, scope, content, credentials } = this.options;
    const tenant = tenantOf === null ? "" : (this.#own("tenant", () => tenantOf(request)) ?? "");
    if (tenantOf !== null && !isTenant(tenant)) {
      throw new Problem("tenant-missing");
    }
    if (route === undefined) {
      throw new Misuse("it has no route: put the layer on a route, or give it a `route`");
    }
    if (body.length > this.options.requestBodyMax) {
      throw new Problem("body-too-large");
    }
    const [path = "", ...rest] = url.split("?");
    const pairs = credentials.map((name) => name.toLowerCase()).flatMap((name) => valuesOf(rawHeaders, name).map((value) => [name, value]));
    const chosen = content ? [null, this.#own("content", () => content(request, body))] : [valuesOf(rawHeaders, "content-type")[0] ?? "", body];
    const parts = [method, path, rest.join("?"), JSON.stringify(pairs), ...chosen];
    const whole = `${scope} ${method} ${template(route)}`;
    if (Buffer.byteLength(whole) > 255) {
      throw new Misuse(`the scope ${whole} is longer than 255 bytes: give the layer a shorter \`scope\` or \`route\``);
    }
    return { scope: whole, tenant, key: clientKey(rawHeaders)!, content: parts };
  }

  async #run({ request }: Asked<R>, pending: Pending, handle: (claim: Claim) => Promise<Answer>): Promise<Answer> {
    await this.#register(pending.scope);
    const [deadline, clientKey] = [Date.now() + this.options.inFlightWaitMs, pending.key];
    for (;;) {
      const client = await this.#database.connect();
      const look = async () => {
        const stored = await this.#look(client, pending, clientKey);
        return stored !== null || pending.xid === undefined ? stored : undefined;
      };
      const answer = await this.#database.life(client, pending, look, () => this.#handle(request, client, pending, clientKey, handle));
      if (answer !== null) {
        return answer;
      }
      if (Date.now() >= deadline) {
        throw new Problem("in-flight");
      }
      await sleep(10 + 90 * Math.random());
    }
  }

  /** Says once in this process that a route exists. */
  async #register(scope: string): Promise<void> {
    const registered = this.#registered.get(scope) ?? this.#database.register(scope, this.options.retentionMs, { kind: "http" });
    this.#registered.set(scope, registered);
    await registered.catch((error) => {
      this.#registered.delete(scope);
      throw error;
    });
  }

  /**
   * The stored response of the key. Without one the key is claimed, or another request works on it.
   */
  async #look(client: PoolClient, pending: Pending, clientKey: string): Promise<Answer | null> {
    const text = `SELECT answer, key, status::text, headers::text, encode(body, 'hex'), pg_current_xact_id_if_assigned()::text, ${SESSION},
        ${LIMITS}
      FROM ${this.#database.of("claim_request")}($2, $3, $4,
        ${this.#database.of("request_fingerprint")}($5, $6, $7, $8::text::jsonb, $9, $10::bytea))`;
    const rows = await this.#database.step(client, async () => {
      // The mark tells claim_request() that this layer will commit.
      await query(client, "BEGIN ISOLATION LEVEL READ COMMITTED DEFERRABLE");
      return await query(client, text, [this.#database.limit, pending.scope, pending.tenant, clientKey, ...pending.content]);
    });
    const [answer, key, status, headers, body, xid, session] = rows[0]!;
    [pending.key, pending.xid, pending.session] = [key!, answer === "new" ? xid! : undefined, session!];
    if (answer === "mismatch") {
      throw new Problem("key-reused");
    }
    if (answer !== "replayed") {
      return null;
    }
    if (status == null) {
      throw new Problem("response-unknown");
    }
    const kept: Answer["headers"] = [...JSON.parse(headers!), ["idempotent-replayed", "true"]];
    if (body == null) {
      const gone = this.refused(new Problem("response-not-kept", Number(status)));
      const isOfBody = ([name]: [string, string]) => name === "content-type" || name === "content-encoding";
      return { ...gone, headers: [...gone.headers, ...kept.filter((pair) => !isOfBody(pair))] };
    }
    return { status: Number(status), headers: kept, body: Buffer.from(body, "hex") };
  }

  /** Has the request handled, and stores its answer with its writes, alone, or not at all. */
  async #handle(request: R, client: PoolClient, pending: Pending, clientKey: string, handle: (claim: Claim) => Promise<Answer>): Promise<Answer> {
    let keeps = () => false;
    const run = (given: Own) => {
      const own: Claim = { ...given, key: pending.key, tenant: pending.tenant, keepsWrites: false };
      claims.set(request, own);
      keeps = () => own.keepsWrites;
      return handle(own);
    };
    try {
      const answer = await this.#database.handle(client, run);
      answer.headers = [...answer.headers.filter(([name]) => name !== "idempotent-replayed"), ["idempotent-replayed", "false"]];
      const isStored = answer.status < 500 && !this.options.notStored.includes(answer.status);
      if (isStored && (answer.status < 400 || keeps())) {
        await this.#commit(client, pending, answer);
        return answer;
      }
      const isBack = await this.#rollBack(client, pending);
      return isStored ? await this.#reject(client, pending, clientKey, answer, isBack) : answer;
    } catch (error) {
      throw this.#problem(client, pending, error);
    }
  }

  /**
   * Stores a no, without the handler's writes. Unless that works, the client does not get it: a
   * copy that comes later could be done.
   */
  async #reject(client: PoolClient, pending: Pending, clientKey: string, answer: Answer, isBack: boolean): Promise<Answer> {
    const stored = isBack ? await this.#look(client, pending, clientKey) : null;
    if (stored !== null) {
      return stored; // another process was faster
    }
    if (!isBack || pending.xid === undefined) {
      throw new Problem(isBack ? "in-flight" : "unavailable");
    }
    await this.#commit(client, pending, answer);
    return answer;
  }

  /** Returns whether the connection is still of use. */
  async #rollBack(client: PoolClient, pending: Pending): Promise<boolean> {
    const isSpoiled = await this.#database.step(client, () => rollBack(client, pending)).catch(() => null);
    if (isSpoiled !== false) {
      // So that within() closes the connection.
      pending.sessionThen = "changed";
    }
    return isSpoiled !== null;
  }

  async #commit(client: PoolClient, pending: Pending, { status, headers, body }: Answer): Promise<void> {
    const names = [...this.options.keptHeaders.map((name) => name.toLowerCase()), "content-encoding"];
    const kept = [...new Set(names)].flatMap((wanted) => headers.filter(([name]) => name.toLowerCase() === wanted));
    const values = [pending.scope, pending.tenant, pending.key, status >= 400, status, JSON.stringify(kept)];
    const stored = body.length <= this.options.responseBodyMax ? body : null;
    const settle = { text: `SELECT ${this.#database.of("settle_request")}($1, $2, $3, $4, $5, $6::text::jsonb, $7)::text`, values: [...values, stored] };
    await this.#database.step(client, () => commit(client, pending, [settle], false));
  }

  #problem(client: PoolClient, pending: Pending, error: unknown): Problem {
    if (error instanceof Problem) {
      return error;
    }
    // Whether a COMMIT without an answer has happened finds the next attempt out.
    if (pending.isUnsure || isConflict(error)) {
      return new Problem("unavailable");
    }
    this.options.log.error(`scope ${pending.scope}, key ${pending.key}: the handler failed, and its writes are rolled back: ${stacks(error) || line(error)}`);
    if (error instanceof TimedOut) {
      close(client);
    }
    return new Problem(error instanceof TimedOut ? "too-slow" : "failed");
  }

}

/** A route as all languages write it: `/orders/{id}` for `/orders/:id`. */
function template(route: string): string {
  return route.replace(/:([A-Za-z_$][\w$]*)(?:\([^)]*\))?/g, "{$1}");
}

/** Throws if the body cannot be had as it was sent, so that two requests would look alike. */
export function checkBody(headers: IncomingHttpHeaders, isRead: boolean, length?: number): void {
  const announced = headers["content-length"];
  if (isRead && (headers["transfer-encoding"] !== undefined || Number(announced ?? 0) > 0)) {
    throw new Misuse("its body was read before the layer: put the layer first, or give the parser `verify: keepBody`");
  }
  if (length !== undefined && announced !== undefined && headers["content-encoding"] === undefined && Number(announced) !== length) {
    throw new Problem("body-unreadable");
  }
}

/** Reads a body of `max` bytes at most. */
export async function whole(stream: AsyncIterable<Uint8Array>, max: number): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of stream) {
    length += chunk.length;
    if (length > max) {
      throw new Problem("body-too-large");
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** Parsers of uploads, such as multer, pipe the request itself, which the layer has read; Hono takes `rawBody`. */
export function offer(request: IncomingMessage, body: Buffer): void {
  Object.assign(request, { rawBody: body });
  request.pipe = (into, options) => Readable.from([body]).pipe(into, options);
}

function valuesOf(rawHeaders: string[], wanted: string): string[] {
  return rawHeaders.filter((_, n) => n % 2 === 1 && rawHeaders[n - 1]!.toLowerCase() === wanted);
}

/**
 * The client's key. A header that comes several times must say the same each time: the layer cannot
 * know which one the client means.
 */
function clientKey(rawHeaders: string[]): string | undefined {
  const [first, ...others] = new Set(valuesOf(rawHeaders, "idempotency-key"));
  if (first === undefined) {
    return undefined;
  }
  const text = first.replace(/^[ \t]+|[ \t]+$/g, "");
  // The string of a structured field (RFC 9651), or a bare token, as many clients send it.
  const quotedText = /^"((?:[^"\\]|\\["\\])*)"$/.exec(text)?.[1]?.replace(/\\(.)/g, "$1");
  const key = text.startsWith('"') ? quotedText : /["\\,;]/.test(text) ? undefined : text;
  try {
    if (others.length === 0 && key !== undefined) {
      rootKey(key);
      return key;
    }
  } catch {
    // It is none.
  }
  throw new Problem("key-malformed");
}
