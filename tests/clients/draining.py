"""A consumer whose handler does not end, also when it is cancelled: prints how its drain ends."""

import asyncio
import os

import nats
import oncebox
from psycopg_pool import AsyncConnectionPool

STREAM, SUBJECT = os.environ["STREAM"], os.environ["SUBJECT"]


async def main():
    client, stop = await nats.connect(os.environ["NATS_URL"]), asyncio.Event()

    async def handle(cx: oncebox.Context, data: None):
        stop.set()
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    await client.jetstream().publish(SUBJECT, b"null", headers={"Idempotency-Key": "endless"})
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=2) as pool:
        inbox = oncebox.Inbox(pool, scope="draining:test", step_timeout=1.0)
        consumer = oncebox.Consumer(client.jetstream(), STREAM, "draining", concurrency=2, grace=0.1)
        try:
            await consumer.run(inbox, handle, stop)
            print("ends without an error", flush=True)
        except TimeoutError as error:
            print(error, flush=True)
        # The handler would keep asyncio from ending.
        os._exit(0)


asyncio.run(main())
