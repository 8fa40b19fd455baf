"""A consumer under leases, whose provider waits at a gate: see tests/it/clients/crossing.rs."""

import asyncio
import os
from hashlib import sha256

import nats
import oncebox
from psycopg_pool import AsyncConnectionPool


async def main():
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=2, max_size=8) as pool:

        async def ask(sql: str, *parameters):
            async with pool.connection() as connection:
                return await (await connection.execute(sql, parameters)).fetchone()

        async def provider(key: str):
            await ask("INSERT INTO called (key) VALUES (%s) RETURNING 1", key)
            while await ask("SELECT 1 FROM gate WHERE key = %s", key):
                await asyncio.sleep(0.05)
            return f"receipt of {key}"

        async def handle(cx: oncebox.LeasedContext, payload: bytes):
            await cx.effect("pay", provider, provider_idempotent=True)
            return sha256(payload).hexdigest()

        async def finish(cx: oncebox.Context, digest: str):
            await cx.connection.execute("INSERT INTO arrived (key, digest) VALUES (%s, %s)", [cx.key, digest])

        inbox = oncebox.Inbox(pool, scope="tests:crossing", lease=2.0, attempts_max=9, backoff=(0.1, 0.1), decode=bytes)
        consumer = oncebox.Consumer(
            client.jetstream(), os.environ["STREAM"], "crossing", concurrency=4, order=os.environ["ORDER"], ack_wait=2
        )
        await consumer.run(inbox, oncebox.LeasedHandler(handle, finish=finish))
        # As a process does that drains nothing: the acknowledgements have been sent.
        os._exit(0)


asyncio.run(main())
