"""Handlers that commit, fail or nest, over a pool whose connections commit each statement, and copies at
once over one whose transactions are serializable: prints what becomes of each."""

import asyncio
import os
from collections import Counter

import oncebox
from psycopg import IsolationLevel
from psycopg_pool import AsyncConnectionPool

URL = os.environ["DATABASE_URL"]


async def charge(cx: oncebox.Context, data: None):
    async with cx.connection.transaction():
        await cx.connection.execute("INSERT INTO charge (id, cents) VALUES (%s, 1)", [cx.key])
    if cx.key == "commits":
        await cx.connection.commit()
    if cx.key == "fails":
        raise ValueError("the handler fails")
    (level,) = await (await cx.connection.execute("SHOW transaction_isolation")).fetchone()
    return level if cx.key == "copied" else None


def message(key: str) -> oncebox.Message:
    return oncebox.Message("orders.placed", b"null", {"idempotency-key": key})


async def commit():
    async with AsyncConnectionPool(URL, min_size=1, max_size=1, kwargs={"autocommit": True}) as pool:
        inbox = oncebox.Inbox(pool, scope="committing:charge", attempts_max=1)
        for key in ["commits", "fails", "returns"]:
            answer = await inbox.run(charge, message(key))
            print(key, answer.name, answer.reason)
        async with pool.connection() as connection:
            charged = await (await connection.execute("SELECT id FROM charge")).fetchall()
            print("charged", charged, "autocommit", connection.autocommit)


async def serialize(connection):
    await connection.set_isolation_level(IsolationLevel.SERIALIZABLE)


async def copy():
    async with AsyncConnectionPool(URL, min_size=8, max_size=8, configure=serialize) as pool:
        inbox = oncebox.Inbox(pool, scope="committing:charge")

        async def until_final():
            while (answer := await inbox.run(charge, message("copied"))).name in ("in_flight", "retry"):
                await asyncio.sleep(0.05)
            return answer.name, answer.reply

        print(sorted(Counter(await asyncio.gather(*(until_final() for _ in range(8)))).items()))
        async with pool.connection() as connection:
            (rows,) = await (await connection.execute("SELECT count(*) FROM charge WHERE id = 'copied'")).fetchone()
            print("charged", rows, connection.isolation_level.name, "deferrable", connection.deferrable)


asyncio.run(commit())
asyncio.run(copy())
