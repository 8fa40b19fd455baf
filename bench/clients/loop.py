# The loop of clients.sh in Python: loop.py bare|inbox|batch|pipelined|set|pending|lease MESSAGES, prints
# messages a second.
import asyncio, os, sys, time

import nats, oncebox
from psycopg_pool import AsyncConnectionPool

MODE, MESSAGES, CONCURRENCY = sys.argv[1], int(sys.argv[2]), 16
CALL_SECONDS = float(os.environ["CALL_MS"]) / 1000
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


async def provide(key):
    await asyncio.sleep(CALL_SECONDS)
    return f"receipt of {key}"


async def leased(cx, customer):
    await cx.effect("charge", provide, provider_idempotent=True)
    return customer


async def finish(cx, customer):
    await handler(cx, customer)


async def bare(message, pool):
    async with pool.connection() as connection:
        await connection.execute(EFFECT, [int(message.data)])


async def pending(message, pool):
    """By hand: a row says that the call begins, and a transaction has its end and the handler's writes."""
    key = message.headers["Idempotency-Key"]
    async with pool.connection() as connection:
        begins = await connection.execute("INSERT INTO pending (key) VALUES (%s) ON CONFLICT DO NOTHING", [key])
    if begins.rowcount == 0:
        raise RuntimeError(f"{key} is pending, or done: ask the provider")
    receipt = await provide(key)
    async with pool.connection() as connection:
        await connection.execute("UPDATE pending SET receipt = %s WHERE key = %s", [receipt, key])
        await connection.execute(EFFECT, [int(message.data)])


async def by_hand(handle, jetstream, pool):
    subscription = await jetstream.pull_subscribe_bind("bench", "BENCH")
    while not done.is_set():
        try:
            (message,) = await subscription.fetch(1, timeout=1)
        except TimeoutError:
            continue
        await handle(message, pool)
        await message.ack()
        count()


async def main():
    client = await nats.connect(os.environ["NATS_URL"])
    jetstream = client.jetstream()
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=CONCURRENCY) as pool:
        await pool.wait()
        if MODE in ("bare", "pending"):
            handle = bare if MODE == "bare" else pending
            await asyncio.gather(*(by_hand(handle, jetstream, pool) for _ in range(CONCURRENCY)))
        else:
            if MODE == "lease":
                inbox, handling = oncebox.Inbox(pool, "bench:python-lease", lease=20.0), oncebox.LeasedHandler(leased, finish)
            else:
                kinds = {"set": oncebox.SetHandler(handle_set), "pipelined": oncebox.PipelinedHandler(handler)}
                inbox, handling = oncebox.Inbox(pool, "bench:python"), kinds.get(MODE, handler)
            consumer = oncebox.Consumer(jetstream, "BENCH", "bench", batch=1 if MODE in ("inbox", "lease") else 64)
            await consumer.run(inbox, handling, done)
    print(round((MESSAGES - MESSAGES // 5) / (ended - begun)))
    await client.close()


asyncio.run(main())
