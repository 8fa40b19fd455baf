# The loop of clients.sh in Python: loop.py bare|inbox|batch|set MESSAGES, prints messages a second.
import asyncio, os, sys, time

import nats, oncebox
from psycopg_pool import AsyncConnectionPool

MODE, MESSAGES, CONCURRENCY = sys.argv[1], int(sys.argv[2]), 16
EFFECT = "INSERT INTO effect (customer, cents) VALUES (%s, 100)"
handled, begun, ended, done = 0, 0.0, 0.0, asyncio.Event()


def count():
    """Workers end up to a second after the last message, when nothing answers their pull."""
    global handled, begun, ended
    handled += 1
    if handled == MESSAGES // 5:
        begun = time.monotonic()
    elif handled == MESSAGES:
        ended = time.monotonic()
        done.set()


async def handler(cx, customer):
    await cx.connection.execute(EFFECT, [customer])
    count()


async def handle_set(connection, entries):
    values = [entry.data for entry in entries]
    await connection.execute("INSERT INTO effect (customer, cents) SELECT unnest(%s::bigint[]), 100", [values])
    for _ in entries:
        count()


async def bare(jetstream, pool):
    subscription = await jetstream.pull_subscribe_bind("bench", "BENCH")
    while not done.is_set():
        try:
            (message,) = await subscription.fetch(1, timeout=1)
        except TimeoutError:
            continue
        async with pool.connection() as connection:
            await connection.execute(EFFECT, [int(message.data)])
        await message.ack()
        count()


async def main():
    client = await nats.connect(os.environ["NATS_URL"])
    jetstream = client.jetstream()
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=CONCURRENCY) as pool:
        await pool.wait()
        if MODE == "bare":
            await asyncio.gather(*(bare(jetstream, pool) for _ in range(CONCURRENCY)))
        else:
            inbox = oncebox.Inbox(pool, "bench:python")
            consumer = oncebox.Consumer(jetstream, "BENCH", "bench", batch=1 if MODE == "inbox" else 64)
            await consumer.run(inbox, oncebox.SetHandler(handle_set) if MODE == "set" else handler, done)
    print(round((MESSAGES - MESSAGES // 5) / (ended - begun)))
    await client.close()


asyncio.run(main())
