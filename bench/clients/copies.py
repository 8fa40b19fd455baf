# Gives a loop of clients.sh the messages of its stream once more, which it has handled, and prints
# how many it answers a second: copies.py MESSAGES LOOP.. MODE, after fill.py MESSAGES and the loop.
import asyncio, os, signal, subprocess, sys, time

import nats
from nats.js.api import AckPolicy, ConsumerConfig

MESSAGES, LOOP = int(sys.argv[1]), sys.argv[2:]
# It waits for more than there are, and is killed.
NEVER = "1000000000"


async def main():
    client = await nats.connect(os.environ["NATS_URL"])
    jetstream = client.jetstream()
    await jetstream.delete_consumer("BENCH", "bench")
    config = ConsumerConfig(durable_name="bench", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=1000)
    await jetstream.add_consumer("BENCH", config)
    loop = subprocess.Popen([*LOOP, NEVER], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        async with asyncio.timeout(120):
            first = await answered(jetstream, MESSAGES // 5)
            last = await answered(jetstream, MESSAGES)
    finally:
        os.killpg(loop.pid, signal.SIGKILL)
        loop.wait()
    print(round((last[0] - first[0]) / (last[1] - first[1])))
    await client.close()


async def answered(jetstream, count):
    while (done := (await jetstream.consumer_info("BENCH", "bench")).ack_floor.stream_seq) < count:
        await asyncio.sleep(0.01)
    return done, time.monotonic()


asyncio.run(main())
