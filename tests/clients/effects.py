"""Effects outside the database under a lease: see tests/it/clients/libraries.rs. Prints `all is well`.
"""

import asyncio
import os

import asyncpg
import oncebox
import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

URL = os.environ["DATABASE_URL"]
DSN = URL.partition(":")[2]


class Provider:
    """Acts once for each call, in the mood that it is told: it answers, loses answers or requests, hangs, refuses."""

    def __init__(self, *moods):
        self.moods, self.calls, self.made, self.lookups = list(moods), [], [], 0

    async def charge(self, key):
        mood = self.moods.pop(0) if self.moods else "answers"
        self.calls.append(key)
        if mood == "rejects":
            raise oncebox.Rejected("card declined")
        if mood == "is busy":
            raise oncebox.NotSent("too many requests")
        if mood != "loses requests":
            self.made.append(key)
        if mood == "hangs":
            await asyncio.sleep(60)
        if mood.startswith("loses"):
            raise ConnectionResetError("connection reset")
        return {"receipt": key}

    async def find(self, key):
        self.lookups += 1
        return oncebox.Happened({"receipt": key}) if key in self.made else oncebox.Absent


def message(key, payload=b'{"cents": 7}'):
    return oncebox.Message("orders.placed", payload, {"idempotency-key": key})


async def book(cx, reply):
    await cx.connection.execute("INSERT INTO charge (id, cents) VALUES (%s, 7)", [cx.key])


def charges(provider, **how):
    how = how or {"reconcile": provider.find, "settles_within": 0.0}

    async def handle(cx, data):
        return await cx.effect("charge", provider.charge, **how)

    return oncebox.LeasedHandler(handle, finish=book)


class Site:
    def __init__(self, pool, name, **more):
        self.pool = pool
        self.inbox = oncebox.Inbox(pool, f"effects:{name}", **{"lease": 2.0, "backoff": (0.0, 0.0), **more})

    async def run(self, handler, given=None):
        return await self.inbox.run(handler, given or message("k"))

    async def ask(self, sql, *values):
        async with await psycopg.AsyncConnection.connect(URL, autocommit=True) as connection:
            found = await connection.execute(sql, values)
            return await found.fetchall() if found.description else None

    async def claim(self):
        return await self.ask("SELECT state, attempts FROM oncebox.inbox_claim WHERE scope = %s", self.inbox.scope)

    async def age(self, seconds):
        await self.ask("UPDATE oncebox.inbox_effect SET started_at = started_at - make_interval(secs => %s) WHERE scope = %s", seconds, self.inbox.scope)

    async def steal(self):
        sql = "UPDATE oncebox.inbox_claim SET owner = gen_random_uuid(), epoch = epoch + 1 WHERE scope = %s"
        await self.ask(sql, self.inbox.scope)

    async def booked(self, key="k"):
        ((count,),) = await self.ask("SELECT count(*) FROM charge WHERE id = %s", key)
        await self.ask("DELETE FROM charge")
        return count


async def is_remembered(site):
    """Done: one call, one booking, and copies get the reply; the claim and its effects are gone."""
    provider = Provider()
    first, copy = [await site.run(charges(provider)) for _ in range(2)]
    assert (first.name, copy.name, copy.reply, first.reply) == ("handled", "replayed", {"receipt": "k:charge"}, {"receipt": "k:charge"})
    assert (provider.calls, provider.lookups, await site.booked(), await site.claim()) == (["k:charge"], 0, 1, [])
    assert (await site.run(charges(provider), message("k", b"{}"))).name == "mismatch"
    assert (await site.run(charges(provider), message("odd", b"{"))).name == "dead"


async def goes_on(site):
    """A run behind one that failed gets the results of its effects without calling."""
    provider, got = Provider(), []

    async def handle(cx, data):
        got.append(await cx.effect("charge", provider.charge, reconcile=provider.find))
        if len(got) < 2:
            raise ValueError("as it was told")
        return await cx.effect("mail", provider.charge, provider_idempotent=True)

    assert [(await site.run(handle)).name for _ in range(2)] == ["retry", "handled"]
    assert (got, provider.calls, provider.lookups) == ([{"receipt": "k:charge"}] * 2, ["k:charge", "k:mail"], 0)


