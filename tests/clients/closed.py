"""Consumers whose NATS client is closed for good, at work and before they begin: prints how each ends."""

import asyncio
import os

import nats
import oncebox
from psycopg_pool import AsyncConnectionPool

STREAM, SUBJECT = os.environ["STREAM"], os.environ["SUBJECT"]


async def consume(pool: AsyncConnectionPool, is_at_work: bool) -> str:
    client, handled = await nats.connect(os.environ["NATS_URL"]), asyncio.Event()

    async def handle(cx: oncebox.Context, data: None):
        handled.set()

    await client.jetstream().publish(SUBJECT, b"null", headers={"Idempotency-Key": f"work-{is_at_work}"})
    if not is_at_work:
        await client.close()
    consumer = oncebox.Consumer(client.jetstream(), STREAM, "closed", concurrency=2)
    running = asyncio.create_task(consumer.run(oncebox.Inbox(pool, scope="closed:test"), handle, asyncio.Event()))
    if is_at_work:
        await handled.wait()
        await client.close()
    try:
        await asyncio.wait_for(running, 20)
    except nats.errors.ConnectionClosedError as error:
        return " ".join([str(error), *error.__notes__])
    except TimeoutError:
        return "goes on without a connection"
    return "ends without an error"


async def main():
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=2) as pool:
        print("at work:", await consume(pool, True))
        print("at start:", await consume(pool, False))


asyncio.run(main())
