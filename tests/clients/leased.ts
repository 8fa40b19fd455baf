// Handlers with effects outside the database, as tests: see tests/it/clients/libraries.rs.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  Dead, Inbox, LeaseLost, NotSent, Reject, Rejected, RetryAfter, Snooze, type Context, type LeasedContext, type Reconciled,
} from "oncebox";
import { Pool } from "pg";

const connectionString = process.env.DATABASE_URL!;
const pool = new Pool({ connectionString, max: 8 });
const logged: string[] = [];
const log = { info() {}, warn: (text: string) => void logged.push(text) };
const inbox = new Inbox(pool, "leased", { attemptsMax: 3, backoffMs: [0, 0], log });

/** A provider that carries out each call. */
class Provider {
  calls: string[] = [];
  lookups = 0;
  mood: "works" | "loses-answers" | "loses-requests" | "fails" | "declines" = "works";
  readonly effects = new Set<string>();
  charge = async (key: string) => {
    this.calls.push(key);
    if (this.mood === "fails") {
      throw new NotSent("out of order");
    } else if (this.mood === "declines") {
      throw new Rejected("card declined");
    } else if (this.mood === "loses-requests") {
      throw new Error("connection reset");
    }
    assert.ok(!this.effects.has(key), `${key} is charged twice`);
    this.effects.add(key);
    if (this.mood === "loses-answers") {
      throw new Error("connection reset");
    }
    return { receipt: key };
  };
  find = async (key: string): Promise<Reconciled<{ receipt: string }>> => {
    this.lookups++;
    return this.effects.has(key) ? { happened: { receipt: key } } : "absent";
  };
}

const message = (key: string, payload: unknown = 7) => ({ subject: "s", payload: Buffer.from(JSON.stringify(payload)), headers: { "idempotency-key": key } });
const count = async (table: string, key: string) => (await pool.query(`SELECT FROM ${table} WHERE key = $1`, [key])).rowCount;
const finish = async (cx: Context) => await cx.client.query("INSERT INTO booked VALUES ($1)", [cx.key]);

/** Runs one effect, `charge`. */
function charges(provider: Provider, options: object = {}) {
  return {
    handle: (cx: LeasedContext) => cx.effect("charge", provider.charge, { reconcile: provider.find, settlesWithinMs: 0, ...options }),
    finish,
  };
}

async function endsOnce(key: string, provider: Provider): Promise<void> {
  assert.deepEqual([await count("booked", key), provider.effects.has(`${key}:charge`)], [1, true]);
  assert.deepEqual([await count("oncebox.inbox_claim", key), await count("oncebox.inbox_effect", key)], [0, 0]);
}