async def lost_answers(site):
    """An unknown outcome is asked about, not repeated; an absent one is called again once it has settled."""
    provider = Provider("loses answers")
    failed = await site.run(charges(provider))
    assert failed.name == "retry" and failed.reason.startswith('OutcomeUnknown: the outcome of effect "charge" is unknown'), failed
    assert await site.claim() == [("unknown", 1)]
    assert (await site.run(charges(provider))).name == "handled" and (provider.calls, provider.lookups) == (["k:charge"], 1)
    provider = Provider("loses requests")
    how = {"reconcile": provider.find, "timeout": 2.0}  # settles within 32 s
    names = [(await site.run(charges(provider, **how), message("late"))).name for _ in range(6)]
    assert ("unknown", 1) in await site.claim(), "a wait is no attempt"
    await site.age(33)
    names.append((await site.run(charges(provider, **how), message("late"))).name)
    assert (names, len(provider.calls), provider.made) == (["retry"] * 6 + ["handled"], 2, ["late:charge"]), names

    async def odd(key):
        return {"receipt": key}

    async def cannot_tell(key):
        return oncebox.Unknown

    for answer, why in ((odd, "reconcile returned a dict, not Happened"), (cannot_tell, "the provider cannot tell yet")):
        given, how = message(answer.__name__), {"reconcile": answer}
        await site.run(charges(Provider("loses answers"), **how), given)
        found = await site.run(charges(Provider(), **how), given)
        assert found.name == "retry" and why in found.reason, found
    hanging = Provider("hangs")
    assert "no answer within 0.2 s" in (await site.run(charges(hanging, provider_idempotent=True, timeout=0.2), message("hangs"))).reason


async def noes(site):
    """A no is remembered; a call that was not sent is forgotten, unless an earlier one is open."""
    provider, seen = Provider("rejects"), []

    async def handle(cx, data):
        try:
            await cx.effect("charge", provider.charge, reconcile=provider.find)
        except oncebox.Rejected as no:
            seen.append(str(no))
            if len(seen) < 2:
                raise ValueError("as it was told") from None
            return oncebox.Reject("no")

    assert [(await site.run(handle)).name for _ in range(3)] == ["retry", "rejected", "rejected"]
    assert (len(provider.calls), seen) == (1, ['effect "charge" was rejected: card declined'] * 2)
    dead = await site.run(charges(Provider("rejects")), message("dead"))
    assert (dead.name, dead.reason) == ("dead", 'effect "charge" was rejected: card declined'), dead
    provider = Provider("is busy")
    assert (await site.run(charges(provider), message("busy"))).name == "retry"
    assert ("failed", 1) in await site.claim() and await site.ask("SELECT step FROM oncebox.inbox_effect WHERE key = 'busy'") == []
    assert (await site.run(charges(provider), message("busy"))).name == "handled" and provider.lookups == 0
    provider = Provider("loses answers", "is busy")
    names = [(await site.run(charges(provider, provider_idempotent=True), message("open"))) for _ in range(3)]
    assert [answer.name for answer in names] == ["retry", "retry", "handled"] and "is unknown: NotSent" in names[1].reason, names


