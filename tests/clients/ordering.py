"""A consumer that writes which message of a line came before each: see tests/it/clients/ordering.rs."""

import asyncio
import logging
import os
import random

import nats
import oncebox
from psycopg_pool import AsyncConnectionPool

LAST = "INSERT INTO line (name) VALUES (%s) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING last"


async def handle(cx: oncebox.Context, data: dict):
    line, n = data["line"], data["n"]
    (before,) = await (await cx.connection.execute(LAST, [line])).fetchone()
    await cx.connection.execute("INSERT INTO seen (line, n, before) VALUES (%s, %s, %s)", [line, n, before])
    await cx.connection.execute("UPDATE line SET last = %s WHERE name = %s", [n, line])
    await asyncio.sleep(random.uniform(0, 0.02))
    if data.get("dead"):
        raise oncebox.Dead("as it was told")
    if random.random() < float(os.environ["FAILING"]):
        raise ValueError("fails now and then")


async def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("oncebox").setLevel(logging.INFO)
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=9) as pool:
        inbox = oncebox.Inbox(pool, scope="ordering:test", backoff=(0.05, 0.2))
        consumer = oncebox.Consumer(
            client.jetstream(), os.environ["STREAM"], "ordering", concurrency=8 if os.environ["BATCH"] == "1" else 4,
            batch=int(os.environ["BATCH"]), order=os.environ["ORDER"], ack_wait=6,
        )  # fmt: skip
        await consumer.run(inbox, handle)
    await client.drain()


asyncio.run(main())
