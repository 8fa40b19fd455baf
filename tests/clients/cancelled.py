"""A handler that waits for a task that is cancelled, and one that is cancelled itself: prints how each ends."""

import asyncio
import os

import oncebox
from psycopg_pool import AsyncConnectionPool


async def wait_for_another(cx: oncebox.Context, data: None):
    another = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_later(0.1, another.cancel)
    await another


async def main():
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=2) as pool:
        inbox, begun = oncebox.Inbox(pool, scope="cancelled:test", attempts_max=1), asyncio.Event()

        async def wait_for_ever(cx: oncebox.Context, data: None):
            begun.set()
            await asyncio.sleep(60)

        for key, handler in [("within", wait_for_another), ("outside", wait_for_ever)]:
            message = oncebox.Message("orders.placed", b"null", {"idempotency-key": key})
            running = asyncio.create_task(inbox.run(handler, message))
            if key == "outside":
                await begun.wait()
                running.cancel()
            await asyncio.wait([running])
            print(key, "cancelled" if running.cancelled() else running.result().name)


asyncio.run(main())
