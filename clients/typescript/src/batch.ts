/**
 * Handles several messages in one transaction: their keys are claimed together, and end together.
 *
 * A failure rolls all of them back. If the message that has failed is known, it is run again by itself,
 * which counts the attempt, and the others together; else each half is run again by itself.
 */
import type { Pool, PoolClient } from "pg";

import type { Claim } from "./claim.ts";
import type { Inbox } from "./inbox.ts";
import type { LeasedHandler } from "./leased.ts";
import type { Context, Handler, Message, Verdict } from "./message.ts";
import { count, handling, handlingSet } from "./spans.ts";
import { ended, fingerprint, messageId } from "./text.ts";
import { checkOpen, type Own, type Run, TimedOut } from "./database.ts";
import { query, type Row, SESSION, together } from "./wire.ts";

/**
 * After this number of milliseconds no other handler of a batch begins: its locks must not be held
 * for long.
 */
const ROUND_MS = 500;
/**
 * After this number of failures the rest of a batch is run one by one, since each failure runs the
 * others again.
 */
const FAILURES_MAX = 3;
const CHANGED = "the handler changed the role or a setting of the session, which others would have met";

/** A message of a set, decoded. */
export interface Entry<T> {
  data: T;
  key: string;
  tenant: string;
  message: Message;
}

/**
 * The second argument of a handler of sets: the transaction that it writes through for all entries.
 */
export interface SetContext {
  client: PoolClient;
  pool: Pool;
  /** Aborted when the handler takes longer than it may. */
  signal: AbortSignal;
}

/**
 * Handles many messages at once. It returns nothing, or for each entry in order the value that a
 * `Handler` returns. If it throws, the set is halved until the entry that fails is alone.
 */
export type SetHandler<T> = (cx: SetContext, entries: Entry<T>[]) => Promise<unknown[] | void>;

/** All are rolled back, because of the message at this place, or of one that is not known. */
class Failed extends Error {
  readonly place: number | undefined;
  /** Each part might take as long again. */
  readonly isSlow: boolean;
  constructor(place: number | undefined, cause: unknown) {
    super("the batch failed", { cause });
    this.place = place;
    this.isSlow = place === undefined && cause instanceof TimedOut;
  }
}

type Claims<T> = Map<number, [claim: Claim, data: T]>;
type Endings = Map<number, ReturnType<typeof ended>>;

/** How a transaction has ended: answers, messages to run by themselves, and those it did not come to. */
interface Outcome {
  answers: Map<number, Verdict>;
  alone: number[];
  left: number[];
  /** Claims of messages which were delivered before: one may end its process. */
  givenBack: number[];
}

/** Runs a handler for batches of messages of an inbox. */
export class Batch<T> {
  readonly inbox: Inbox<T>;
  readonly #each: Handler<T> | LeasedHandler<T>;
  readonly #set: SetHandler<T> | undefined;

  constructor(inbox: Inbox<T>, handler: Handler<T> | LeasedHandler<T> | undefined, set?: SetHandler<T>) {
    this.inbox = inbox;
    this.#set = set;
    this.#each = handler ?? (async (cx, data) => (await this.#all(cx, [{ data, key: cx.key, tenant: cx.tenant, message: cx.message }]))[0]);
  }

  /** Whether its handlers run under leases, each message by itself. */
  get isLeased(): boolean {
    return typeof this.#each !== "function";
  }

