"""Two consumers in a process that listens to SIGTERM itself: prints what each hears."""

import asyncio
import os
import signal

import nats
import oncebox
from psycopg_pool import AsyncConnectionPool


async def handle(cx: oncebox.Context, data: None):
    pass


async def main():
    signal.signal(signal.SIGTERM, lambda number, frame: print("heard", number, flush=True))
    client = await nats.connect(os.environ["NATS_URL"])
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=2) as pool:
        consumers = [oncebox.Consumer(client.jetstream(), os.environ["STREAM"], name, concurrency=1) for name in ("a", "b")]
        running = [
            asyncio.create_task(consumer.run(oncebox.Inbox(pool, scope=f"signals:{consumer.durable}"), handle))
            for consumer in consumers
        ]
        for consumer in consumers:
            while True:
                try:
                    await client.jetstream().consumer_info(consumer.stream, consumer.durable)
                    break
                except nats.js.errors.NotFoundError:
                    await asyncio.sleep(0.01)
        print("both consume", flush=True)
        await asyncio.gather(*running)
        print("both have ended", flush=True)


asyncio.run(main())
