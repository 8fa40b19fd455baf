"""Errors of handlers and of the database, as the inbox tells them apart: see tests/it/clients/libraries.rs.

Prints `all is well`.
"""

import asyncio
import io
import json
import logging
import os
from dataclasses import replace
from datetime import datetime, timezone
from unittest import mock

import asyncpg
import nats
import oncebox
import prometheus_client
import psycopg
from oncebox import transaction
from oncebox.batch import Batch
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

URL, STREAM = os.environ["DATABASE_URL"], os.environ["STREAM"]
heard = io.StringIO()


class Order(BaseModel):
    cents: int


def message(key, payload=b"{}", **headers):
    return oncebox.Message("orders.placed", payload, {"idempotency-key": key, **headers})


async def attempts(pool):
    async with pool.connection() as connection:
        found = await connection.execute("SELECT key, failures, reason FROM oncebox.inbox_attempt WHERE failures > 0")
        return {key: (failures, reason) for key, failures, reason in await found.fetchall()}


async def causes(pool):
    """An error counts as the one that it was raised from, or as a member of its group."""
    lost = set()

    async def handle(cx, data):
        try:
            try:
                if cx.key == "conflict" and cx.key not in lost:
                    lost.add(cx.key)
                    await cx.connection.execute("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$")
                if cx.key == "dead":
                    raise oncebox.Dead("no use")
                if cx.key == "later":
                    raise oncebox.RetryAfter(3600)
                if cx.key == "fails":
                    raise KeyError("ledger")
            except Exception as error:
                raise RuntimeError("the ledger failed") from error
        except RuntimeError as error:
            raise ExceptionGroup("two tasks failed", [ValueError("another"), error])

    inbox = oncebox.Inbox(pool, scope="troubles:causes", decode=Order.model_validate_json)
    await inbox.register()
    run = {key: await inbox.run(handle, message(key, b'{"cents": 1}')) for key in ("conflict", "dead", "later", "fails")}
    assert {key: answer.name for key, answer in run.items()} == {"conflict": "handled", "dead": "dead", "later": "retry", "fails": "retry"}
    assert (run["dead"].reason, run["later"].after) == ("no use", 3600.0)
    assert "ledger failed" in run["fails"].reason and "KeyError: 'ledger'" in run["fails"].reason, run["fails"].reason
    assert "in handle" in heard.getvalue(), "the log has the traceback"
    unfit = await inbox.run(handle, message("unfit", b'{"cents": "many secrets"}'))
    assert unfit.name == "dead" and "(cents: int_parsing)" in unfit.reason and "secrets" not in unfit.reason, unfit.reason


