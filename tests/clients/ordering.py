"""A consumer that keeps the order of each key: see tests/it/clients/ordering.rs. Each seventh message fails twice.

One whose negative number is in the table `tried` is given up."""

import asyncio
import logging
import os

import nats
import oncebox
from psycopg_pool import AsyncConnectionPool

TRY = "INSERT INTO tried (key, n) VALUES (%s, %s) RETURNING (SELECT count(*) FROM tried WHERE key = %s AND n = %s)"


async def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("oncebox").setLevel(logging.INFO)
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=18) as pool:

        async def handle(cx: oncebox.Context, data: dict):
            key, n = data["key"], data["n"]
            broken = await cx.connection.execute("SELECT FROM tried WHERE key = %s AND n = %s", [key, -n or None])
            if await broken.fetchone() is not None:
                raise oncebox.Dead(f"no account {n}")
            if n % 7 == 3:
                async with pool.connection() as own:
                    (tried,) = await (await own.execute(TRY, [key, n, key, n])).fetchone()
                if tried < 2:
                    raise ValueError("as it was told")
            await cx.connection.execute("INSERT INTO effect (key, n) VALUES (%s, %s)", [key, n])

        inbox = oncebox.Inbox(pool, scope="ordering:test", backoff=(0.15, 0.15))
        consumer = oncebox.Consumer(
            client.jetstream(), os.environ["STREAM"], "ordering", concurrency=8 if os.environ["BATCH"] == "1" else 4,
            batch=int(os.environ["BATCH"]), order=os.environ["ORDER"], ack_wait=2,
        )  # fmt: skip
        await consumer.run(inbox, handle)
    await client.drain()


asyncio.run(main())