async def mistakes(site):
    """They are told before anything is called; a handler that hides an unknown outcome has failed."""
    provider = Provider("loses answers")

    async def neither(cx, data):
        await cx.effect("charge", provider.charge)

    async def twice(cx, data):
        await cx.effect("reserve", Provider().charge, provider_idempotent=True)
        await cx.effect("reserve", provider.charge, provider_idempotent=True)

    async def hides(cx, data):
        try:
            await cx.effect("charge", provider.charge, reconcile=provider.find)
        except oncebox.OutcomeUnknown:
            return "done"

    async def gives_up(cx, data):
        try:
            await cx.effect("charge", Provider("loses answers").charge, reconcile=provider.find)
        except oncebox.OutcomeUnknown:
            raise oncebox.Dead("no use") from None

    assert (await site.run(gives_up, message("up"))).reason == 'no use; the outcome of effect "charge" is unknown'
    assert "either how to `reconcile` it" in (await site.run(neither)).reason
    assert "was done already" in (await site.run(twice, message("twice"))).reason and provider.calls == []
    hidden = await site.run(hides, message("hides"))
    assert "went on after an effect" in hidden.reason and 'effect "charge" is unknown' in hidden.reason, hidden
    last = Site(site.pool, "mistakes-last", attempts_max=1)
    dead = await last.run(charges(Provider("loses answers")))
    assert dead.name == "dead" and 'delivery limit of 1 reached' in dead.reason and 'effect "charge" is unknown' in dead.reason, dead
    ((reason,),) = await site.ask("SELECT reason FROM oncebox.dead_letter WHERE scope = %s", last.inbox.scope)
    assert 'effect "charge" is unknown' in reason
    for name, lease in (("mode-a", None), ("mode-b", 2.0)):
        await oncebox.Inbox(site.pool, name, lease=lease).register()
        try:
            await oncebox.Inbox(site.pool, name, lease=None if lease else 2.0).register()
            raise AssertionError("a scope of the other mode was taken")
        except psycopg.Error as error:
            assert error.sqlstate == "OB010", error


async def lasts(site):
    """The lease is renewed while a handler works; meanwhile the key is in flight. A snooze is no attempt."""
    short = Site(site.pool, "lasts-short", lease=0.4)

    async def slow(cx, data):
        await asyncio.sleep(1.5)

    first = asyncio.create_task(short.run(slow))
    await asyncio.sleep(1.0)
    assert (await short.run(slow)).name == "in_flight" and (await first).name == "handled"

    async def snoozes(cx, data):
        raise oncebox.Snooze(2, "the gateway is away")

    assert (await site.run(snoozes)).name == "snoozed" and await site.claim() == [("failed", 0)]
    assert (await site.run(snoozes)).name == "in_flight"
    await asyncio.sleep(2.05)
    # Two owners that have left no trace: it runs alone.
    await site.ask("UPDATE oncebox.inbox_claim SET state = 'running', attempts = 2, reason = NULL WHERE scope = %s", site.inbox.scope)
    assert (await site.run(charges(Provider()))).name == "handled"
    await site.ask("DELETE FROM charge")


async def libraries(site):
    """The last writes go through the user's library; a handler waits, also if the library blocks."""
    from sqlalchemy import text

    sql = "INSERT INTO charge (id, cents) VALUES ('k', 7)"

    async def by_asyncpg(cx, reply):
        await cx.connection.execute(sql)

    async def by_session(cx, reply):
        await cx.connection.execute(text(sql))

    def blocking(cx, reply):
        cx.connection.execute(sql if isinstance(pool, ConnectionPool) else text(sql))

    async with asyncpg.create_pool(URL, min_size=1, max_size=3) as own:
        with ConnectionPool(URL, min_size=1, max_size=3) as other:
            engines = create_async_engine(f"postgresql+asyncpg:{DSN}"), create_engine(f"postgresql+psycopg:{DSN}")
            finishes = ((own, by_asyncpg), (engines[0], by_session), (engines[1], blocking), (other, blocking))
            for place, (pool, finish) in enumerate(finishes):
                one, provider = Site(pool, f"libraries-{place}"), Provider()
                handler = oncebox.LeasedHandler(charges(provider).handle, finish=finish)
                one.inbox.check(handler)
                await one.inbox.register()
                assert [(await one.run(handler)).name for _ in range(2)] == ["handled", "replayed"], pool
                assert (len(provider.calls), await one.booked()) == (1, 1)

                async def steals(key):
                    await one.steal()

                async def stolen(cx, data):
                    await cx.effect("steal", steals, provider_idempotent=True)

                assert (await one.run(stolen, message("stolen"))).name == "in_flight", pool
            await engines[0].dispose()


async def main(scenarios):
    async with AsyncConnectionPool(URL, min_size=2, max_size=6) as pool:
        for scenario in scenarios:
            site = Site(pool, scenario.__name__)
            await site.inbox.register()
            await site.ask("DELETE FROM charge")
            await asyncio.wait_for(scenario(site), 60)
    print("all is well")


if __name__ == "__main__":
    asyncio.run(main([is_remembered, goes_on, lost_answers, noes, mistakes, lasts, libraries]))
