"""Enqueues messages now, later and in the past, and says what was answered: tests/it/clients/producing.rs."""

import asyncio
import os
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import oncebox
import psycopg


@dataclass
class Order:
    order: str
    cents: int


async def main():
    hour = timedelta(hours=1)
    now = datetime.now(timezone.utc)
    order = Order('Zoë "q" \\t\n', 1999)
    async with await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"]) as connection:

        async def enqueue(key, payload, not_before=None):
            return await oncebox.enqueue(connection, key, "orders.placed", payload, not_before=not_before)

        said = [type(await enqueue("now", order)), type(await enqueue("later", order, now + hour))]
        print("enqueued" if said == [int, int] else said)
        print("past" if await enqueue("past", order, now - hour) else "lost")
        print("again", await enqueue("later", order, now + 2 * hour))
        await enqueue("text", '{"a":"\\t"}')
        await enqueue("bytes", b'{"a":"\\t"}\xff', now + hour)
        await enqueue("cancelled", order, now + hour)
        print("cancelled", *[await oncebox.cancel_delayed(connection, "cancelled") for _ in range(2)])
        for payload, time in ((float("nan"), None), ({"at": object()}, None), (order, datetime.now())):
            try:
                print("sent", await enqueue("odd", payload, time))
            except (TypeError, ValueError):
                print("refused")


asyncio.run(main())
