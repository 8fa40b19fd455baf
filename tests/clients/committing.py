"""Handlers that commit or fail, over a pool whose connections commit each statement: prints what becomes of each."""

import asyncio
import os

import oncebox
from psycopg_pool import AsyncConnectionPool


async def charge(cx: oncebox.Context, data: None):
    await cx.connection.execute("INSERT INTO charge (id, cents) VALUES (%s, 1)", [cx.key])
    if cx.key == "commits":
        await cx.connection.commit()
    if cx.key == "fails":
        raise ValueError("the handler fails")


async def main():
    url, options = os.environ["DATABASE_URL"], {"autocommit": True}
    async with AsyncConnectionPool(url, min_size=1, max_size=1, kwargs=options) as pool:
        inbox = oncebox.Inbox(pool, scope="committing:charge", attempts_max=1)
        for key in ["commits", "fails", "returns"]:
            answer = await inbox.run(charge, oncebox.Message("orders.placed", b"null", {"idempotency-key": key}))
            print(key, answer.name, answer.reason)
        async with pool.connection() as connection:
            charged = await (await connection.execute("SELECT id FROM charge")).fetchall()
            print("charged", charged, "autocommit", connection.autocommit)


asyncio.run(main())
