"""A handler that hides an error of PostgreSQL, or rolls back by itself, or does neither and meets a copy:
prints what becomes of each message."""

import asyncio
import os

import oncebox
import psycopg
from psycopg_pool import AsyncConnectionPool


async def spoil(cx: oncebox.Context, reply: dict | None):
    await cx.connection.execute("INSERT INTO charge (id, cents) VALUES (%s, 1)", [cx.key])
    if cx.key == "sound":
        return reply
    try:
        await cx.connection.execute("ROLLBACK" if cx.key.endswith("rollback") else "SELECT 1 / 0")
    except psycopg.errors.DivisionByZero:
        pass
    return reply


async def main():
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=2) as pool:
        inbox = oncebox.Inbox(pool, scope="spoiled:charge", attempts_max=1)
        for key in ["silent", "replying", "silent-rollback", "replying-rollback", "sound", "sound"]:
            payload = b"null" if key.startswith("s") else b"{}"
            message = oncebox.Message("orders.placed", payload, {"idempotency-key": key})
            print(key, (await inbox.run(spoil, message)).name)


asyncio.run(main())