  /** Handles these messages, and answers each; an error means the same as for `Inbox.run`. */
  async run(messages: Message[]): Promise<(Verdict | Error)[]> {
    const answers = new Map<number, Verdict | Error>();
    const claims: Claims<T> = new Map();
    const alone: number[] = [];
    for (const [place, message] of messages.entries()) {
      try {
        claims.set(place, this.inbox.read(message));
      } catch {
        alone.push(place);
      }
    }
    const rounds = [[...claims.keys()]];
    for (let failures = 0; rounds.length > 0; ) {
      const places = rounds.shift()!;
      if (places.length < 2 || failures > FAILURES_MAX) {
        alone.push(...places);
        continue;
      }
      try {
        const outcome = await this.#together(new Map(places.map((place) => [place, claims.get(place)!])));
        outcome.answers.forEach((answer, place) => answers.set(place, answer));
        outcome.answers.forEach(({ name }) => count(this.inbox.scope, name));
        alone.push(...outcome.alone);
        rounds.push(outcome.left);
      } catch (error) {
        if (!(error instanceof Failed)) {
          places.forEach((place) => answers.set(place, error as Error));
        } else if (error.isSlow) {
          alone.push(...places);
        } else if (error.place === undefined) {
          const half = Math.floor(places.length / 2);
          rounds.unshift(places.slice(0, half), places.slice(half));
        } else {
          failures++;
          alone.push(error.place);
          rounds.unshift(places.filter((place) => place !== error.place));
        }
      }
    }
    for (const place of alone) {
      answers.set(place, await this.inbox.run(this.#each, messages[place]!).catch((error: Error) => error));
    }
    return messages.map((_, place) => answers.get(place)!);
  }

  /** Handles messages in one transaction. Any other error than `Failed` says that nothing was attempted. */
  async #together(claims: Claims<T>): Promise<Outcome> {
    const { inbox } = this;
    const { database } = inbox;
    // Without a connection nothing was attempted, so nothing is counted.
    const client = await database.connect();
    const run: Run = {};
    try {
      return await database.within(client, run, async () => {
        const outcome = await database.step(client, () => this.#claim(client, run, claims));
        const fresh = [...claims.keys()].filter((place) => !outcome.answers.has(place) && !outcome.alone.includes(place));
        if (fresh.length === 0) {
          await database.step(client, () => query(client, "ROLLBACK"));
          return outcome;
        }
        const todo: Claims<T> = new Map(fresh.map((place) => [place, claims.get(place)!]));
        const endings = this.#set === undefined ? await this.#handleEach(client, todo) : await this.#handleSet(client, todo);
        outcome.left = fresh.filter((place) => !endings.has(place));
        await database.step(client, () => this.#settle(client, run, claims, endings, [...outcome.left, ...outcome.givenBack]));
        endings.forEach(({ verdict }, place) => outcome.answers.set(place, verdict));
        return outcome;
      });
    } catch (error) {
      const failed = error instanceof Failed ? error : new Failed(undefined, error);
      if (failed.cause instanceof TimedOut) {
        const [[first]] = [...claims.values()] as [[Claim, T]];
        await inbox.endHolder(claims.get(failed.place ?? -1)?.[0] ?? first);
      }
      throw failed;
    }
  }

  /** Begins the transaction and claims the keys, at once. Their guard fails every COMMIT before that of `#settle`. */
  async #claim(client: PoolClient, run: Run, claims: Claims<T>): Promise<Outcome> {
    const of = [...claims.values()].map(([claim]) => claim);
    const limit = this.inbox.database.handlerTimeoutMs + ROUND_MS + 5000;
    const [, rows] = await together(client, [
      { text: "BEGIN ISOLATION LEVEL READ COMMITTED" },
      {
        text: `SELECT place::text, answer, outcome::text, CASE WHEN place = 1 THEN ${SESSION} END,
                 CASE WHEN place = 1 THEN set_config('statement_timeout', $7, true) END
               FROM ${this.inbox.database.of("claim_batch")}($1, $2::text[], $3::text[], $4::bytea[], $5::bigint[], make_interval(secs => $6::float8))`,
        values: [
          ...[this.inbox.scope, of.map(({ tenant }) => tenant), of.map(({ key }) => key), of.map(({ message }) => fingerprint(message))],
          ...[of.map(({ message }) => messageId(message)), String(limit / 1000), `${limit}ms`],
        ],
      },
    ]);
    run.session = rows![0]![3]!;
    const outcome: Outcome = { answers: new Map(), alone: [], left: [], givenBack: [] };
    const places = [...claims.keys()];
    rows!.forEach(([, name, reply]: Row, n) => {
      if (name === "alone" || (name === "new" && (of[n]!.message.deliveries ?? 1) > 1)) {
        outcome.alone.push(places[n]!);
        name === "new" && outcome.givenBack.push(places[n]!);
      } else if (name !== "new") {
        outcome.answers.set(places[n]!, { name: name as Verdict["name"], reply: reply == null ? null : JSON.parse(reply), after: 0 });
      }
    });
    return outcome;
  }

  /** One handler after another, as long as the round lasts. */
  async #handleEach(client: PoolClient, claims: Claims<T>): Promise<Endings> {
    const endings: Endings = new Map();
    const until = performance.now() + ROUND_MS;
    for (const [place, [{ key, tenant, message }, data]] of claims) {
      if (endings.size > 0 && performance.now() > until) {
        break;
      }
      const handle = (own: Own) => (this.#each as Handler<T>)({ ...own, key: key!, tenant, message, scope: this.inbox.scope }, data);
      try {
        const result = await handling(this.inbox.scope, key!, message, () => this.inbox.database.handle(client, handle));
        checkOpen(client);
        endings.set(place, ended(result));
      } catch (error) {
        throw new Failed(place, error);
      }
    }
    return endings;
  }

  async #handleSet(client: PoolClient, claims: Claims<T>): Promise<Endings> {
    const entries = [...claims.values()].map(([{ key, tenant, message }, data]) => ({ data, key: key!, tenant, message }));
    const { database, scope } = this.inbox;
    const messages = entries.map(({ message }) => message);
    const results = await handlingSet(scope, messages, () => database.handle(client, (own) => this.#all(own, entries)));
    checkOpen(client);
    const end = (place: number, n: number) => {
      try {
        return ended(results[n]);
      } catch (error) {
        throw new Failed(place, error);
      }
    };
    return new Map([...claims.keys()].map((place, n) => [place, end(place, n)]));
  }

  /** The results of a handler of sets, one for each entry. */
  async #all(cx: SetContext | Context, entries: Entry<T>[]): Promise<unknown[]> {
    const results = await this.#set!({ client: cx.client, pool: cx.pool, signal: cx.signal }, entries);
    if (results == null) {
      return entries.map(() => null);
    }
    if (results.length !== entries.length) {
      throw new Error(`the handler answered ${results.length} of ${entries.length} entries: return nothing, or one result for each`);
    }
    return results;
  }

  /** Stores replies, gives back the keys of the messages that are left, and commits, in one round trip. */
  async #settle(client: PoolClient, run: Run, claims: Claims<T>, endings: Endings, left: number[]): Promise<void> {
    const stored = [...endings].filter(([, { status, text }]) => text !== "null" || status !== "completed");
    const of = (places: number[]) => places.map((place) => claims.get(place)![0]);
    const [ends, given] = [of(stored.map(([place]) => place)), of(left)];
    await together(client, [
      // The cast fails, and so do all later statements.
      {
        text: `SELECT CASE WHEN ${SESSION} IS DISTINCT FROM $1 THEN concat('${CHANGED}', pg_current_xact_id_if_assigned())::int END`,
        values: [run.session],
      },
      {
        text: `SELECT ${this.inbox.database.of("settle_batch")}($1, $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])::text`,
        values: [
          ...[this.inbox.scope, ends.map(({ tenant }) => tenant), ends.map(({ key }) => key)],
          ...[stored.map(([, { text }]) => text), stored.map(([, { status }]) => status)],
          ...[given.map(({ tenant }) => tenant), given.map(({ key }) => key)],
        ],
      },
      { text: "COMMIT" },
    ]);
    run.sessionThen = run.session;
  }
}
