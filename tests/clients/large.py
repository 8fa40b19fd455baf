"""Notes each payload by its digest, and fails with one: see tests/it/clients/large.rs."""

import asyncio
import os
from hashlib import sha256

import nats
import oncebox
from psycopg_pool import AsyncConnectionPool


async def handle(cx: oncebox.Context, payload: bytes):
    digest = sha256(payload).hexdigest()
    await cx.connection.execute("INSERT INTO arrived (key, digest) VALUES (%s, %s)", [cx.key, digest])
    if cx.key == "fails":
        raise oncebox.Dead("the handler fails")


async def main():
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=3) as pool:
        inbox = oncebox.Inbox(pool, scope="large", attempts_max=2, backoff=(0.1, 0.1), decode=bytes)
        await oncebox.Consumer(client.jetstream(), os.environ["STREAM"], "large", concurrency=2).run(inbox, handle)
    await client.drain()


asyncio.run(main())