async def connections(pool):
    """Connections of the pool that are dead, or to a server that is read-only, cost no attempt."""
    ran = []

    async def handle(cx, data):
        ran.append(cx.key)

    inbox = oncebox.Inbox(pool, scope="troubles:connections")
    await inbox.register()
    for key, text in (
        ("dead", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"),
        ("read-only", None),
    ):
        if text is None:
            connections = [await pool.getconn() for _ in range(3)]
            for connection in connections:
                await connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
                await connection.commit()
                await pool.putconn(connection)
        else:
            async with await psycopg.AsyncConnection.connect(URL, autocommit=True) as connection:
                await connection.execute(text)
        assert (await inbox.run(handle, message(key))).name == "handled", key
    assert ran == ["dead", "read-only"] and not {"dead", "read-only"} & set(await attempts(pool)), await attempts(pool)


async def ends(client):
    """What is missing is named, with the command that makes it; a rejection is one at once."""
    async with AsyncConnectionPool(URL, min_size=1, max_size=2) as pool:
        consumer, inbox = oncebox.Consumer(client.jetstream(), STREAM, "ends"), oncebox.Inbox(pool, "troubles:ends", schema="nowhere")
        try:
            await consumer.run(inbox, print, asyncio.Event())
            raise AssertionError("a handler that is no coroutine was taken")
        except TypeError:
            pass
        try:
            await consumer.run(inbox, nothing, asyncio.Event())
            raise AssertionError("a schema that is not there was taken")
        except psycopg.Error as error:
            assert "oncebox migrate" in error.__notes__[0]
    async with AsyncConnectionPool(URL, min_size=1, max_size=2) as pool:
        consumer = oncebox.Consumer(client.jetstream(), "NOWHERE", "ends")
        try:
            await consumer.run(oncebox.Inbox(pool, scope="troubles:ends"), nothing, asyncio.Event())
        except nats.js.errors.NotFoundError as error:
            assert "--stream 'NOWHERE=SUBJECTS'" in str(error), error
        assert "NOWHERE" in consumer.problem and "has ended" in heard.getvalue()
        inbox = oncebox.Inbox(pool, scope="troubles:ends")
        assert [(await inbox.run(reject, message("no"))).name for _ in range(2)] == ["rejected", "rejected"]


async def nothing(cx, data): ...


async def reject(cx, data):
    return oncebox.Reject("no")


async def starts(client):
    """A new durable begins where it is told; an empty message of a delete marker is passed over."""
    jetstream, came = client.jetstream(), []
    subject = (await jetstream.stream_info(STREAM)).config.subjects[0].replace(">", "a").replace("*", "a")
    await jetstream.publish(subject, b"1", headers={"Idempotency-Key": "before"})
    async with AsyncConnectionPool(URL, min_size=1, max_size=4) as pool:
        inbox, stop = oncebox.Inbox(pool, scope="troubles:starts"), asyncio.Event()
        consumer = oncebox.Consumer(jetstream, STREAM, "starts", start="now", concurrency=2)

        async def handle(cx, data):
            came.append(cx.key)
            if cx.key == "after":
                stop.set()

        running = asyncio.create_task(consumer.run(inbox, handle, stop))
        while consumer.problem is not None:
            await asyncio.sleep(0.05)
        await jetstream.publish(subject, b"", headers={"Nats-Marker-Reason": "MaxAge"})
        await jetstream.publish(subject, b"1", headers={"Idempotency-Key": "after"})
        await asyncio.wait_for(running, 30)
        assert came == ["after"], came
        async with pool.connection() as connection:
            letters = await (await connection.execute("SELECT reason FROM oncebox.dead_letter WHERE scope = 'troubles:starts'")).fetchall()
        assert letters == [], letters
        info = await jetstream.consumer_info(STREAM, "starts")
        assert info.num_ack_pending == 0, json.dumps(info.as_dict(), default=str)
    metrics = prometheus_client.generate_latest().decode()
    for line in ('messages_total{outcome="done",scope="troubles:starts"} 1.0', 'run_seconds_count{scope="troubles:starts"} 1.0'):
        assert f"oncebox_inbox_{line}" in metrics, metrics


async def shared(client):
    """Two services with one durable: neither handles messages of the other."""
    jetstream, came, stop = client.jetstream(), {"a": [], "b": []}, asyncio.Event()
    base = (await jetstream.stream_info(STREAM)).config.subjects[0].rpartition(".")[0]
    async with AsyncConnectionPool(URL, min_size=1, max_size=4) as pool:

        async def start(name):
            async def handle(cx, data):
                came[name].append(cx.message.subject)

            consumer = oncebox.Consumer(jetstream, STREAM, "shared", filter_subject=f"{base}.{name}", start="now")
            running = asyncio.create_task(consumer.run(oncebox.Inbox(pool, scope=f"troubles:{name}"), handle, stop))
            while consumer.problem is not None:
                await asyncio.sleep(0.05)
            return running

        running = [await start("a"), await start("b")]
        for n in range(20):
            await jetstream.publish(f"{base}.b", b"1", headers={"Idempotency-Key": f"shared-{n}"})
        for _ in range(400):
            if len(came["b"]) == 20:
                break
            await asyncio.sleep(0.05)
        stop.set()
        await asyncio.gather(*running)
    assert came == {"a": [], "b": [f"{base}.b"] * 20}, came
    assert "outside of its filter" in heard.getvalue()


async def restarts(client):
    """A message that waits for its next attempt waits through restarts of its consumer, and costs none."""
    jetstream, clock = client.jetstream(), asyncio.get_running_loop().time
    base = (await jetstream.stream_info(STREAM)).config.subjects[0].rpartition(".")[0]
    async with AsyncConnectionPool(URL, min_size=1, max_size=6) as pool:
        for order in ("strict", "process"):
            ran, key, subject = [], f"restarts-{order}", f"{base}.{order}"

            async def handle(cx, data):
                ran.append(clock())
                if len(ran) == 1:
                    raise ValueError("as it was told")

            def start(stop):
                consumer = oncebox.Consumer(jetstream, STREAM, key, filter_subject=subject, order=order, ack_wait=2)
                return asyncio.create_task(consumer.run(inbox, handle, stop))

            inbox = oncebox.Inbox(pool, scope=f"troubles:{key}", backoff=(6.0, 6.0))
            await jetstream.publish(subject, b"1", headers={"Idempotency-Key": key, "Oncebox-Ordering-Key": "o"})
            for _ in range(3):
                running = start(stop := asyncio.Event())
                await asyncio.sleep(0.9)
                stop.set()
                await running
            assert len(ran) == 1 and (await attempts(pool))[key][0] == 1, (order, ran)
            running = start(stop := asyncio.Event())
            while len(ran) < 2 and clock() < ran[0] + 30:
                await asyncio.sleep(0.05)
            stop.set()
            await running
            assert 3.0 <= ran[1] - ran[0] < 12, (order, ran)


async def snoozes(pool):
    """A snooze is no attempt, holds in other processes too, and has an end."""
    is_away = True

    async def handle(cx, data):
        await cx.connection.execute("INSERT INTO charge (id) VALUES (%s)", [cx.key])
        if is_away:
            raise RuntimeError("no gateway") from oncebox.Snooze(1.0, "the gateway is away")

    origin = oncebox.Origin("S", 7, datetime.now(timezone.utc))
    first = replace(message("snoozed"), origin=origin)
    again = replace(first, deliveries=2)
    inbox = oncebox.Inbox(pool, scope="troubles:snoozes", attempts_max=2, snooze_max=8.0)
    await inbox.register()
    assert (await inbox.run(handle, first))[::3] == ("snoozed", 1.0)
    waiting = await inbox.run(handle, again)
    assert waiting.name == "in_flight" and 0.0 < waiting.after <= 1.0, waiting
    for _ in range(3):
        await asyncio.sleep(1.05)
        assert (await inbox.run(handle, again)).name == "snoozed"
    async with pool.connection() as connection:
        found = await connection.execute("SELECT snoozes, attempts, reason FROM oncebox.inbox_snooze WHERE scope = 'troubles:snoozes'")
        assert await found.fetchall() == [(4, 0, "the gateway is away")]
    assert "snoozed" not in await attempts(pool)
    await asyncio.sleep(5)
    dead = await inbox.run(handle, again)
    assert dead.name == "dead" and "snoozed for too long, 8 s: the gateway" in dead.reason, dead
    is_away = False
    assert (await inbox.run(handle, message("awake"))).name == "handled"
    async with pool.connection() as connection:
        found = await connection.execute("SELECT string_agg(id, ' ') FROM charge")
        assert await found.fetchone() == ("awake",)


async def pipelines(pool):
    """A message that fails, or rolls back, changes nothing for the others that share its pipeline."""

    async def handle(cx, data):
        if cx.key == "rolls-back":
            await cx.connection.execute("ROLLBACK")
        elif cx.key.endswith("nested"):
            async with cx.connection.transaction():
                await cx.connection.execute("INSERT INTO piped VALUES (%s, 1)", [cx.key])
        else:
            cents = -1 if cx.key in ("breaks", "fails-too") else 1
            await cx.connection.execute("INSERT INTO piped VALUES (%s, %s)", [cx.key, cents])
        if cx.key == "fails-too":
            raise ValueError("as it was told")

    async with pool.connection() as connection:
        await connection.execute("CREATE TABLE piped (id text, cents int CHECK (cents > 0))")
    inbox = oncebox.Inbox(pool, scope="troubles:pipelines", attempts_max=1)
    await inbox.register()
    # Either error of the last one may be the first that is known.
    odds = {"breaks": "piped_cents_check", "rolls-back": "ended the transaction by itself", "fails-too": ""}
    for odd, reason in odds.items():
        keys = [f"{odd}-1", f"{odd}-2", odd, f"{odd}-3", f"{odd}-4-nested", f"{odd}-5"]
        answers = await Batch(inbox, oncebox.PipelinedHandler(handle)).run([message(key) for key in keys])
        assert [answer.name for answer in answers] == ["handled"] * 2 + ["dead"] + ["handled"] * 3, answers
        assert reason in answers[2].reason, answers[2]
        async with pool.connection() as connection:
            found = await connection.execute("SELECT id FROM piped WHERE starts_with(id, %s) ORDER BY id", [odd])
            assert [key for (key,) in await found.fetchall()] == keys[:2] + keys[3:]
    assert "ignored terminating" not in heard.getvalue(), "psycopg warns of no error that follows from another"
    for engine in (create_engine, create_async_engine):
        try:
            oncebox.Inbox(engine("postgresql+psycopg://"), scope="piped").check(oncebox.PipelinedHandler(handle))
            raise AssertionError("a library without pipelines was taken")
        except TypeError as error:
            assert "AsyncConnectionPool" in str(error), error


async def small(client):
    """A pool that is too small is refused at the start, or is in the log."""
    settings = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1}
    dsn = "postgresql+psycopg:" + URL.partition(":")[2]
    own = await asyncpg.create_pool(URL, min_size=1, max_size=1)
    for pool in (AsyncConnectionPool(URL, min_size=1, open=False, max_size=1), create_async_engine(dsn, **settings), create_engine(dsn, **settings), own):
        handle = print if isinstance(pool, Engine) else nothing
        running = oncebox.Consumer(client.jetstream(), STREAM, "small", order="strict").run(oncebox.Inbox(pool, scope="small"), handle, asyncio.Event())
        try:
            await asyncio.wait_for(running, 5)
            raise AssertionError(f"{pool} was taken")
        except ValueError as error:
            assert "2 connections" in str(error), error
    stop = asyncio.Event()
    stop.set()
    await oncebox.Consumer(client.jetstream(), STREAM, "small", concurrency=3).run(oncebox.Inbox(own, scope="small"), nothing, stop)
    assert "the pool has 1 connections for 3 workers" in heard.getvalue()
    taken = [await own.acquire()]
    running = asyncio.create_task(oncebox.Inbox(own, scope="troubles:small", step_timeout=1.0).run(nothing, message("small")))
    with mock.patch.object(transaction, "SLOW_POOL", 0.3):
        await asyncio.wait([running])
    assert isinstance(running.exception(), psycopg.OperationalError)
    assert "no connection of the pool has been free for 0.3 s" in heard.getvalue()
    await own.release(taken[0])
    await own.close()


async def main():
    logging.basicConfig(level=logging.INFO, stream=heard)
    client = await nats.connect(os.environ["NATS_URL"])
    async with AsyncConnectionPool(URL, min_size=3, max_size=3) as pool:
        await causes(pool)
        await connections(pool)
        await snoozes(pool)
        await pipelines(pool)
    await ends(client)
    await starts(client)
    await shared(client)
    await restarts(client)
    await small(client)
    await client.close()
    print("all is well")


asyncio.run(main())
