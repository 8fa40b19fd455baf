# Fills the stream of clients.sh with new messages: fill.py MESSAGES.
import asyncio, os, sys, uuid

import nats
from nats.js.api import AckPolicy, ConsumerConfig


async def main():
    client = await nats.connect(os.environ["NATS_URL"])
    jetstream, run = client.jetstream(), uuid.uuid4()
    try:
        await jetstream.delete_stream("BENCH")
    except nats.js.errors.NotFoundError:
        pass
    await jetstream.add_stream(name="BENCH", subjects=["bench"])
    config = ConsumerConfig(durable_name="bench", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=1000)
    await jetstream.add_consumer("BENCH", config)
    for n in range(int(sys.argv[1])):
        await jetstream.publish("bench", b"%d" % n, headers={"Idempotency-Key": f"{run}-{n}"})
    await client.drain()


asyncio.run(main())
