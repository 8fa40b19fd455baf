"""A participant of sagas, whose steps each have an entry in `stock`: see tests/it/clients/taking.rs."""

import asyncio
import os

import nats
import oncebox
from oncebox import Action, Barrier, Compensation, Replier
from psycopg_pool import AsyncConnectionPool

barrier, replier = Barrier("stock:step"), Replier("sagas.replies", "odd.*.replies")


async def act(cx: oncebox.Context, command: dict):
    match await barrier.action(cx):
        case Action.REFUSED:
            return oncebox.Reject("too late")
        case Action.ACT if command["cents"] > 1000 and "ship" in cx.key:
            await barrier.had_no_effect(cx)
            return oncebox.Reject("no such address")
        case Action.ACT:
            await cx.connection.execute("INSERT INTO stock (key, change) VALUES (%s, 1)", [cx.key])
    return 77


async def undo(cx: oncebox.Context, command: dict):
    if await barrier.compensation(cx) == Compensation.UNDO:
        if command["cents"] == 13 and "#" not in cx.key:
            await barrier.has_undone_nothing(cx)
            return oncebox.Reject("not now")
        await cx.connection.execute("INSERT INTO stock (key, change) VALUES (%s, -1)", [cx.key])
    return 77


async def handle(cx: oncebox.Context, command: dict):
    result = await (undo if cx.key.endswith(":undo") else act)(cx, command)
    await replier.reply(cx, result)
    return result


async def main():
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=3) as pool:
        inbox = oncebox.Inbox(pool, scope="Bücher & Co: the cash desk", attempts_max=2, backoff=(0.1, 0.1))
        await oncebox.Consumer(client.jetstream(), os.environ["STREAM"], "taking", concurrency=3).run(inbox, handle)
    await client.drain()


asyncio.run(main())
