"""An inbox whose connection falls silent: prints its first answer, and the one of the runs after that."""

import asyncio
import os
import sys

import oncebox
import psycopg
from psycopg_pool import AsyncConnectionPool

WHAT = sys.argv[1]


async def charge(cx: oncebox.Context, order: dict):
    await cx.connection.execute("INSERT INTO charge (id, cents) VALUES (%s, 1)", [cx.key])
    if WHAT.startswith("failing") and not answers:
        raise RuntimeError("the first run fails")
    return order


async def run(inbox: oncebox.Inbox) -> str:
    try:
        if WHAT == "register":
            await inbox.register()
            return "registered"
        payload = b"no JSON" if WHAT == "poison" else b"{}"
        return (await inbox.run(charge, oncebox.Message("orders.placed", payload, {"idempotency-key": WHAT}))).name
    except psycopg.OperationalError as error:
        print(error, file=sys.stderr)
        return "silent"


answers: list[str] = []


async def main():
    limits = {"min_size": 1, "max_size": 1, "kwargs": {"connect_timeout": 2}}
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], **limits) as pool:
        inbox = oncebox.Inbox(pool, scope="silent:charge", step_timeout=1.0)
        while not answers or answers[-1] in ("silent", "retry", "in_flight"):
            answers.append(await run(inbox))
    print(answers[0], answers[-1])


asyncio.run(main())