if (process.argv[2] !== "owner") {
  await pool.query("CREATE TABLE IF NOT EXISTS booked (key text)");
  await inbox.register("lease");
  after(() => pool.end());

  test("an effect happens once, its result is the reply, and copies get it", async () => {
    const provider = new Provider();
    const verdicts = [await inbox.run(charges(provider), message("calm")), await inbox.run(charges(provider), message("calm"))];
    assert.deepEqual(verdicts.map(({ name, reply }) => [name, reply]), [["handled", { receipt: "calm:charge" }], ["replayed", { receipt: "calm:charge" }]]);
    assert.deepEqual([provider.calls, provider.lookups], [["calm:charge"], 0]);
    await endsOnce("calm", provider);
    assert.equal((await inbox.run(charges(provider), message("calm", 8))).name, "mismatch");
    assert.equal((await inbox.run(charges(provider), { ...message("x"), headers: {} })).name, "dead");
    assert.equal((await inbox.run(charges(provider), { ...message("odd"), payload: Buffer.from("{") })).name, "dead");
  });

  test("a lost answer is reconciled, and a lost request is sent again once it cannot arrive", async () => {
    const provider = Object.assign(new Provider(), { mood: "loses-answers" });
    const first = await inbox.run(charges(provider), message("answer"));
    assert.equal(first.name, "retry");
    assert.match(first.reason!, /the outcome of effect "charge" is unknown; caused by Error: connection reset/);
    assert.deepEqual((await pool.query("SELECT state, attempts FROM oncebox.inbox_claim WHERE key = 'answer'")).rows, [{ state: "unknown", attempts: 1 }]);
    assert.equal((await inbox.run(charges(provider), message("answer"))).name, "handled");
    assert.deepEqual([provider.calls.length, provider.lookups], [1, 1]);
    await endsOnce("answer", provider);

    // An error of a provider's client decides nothing.
    const dead = await inbox.run({ handle: (cx) => cx.effect("charge", async () => { throw new Dead("x"); }, { providerIdempotent: true }) }, message("client"));
    assert.equal(dead.name, "retry");

    provider.mood = "loses-requests";
    await inbox.run(charges(provider), message("request"));
    provider.mood = "works";
    const early = await inbox.run(charges(provider, { settlesWithinMs: 60_000 }), message("request"));
    assert.match(early.reason!, /knows nothing of it, but a call settles within 60000 ms/);
    const { rows } = await pool.query("SELECT attempts FROM oncebox.inbox_claim WHERE key = 'request'");
    assert.deepEqual(rows, [{ attempts: 1 }], "a wait is no attempt");
    assert.equal((await inbox.run(charges(provider), message("request"))).name, "handled");
    assert.equal(provider.calls.filter((key) => key === "request:charge").length, 2);
    await endsOnce("request", provider);
  });

  test("a provider that cannot tell is asked again, until the message is given up with the effect's name", async () => {
    const provider = Object.assign(new Provider(), { mood: "loses-answers" });
    const unsure = charges(provider, { reconcile: async () => "unknown" });
    const verdicts = [await inbox.run(unsure, message("unsure")), await inbox.run(unsure, message("unsure")), await inbox.run(unsure, message("unsure"))];
    assert.deepEqual(verdicts.map(({ name }) => name), ["retry", "retry", "dead"]);
    assert.match(verdicts[2]!.reason!, /delivery limit of 3 reached: .*effect "charge" is unknown/);
    assert.deepEqual([provider.calls.length, await count("oncebox.inbox_effect", "unsure")], [1, 1]);
  });

  test("a provider that answers one key once is called again", async () => {
    const provider = new Provider();
    let calls = 0;
    const call = async (key: string) => {
      provider.effects.add(key);
      if (calls++ === 0) {
        throw new Error("connection reset");
      }
      if (calls === 2) {
        throw new NotSent("says nothing about the first call");
      }
      return key;
    };
    const handler = { handle: (cx: LeasedContext) => cx.effect("charge", call, { providerIdempotent: true }), finish };
    assert.equal((await inbox.run(handler, message("same"))).name, "retry");
    assert.match((await inbox.run(handler, message("same"))).reason!, /unknown/);
    assert.equal((await inbox.run(handler, message("same"))).reply, "same:charge");
    await endsOnce("same", provider);
  });

  test("what did not happen is forgotten, and what never will is remembered", async () => {
    const provider = Object.assign(new Provider(), { mood: "fails" });
    const failed = await inbox.run(charges(provider), message("fails"));
    assert.match(failed.reason!, /NotSent: effect "charge" did not happen: NotSent: out of order/);
    assert.deepEqual((await pool.query("SELECT state FROM oncebox.inbox_claim WHERE key = 'fails'")).rows, [{ state: "failed" }]);
    provider.mood = "works";
    assert.equal((await inbox.run(charges(provider), message("fails"))).name, "handled");
    assert.equal(provider.lookups, 0);

    provider.mood = "declines";
    const dead = await inbox.run(charges(provider), message("declined"));
    assert.deepEqual([dead.name, dead.reason], ["dead", 'effect "charge" was rejected: card declined']);
    let runs = 0;
    const polite = {
      handle: async (cx: LeasedContext) => {
        try {
          return await charges(provider).handle(cx);
        } catch (error) {
          if (!(error instanceof Rejected)) {
            throw error;
          }
          if (runs++ === 0) {
            throw new Error("as it was told");
          }
          return new Reject("declined");
        }
      },
    };
    const calls = provider.calls.length;
    assert.equal((await inbox.run(polite, message("polite"))).name, "retry");
    const verdict = await inbox.run(polite, message("polite"));
    assert.deepEqual([verdict.name, verdict.reply, provider.calls.length - calls], ["rejected", "declined", 1]);
    assert.equal((await inbox.run(polite, message("polite"))).name, "rejected");
  });

  test("a later run goes on behind the effects that are known", async () => {
    const provider = new Provider();
    const results: unknown[] = [];
    const handle = async (cx: LeasedContext) => {
      results.push(await charges(provider).handle(cx), cx.attempts);
      if (results.length < 4) {
        throw new Error("as it was told");
      }
    };
    assert.equal((await inbox.run({ handle }, message("behind"))).name, "retry");
    assert.equal((await inbox.run({ handle }, message("behind"))).name, "handled");
    assert.deepEqual(results, [{ receipt: "behind:charge" }, 1, { receipt: "behind:charge" }, 2]);
    assert.equal(provider.calls.length, 1);
  });

  test("an effect that cannot work is refused before anything is called", async () => {
    const provider = new Provider();
    for (const options of [{}, undefined, { reconcile: provider.find, providerIdempotent: true }]) {
      const handle = (cx: LeasedContext) => cx.effect("charge", provider.charge, options as object);
      assert.match((await inbox.run({ handle }, message(`refused-${JSON.stringify(options)?.length}`))).reason!, /effect "charge" needs one of `reconcile`/);
    }
    const bad = await inbox.run({ handle: (cx) => cx.effect("Not A Step", provider.charge, { providerIdempotent: true }) }, message("step"));
    assert.match(bad.reason!, /does not match \[a-z0-9\]/);
    assert.equal(provider.calls.length, 0);
    const twice = async (cx: LeasedContext) => [await charges(provider).handle(cx), await charges(provider).handle(cx)];
    assert.match((await inbox.run({ handle: twice }, message("twice"))).reason!, /done already; each effect of a run needs a name of its own/);
    const both = async (cx: LeasedContext) => await Promise.all([charges(provider).handle(cx), charges(provider).handle(cx)]);
    assert.match((await inbox.run({ handle: both }, message("both"))).reason!, /under way already/);
  });

  test("a handler that goes on after an unknown outcome, or without an effect, does not complete", async () => {
    const provider = Object.assign(new Provider(), { mood: "loses-answers" });
    const swallows = { handle: (cx: LeasedContext) => charges(provider).handle(cx).catch(() => "fine"), finish };
    const verdict = await inbox.run(swallows, message("swallows"));
    assert.match(verdict.reason!, /the handler went on after an effect; the outcome of effect "charge" is unknown/);
    const slow = async (key: string) => (await sleep(200), key);
    const forgets = { handle: async (cx: LeasedContext) => void cx.effect("charge", slow, { providerIdempotent: true }).catch(() => {}), finish };
    await inbox.run(forgets, message("forgets"));
    await sleep(300);
    assert.deepEqual([await count("booked", "swallows"), await count("booked", "forgets")], [0, 0]);
    const large = await inbox.run({ handle: (cx) => cx.effect("charge", async () => "x".repeat(1 << 20), { providerIdempotent: true }) }, message("large"));
    assert.match(large.reason!, /the result of effect "charge" is 1048578 bytes of JSON; .*outcome of effect "charge" is unknown/);
  });

  test("a handler's words, and a timeout, mean what they always do", async () => {
    const says = async (error: Error, key: string) => await inbox.run({ handle: async () => { throw error; } }, message(key));
    const { name, after } = await says(new RetryAfter(90_000), "later");
    assert.deepEqual([name, after], ["retry", 90_000]);
    assert.equal((await inbox.run(charges(new Provider()), message("later"))).name, "in_flight");
    assert.equal((await says(new Dead("no use"), "dead")).reason, "no use");
    assert.equal((await says(new Snooze(100, "not yet"), "snooze")).name, "snoozed");
    assert.deepEqual((await pool.query("SELECT attempts FROM oncebox.inbox_claim WHERE key = 'snooze'")).rows, [{ attempts: 0 }]);
    const slow = new Inbox(pool, "leased:slow", { handlerTimeoutMs: 300, log });
    let signal: AbortSignal | undefined;
    const hangs = { handle: async (cx: LeasedContext) => { signal = cx.signal; await sleep(60_000, undefined, { ref: false }); } };
    assert.match((await slow.run(hangs, message("hangs"))).reason!, /the handler takes longer than 300 ms/);
    assert.ok(signal!.aborted);
    await assert.rejects(inbox.register(), /under a lease/);
    const hides = { handle: async () => {}, finish: (cx: Context) => cx.client.query("SELECT 1 / 0").catch(() => {}) };
    assert.match((await inbox.run(hides, message("hides"))).reason!, /aborted by an error that the handler did not throw/);
    const throws = { handle: async () => {}, finish: async (cx: Context) => { await finish(cx); throw new Error("as it was told"); } };
    assert.equal((await inbox.run(throws, message("throws"))).name, "retry");
    assert.equal(await count("booked", "throws"), 0);
    let races = 0;
    const race = { handle: async () => 7, finish: async (cx: Context) => races++ < 2 ? await cx.client.query("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$") : await finish(cx) };
    assert.deepEqual([(await inbox.run(race, message("race"))).reply, races, await count("booked", "race")], [7, 3, 1]);
    assert.match((await inbox.run({ handle: async () => ({ cents: 1n }) }, message("json"))).reason!, /reply has no JSON/);
  });

  test("a lease is renewed while a handler runs, and when it is lost nothing more is called or written", async () => {
    const provider = new Provider();
    const slowly = { leaseMs: 300, ...charges(provider), handle: async (cx: LeasedContext) => (await sleep(1000), await charges(provider).handle(cx)) };
    const [verdict, other] = await Promise.all([inbox.run(slowly, message("slowly")), sleep(600).then(() => inbox.run(slowly, message("slowly")))]);
    assert.deepEqual([verdict.name, other.name], ["handled", "in_flight"]);
    let why: unknown, signal: AbortSignal;
    const steal = (key: string) => pool.query("UPDATE oncebox.inbox_claim SET epoch = epoch + 1, owner = gen_random_uuid() WHERE key = $1", [key]);
    const stolen = {
      handle: async (cx: LeasedContext) => {
        signal = cx.signal;
        await steal(cx.key);
        await charges(provider).handle(cx).catch((error) => (why = error));
        await sleep(60_000, undefined, { ref: false });
      },
    };
    assert.equal((await inbox.run(stolen, message("stolen"))).name, "in_flight");
    assert.ok(why instanceof LeaseLost && signal!.aborted && !provider.effects.has("stolen:charge"));
    const idle = { leaseMs: 300, handle: async (cx: LeasedContext) => { await steal(cx.key); await sleep(60_000, undefined, { signal: cx.signal }); } };
    assert.equal((await inbox.run(idle, message("idle"))).name, "in_flight");
    const late = { ...charges(provider), finish: async (cx: Context) => { await finish(cx); await steal(cx.key); } };
    assert.equal((await inbox.run(late, message("late"))).name, "in_flight");
    assert.equal(await count("booked", "late"), 0);
  });

  test("a beginning whose answer was lost is begun once, and PostgreSQL that is away costs no attempt", async () => {
    const lossy = new Pool({ connectionString, max: 8 });
    let loses: RegExp | undefined;
    lossy.on("error", () => {});
    lossy.on("connect", (client) => {
      const query = client.query.bind(client) as (...given: any[]) => any;
      client.query = async (...given: any[]) => {
        const result = await query(...given);
        if (loses?.test(given[0].text ?? given[0])) {
          loses = undefined;
          (client as any).connection.stream.destroy();
          throw new Error("the answer was lost");
        }
        return result;
      };
    });
    const own = new Inbox(lossy, "leased", { log, backoffMs: [0, 0] });
    for (const [key, pattern] of [["begin", /begin_effect/], ["remember", /end_effect/], ["commit", /^COMMIT/]] as const) {
      const provider = new Provider();
      loses = pattern;
      const verdict = await own.run(charges(provider), message(key)).catch(() => null);
      assert.equal(verdict?.name, key === "commit" ? undefined : "handled");
      assert.match((await own.run(charges(provider), message(key))).name, /replayed/);
      assert.deepEqual([provider.calls.length, provider.lookups], [1, 0]);
      await endsOnce(key, provider);
    }
    await lossy.end();
  });

  test("a process that is held up between the beginning of an effect and its call does not call", async () => {
    const slow = new Pool({ connectionString, max: 2 });
    let stall = async () => {
      for (const until = Date.now() + 500; Date.now() < until; );
    };
    slow.on("connect", (client) => {
      const query = client.query.bind(client) as (...given: any[]) => any;
      client.query = async (...given: any[]) => {
        const result = await query(...given);
        await (/begin_effect/.test(given[0].text) ? stall() : undefined);
        return result;
      };
    });
    const provider = new Provider();
    const verdict = await new Inbox(slow, "leased", { log }).run({ leaseMs: 300, ...charges(provider) }, message("held-up"));
    assert.deepEqual([verdict.name, provider.calls, await count("booked", "held-up")], ["in_flight", [], 0]);
    // Nor does one whose handler was given up meanwhile.
    stall = () => sleep(400);
    const late = await new Inbox(slow, "leased", { log, handlerTimeoutMs: 200 }).run(charges(provider), message("given-up"));
    await sleep(600);
    assert.deepEqual([late.name, provider.calls], ["retry", []]);
    await slow.end();
  });

  for (const point of ["claimed", "remembered", "finishing"]) {
    test(`an owner that is suspended beyond its lease, ${point}, calls and writes nothing when it goes on`, async () => {
      const calls: string[] = [];
      const server = createServer((request, response) => {
        calls.push(request.url!);
        response.end("1");
      }).listen(0, "127.0.0.1");
      await once(server, "listening");
      const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
      const owner = fork(process.argv[1]!, ["owner", point, url]);
      await once(owner, "message");
      owner.kill("SIGSTOP");
      await sleep(1500);
      assert.equal((await inbox.run(pays(url, async () => {}), message(`stopped-${point}`))).name, "handled");
      owner.kill("SIGCONT");
      const [ended] = await once(owner, "message");
      assert.deepEqual([ended, await count("booked", `stopped-${point}`)], ["in_flight", 1]);
      assert.deepEqual(calls.sort(), [`/stopped-${point}:charge`, `/stopped-${point}:mail`]);
      server.close();
      owner.kill("SIGKILL");
    });
  }
} else {
  const [, , , point, url] = process.argv;
  const verdict = await inbox.run(pays(url!, async (at) => {
    if (at === point) {
      process.send!("reached");
      const until = Date.now() + 1000;
      while (Date.now() < until) {
        // Suspended here, it goes on at once, before anything else.
      }
    }
  }), message(`stopped-${point}`));
  process.send!(verdict.name);
  await pool.end();
}

/** Two effects, at each point a stop. */
function pays(url: string, stop: (point: string) => Promise<void>) {
  const effect = (cx: LeasedContext, step: string) =>
    cx.effect(step, async (key, signal) => await (await fetch(`${url}/${key}`, { signal })).text(), { providerIdempotent: true });
  return {
    leaseMs: 1000,
    handle: async (cx: LeasedContext) => {
      await stop("claimed");
      await effect(cx, "charge");
      await stop("remembered");
      await effect(cx, "mail");
    },
    finish: async (cx: Context) => {
      await finish(cx);
      await stop("finishing");
    },
  };
}
