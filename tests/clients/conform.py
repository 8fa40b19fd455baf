"""A consumer whose handler does as the payload says: see tests/it/clients/scenarios.rs."""

import asyncio
import json
import os
from decimal import Decimal

import nats
import oncebox
import psycopg
from psycopg.adapt import Dumper, Loader
from psycopg.rows import dict_row, namedtuple_row
from psycopg_pool import AsyncConnectionPool

URL, SETTINGS = os.environ["DATABASE_URL"], os.environ["SETTINGS"]
leftovers = set()


class Odd(Exception):
    def __str__(self):
        raise ValueError("no text")


class Spoiled(Loader):
    def load(self, data):
        return "spoiled"


class Spoils(Dumper):
    def dump(self, value):
        return b"spoiled"


async def spoil(connection):
    """Sets what a user may set on a connection for good, and on its types."""
    connection.row_factory = dict_row
    connection.cursor_factory = psycopg.AsyncRawCursor if SETTINGS == "raw" else psycopg.AsyncClientCursor
    for name in ("json", "jsonb", "uuid", "numeric", "timestamptz", "interval", "int8", "int4", "bool", "bytea", "text", "xid8"):
        connection.adapters.register_loader(name, Spoiled)
    for kind in (int, bytes, bool, float):
        connection.adapters.register_dumper(kind, Spoils)


async def late(cx: oncebox.Context, log: AsyncConnectionPool):
    """Goes on until the message has ended, and then writes again and again."""
    ended = "SELECT status FROM oncebox.inbox WHERE key = %s"
    async with log.connection() as connection:
        while await (await connection.execute(ended, [cx.key])).fetchone() is None:
            await asyncio.sleep(0.01)
        for _ in range(20):
            try:
                await cx.connection.execute("INSERT INTO public.effect (name) VALUES (%s)", [cx.key])
                said = "written"
            except Exception as error:
                said = str(error)
            await connection.execute("INSERT INTO late (name, said) VALUES (%s, %s)", [cx.key, said])
            await asyncio.sleep(0.01)


def handler(log: AsyncConnectionPool, exhausted: AsyncConnectionPool, lost: set):
    """The handler, or, under a lease, what it does before the last writes and with them."""

    async def note(cx, data: dict):
        async with log.connection() as connection:
            run = "INSERT INTO run (name, deliveries) VALUES (%s, %s)"
            await connection.execute(run, [data["name"], cx.message.deliveries])

    async def write(cx: oncebox.Context, data: dict):
        name = data["name"]
        await cx.connection.execute("INSERT INTO effect (name) VALUES (%s)", [name])
        for text in data["sql"]:
            try:
                await cx.connection.execute(text)
            except psycopg.errors.DivisionByZero:
                pass
        match data["do"]:
            case "conflict" if name not in lost:
                lost.add(name)
                await cx.connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
            case "late":
                leftovers.add(asyncio.create_task(late(cx, log)))
            case "types":
                cx.connection.row_factory = namedtuple_row
                await spoil(cx.connection)
                message = [cx.connection, name, "orders.placed", {"name": name}]
                first, again = await oncebox.enqueue(*message), await oncebox.enqueue(*message)
                assert isinstance(first, int) and again is None, (first, again)

    async def end(cx, data: dict):
        match data["do"]:
            case "reject":
                return oncebox.Reject("no")
            case "dead":
                raise oncebox.Dead("no use")
            case "fail" | "panic":
                raise ValueError("as it was told")
            case "retry":
                raise oncebox.RetryAfter(0.7)
            case "hang":
                await asyncio.sleep(60)
            case "pool":
                await exhausted.getconn(0.05)
            case "exit":
                os._exit(9)
            case "odd-reply":
                return {"cents": Decimal(1)}
            case "long-reply":
                return "x" * (1 << 20)
            case "odd-error":
                raise Odd
            case "odd-pause":
                raise oncebox.RetryAfter(float("nan") if cx.message.deliveries == 1 else "5")
        return reply(data)

    async def handle(cx: oncebox.Context, data: dict):
        await note(cx, data)
        await write(cx, data)
        return await end(cx, data)

    async def handle_leased(cx: oncebox.LeasedContext, data: dict):
        await note(cx, data)
        return reply(data) if data["sql"] else await end(cx, data)

    async def finish(cx: oncebox.Context, _):
        data = json.loads(cx.message.payload)
        await write(cx, data)
        if data["sql"]:
            await end(cx, data)

    return oncebox.LeasedHandler(handle_leased, finish=finish) if SETTINGS == "leased" else handle


def reply(data: dict):
    return {"did": data["name"]} if data["reply"] else None


def each(handle):
    async def handle_set(connection, entries):
        contexts = [oncebox.Context(connection, entry.key, entry.tenant, entry.message) for entry in entries]
        return [await handle(cx, entry.data) for cx, entry in zip(contexts, entries)]

    return handle_set


async def main():
    settings = {"configure": spoil, "kwargs": {"autocommit": True}} if SETTINGS == "spoiled" else {}
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    async with (
        AsyncConnectionPool(URL, min_size=1, max_size=4 if SETTINGS == "strict" else 3, **settings) as pool,
        AsyncConnectionPool(URL, min_size=1, max_size=4, kwargs={"autocommit": True}) as log,
        AsyncConnectionPool(URL, min_size=1, max_size=1) as exhausted,
    ):
        await exhausted.getconn()
        inbox = oncebox.Inbox(
            pool, scope="conform:test", tenant_header="Tenant", attempts_max=3, backoff=(0.4, 2.0), handler_timeout=5.0,
            lease=8.0 if SETTINGS == "leased" else None,
        )  # fmt: skip
        batch, order = 16 if SETTINGS in ("batch", "pipelined", "set") else 1, "strict" if SETTINGS == "strict" else "process"
        consumer = oncebox.Consumer(client.jetstream(), os.environ["STREAM"], "conform", concurrency=3, batch=batch, order=order)
        handle = handler(log, exhausted, set())
        kinds = {"pipelined": oncebox.PipelinedHandler(handle), "set": oncebox.SetHandler(each(handle))}
        await consumer.run(inbox, kinds.get(SETTINGS, handle))
        # The process ends with the connection, which was not given back.
        os._exit(0)


asyncio.run(main())
