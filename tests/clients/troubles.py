"""Errors of handlers and of the database, as the inbox tells them apart: see tests/it/clients/libraries.rs.

Prints `all is well`.
"""

import asyncio
import io
import json
import logging
import os

import nats
import oncebox
import prometheus_client
import psycopg
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

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


async def main():
    logging.basicConfig(level=logging.INFO, stream=heard)
    client = await nats.connect(os.environ["NATS_URL"])
    async with AsyncConnectionPool(URL, min_size=3, max_size=3) as pool:
        await causes(pool)
        await connections(pool)
    await ends(client)
    await starts(client)
    await shared(client)
    await client.close()
    print("all is well")


asyncio.run(main())
