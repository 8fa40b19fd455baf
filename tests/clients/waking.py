"""Wakes the relays of a database, and prints the longest hint in milliseconds: see tests/it/clients/waking.rs.

A second argument is how many hints it sends; a third has its connection closed before."""

import asyncio
import os
import sys
import time

import nats
import oncebox


async def main(database: str, hints: str = "1", closed: str = ""):
    client = await nats.connect(os.environ["NATS_URL"], max_reconnect_attempts=-1)
    if closed:
        await client.close()
    longest = 0.0
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for _ in range(int(hints)):
        begun = time.perf_counter()
        await oncebox.wake(client, database)
        longest = max(longest, time.perf_counter() - begun)
    print(1000 * longest, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    os._exit(0)


asyncio.run(main(*sys.argv[1:]))
