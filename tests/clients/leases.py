"""Leases that are lost: to another owner, to a suspension, or with PostgreSQL: see tests/it/clients/libraries.rs.

Prints `all is well`. With `call` or `finish` it is the process of an owner that is suspended there.
"""

import asyncio
import json
import signal
import sys
import time
from unittest import mock

import oncebox
import psycopg
from effects import URL, Provider, Site, book, charges, main, message
from oncebox.database import Database
from psycopg_pool import AsyncConnectionPool


async def own_statement(site):
    """The answer to its own begin_effect was lost: nothing has been called, so nothing is asked."""
    provider, call, lost = Provider(), Database.call, []

    async def losing(self, function, *given, **named):
        row = await call(self, function, *given, **named)
        if function == "begin_effect" and not lost:
            lost.append(row[0])
            raise psycopg.OperationalError("the answer was lost")
        return row

    with mock.patch.object(Database, "call", losing):
        assert (await site.run(charges(provider))).name == "handled"
    assert (lost, len(provider.calls), provider.lookups) == (["begun"], 1, 0)


async def stolen(site):
    """Whoever has lost the lease calls and writes nothing more."""
    provider = Provider()

    async def before(cx, data):
        await site.steal()
        return await cx.effect("charge", provider.charge, reconcile=provider.find)

    assert (await site.run(oncebox.LeasedHandler(before, finish=book))).name == "in_flight"
    assert (provider.calls, await site.booked()) == ([], 0)

    # Suspended between the record of the effect and its call.
    short, call = Site(site.pool, "stolen-short", lease=0.3), Database.call

    async def suspending(self, function, *given, **named):
        row = await call(self, function, *given, **named)
        if function == "begin_effect":
            time.sleep(0.4)
        return row

    with mock.patch.object(Database, "call", suspending):
        assert (await short.run(charges(provider))).name == "in_flight" and provider.calls == []

    async def within(key):
        await provider.charge(key)
        await site.steal()

    async def during(cx, data):
        return await cx.effect("charge", within, reconcile=provider.find)

    assert (await site.run(oncebox.LeasedHandler(during, finish=book), message("during"))).name == "in_flight"

    async def late(cx, reply):
        await book(cx, reply)
        await site.steal()

    assert (await site.run(oncebox.LeasedHandler(charges(provider).handle, finish=late), message("late"))).name == "in_flight"
    assert await site.booked("late") == 0
    was_cancelled = []

    async def hangs(cx, data):
        try:
            await site.steal()
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            was_cancelled.append(cx.key)
            raise

    assert (await site.run(hangs, message("hangs"))).name == "in_flight" and was_cancelled == ["hangs"]


async def away(site):
    """PostgreSQL is away for a part of the lease, which nobody notices; then for longer, which cancels the handler."""
    short, provider, call, clock = Site(site.pool, "away-short", lease=0.8), Provider(), Database.call, asyncio.get_running_loop().time
    begun, cancelled, refused = clock(), [], []

    def gone(seconds):
        async def going(self, function, *given, **named):
            if function != "claim_leased" and clock() < begun + seconds:
                refused.append(function)
                raise psycopg.OperationalError("PostgreSQL is away")
            return await call(self, function, *given, **named)

        return mock.patch.object(Database, "call", going)

    with gone(0.5):
        assert (await short.run(charges(provider))).name == "handled" and provider.calls == ["k:charge"]
    assert refused.count("begin_effect") >= 2, refused
    begun = clock()

    async def waits(cx, data):
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            cancelled.append(clock() - begun)
            raise

    with gone(5):
        try:
            await short.run(waits, message("waits"))
            raise AssertionError("a lease that was not renewed was kept")
        except psycopg.OperationalError as error:
            assert "away" in str(error), error
    assert 0.7 < cancelled[0] < 2.0, cancelled
    begun = clock() - 10
    while (answer := await short.run(charges(provider), message("waits"))).name == "in_flight":
        await asyncio.sleep(0.05)
    assert answer.name == "handled", answer
    await site.ask("DELETE FROM charge")


async def given_back(site):
    """A claim is given back also when PostgreSQL is away for a part of the lease, and so is a key that is given up."""
    call, refused, calls = Database.call, [], []

    async def going(self, function, *given, **named):
        if function in ("release_leased", "bury_leased") and refused.count(function) < 3:
            refused.append(function)
            raise psycopg.OperationalError("PostgreSQL is away")
        return await call(self, function, *given, **named)

    async def fails(cx, data):
        raise oncebox.Dead("no use") if cx.key == "dead" else ValueError("as it was told")

    with mock.patch.object(Database, "call", going):
        assert (await site.run(fails)).name == "retry" and await site.claim() == [("failed", 1)]
        assert (await site.run(fails, message("dead"))).name == "dead"
    left = []

    async def leaves(cx, data):
        left.append(asyncio.create_task(cx.effect("late", late, provider_idempotent=True)))
        await asyncio.sleep(0)

    async def late(key):
        calls.append(key)

    async def slow(self, function, *given, **named):
        row = await call(self, function, *given, **named)
        await asyncio.sleep(0.3 if function == "begin_effect" else 0)
        return row

    with mock.patch.object(Database, "call", slow):
        assert (await site.run(leaves, message("leaves"))).name == "retry"
        (ended,) = await asyncio.gather(*left, return_exceptions=True)
    assert isinstance(ended, oncebox.LeaseLost) and calls == [], "what a handler leaves behind calls nothing"


async def owner(point):
    """An owner that tells when it is about to call, or to commit, and then sleeps."""
    async with AsyncConnectionPool(URL, min_size=2, max_size=4) as pool:
        site = Site(pool, f"suspended-{point}", lease=1.0)

        async def call(key):
            await site.ask("INSERT INTO charge (id, cents) VALUES (%s, 0)", f"{key} by the owner")

        async def handle(cx, data):
            await cx.effect("first", Provider().charge, provider_idempotent=True)
            if point == "call":
                print("here", flush=True)
                await asyncio.sleep(0.5)
            await cx.effect("second", call, provider_idempotent=True)

        async def finish(cx, reply):
            await book(cx, reply)
            if point == "finish":
                print("here", flush=True)
                await asyncio.sleep(0.5)

        answer = await site.run(oncebox.LeasedHandler(handle, finish=finish))
        print(json.dumps(answer.name), flush=True)


async def suspended(site):
    """An owner that is suspended for longer than its lease writes and calls nothing when it goes on."""
    for point in ("call", "finish"):
        one, provider = Site(site.pool, f"suspended-{point}", lease=1.0), Provider()
        process = await asyncio.create_subprocess_exec(sys.executable, __file__, point, stdout=asyncio.subprocess.PIPE)
        assert await process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGSTOP)

        async def handle(cx, data):
            await cx.effect("first", provider.charge, provider_idempotent=True)
            await cx.effect("second", provider.charge, provider_idempotent=True)

        for _ in range(100):
            if (answer := await one.run(handle)).name == "handled":
                break
            await asyncio.sleep(0.1)
        assert answer.name == "handled" and provider.calls == (["k:second"] if point == "call" else []), (answer, provider.calls)
        process.send_signal(signal.SIGCONT)
        assert await process.stdout.readline() == b'"in_flight"\n', point
        await process.wait()
        written = await site.ask("SELECT id FROM charge")
        assert written == ([] if point == "call" else [("k:second by the owner",)]), written
        await site.ask("DELETE FROM charge")


if __name__ == "__main__":
    is_owner = sys.argv[1:] in (["call"], ["finish"])
    asyncio.run(owner(sys.argv[1]) if is_owner else main([own_statement, stolen, away, given_back, suspended]))
