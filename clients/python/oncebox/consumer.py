"""Pulls the messages of a JetStream consumer, handles each once, and acknowledges it after the COMMIT."""

import asyncio
import contextlib
import json
import logging
import signal
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError
from psycopg_pool import PoolTimeout

from .inbox import Handler, Inbox, Message, Origin

log = logging.getLogger("oncebox")

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# How many seconds one pull request waits for a message; a drain may have to wait for it as long.
PULL = 1.0


class Consumer:
    """Runs an inbox on a durable JetStream consumer, which is created when it is missing."""

    def __init__(
        self,
        jetstream: JetStreamContext,
        stream: str,
        durable: str,
        *,
        filter_subject: str | None = None,
        concurrency: int = 16,
        ack_wait: float = 30.0,
        grace: float = 30.0,
    ):
        """`ack_wait`: after how many seconds the messages of a process that died are delivered again;
        `grace`: how many seconds a drain waits for running handlers."""
        self.jetstream, self.stream, self.durable = jetstream, stream, durable
        self.filter_subject, self.concurrency = filter_subject, concurrency
        self.ack_wait, self.grace = ack_wait, grace

    async def run(self, inbox: Inbox, handler: Handler, stop: asyncio.Event | None = None) -> None:
        """Consumes until `stop` is set, or until SIGTERM or SIGINT if `stop` is left out, and then waits
        for the running handlers. Raises TimeoutError when some go on although they are cancelled."""
        stop = stop or _on_signals()
        while not stop.is_set():
            try:
                await inbox.register()
                await self._create()
                break
            except ConnectionClosedError as error:
                raise self._closed(error)
            except (psycopg.OperationalError, PoolTimeout, NatsError) as error:
                log.warning("consumer %s cannot begin, will retry: %s", self.durable, _line(error))
                await _sleep(1.0, stop)
        workers = [asyncio.create_task(self._work(inbox, handler, stop)) for _ in range(self.concurrency)]
        stopped = asyncio.create_task(stop.wait())
        # A worker ends before the signal only with an error, and then all workers end.
        await asyncio.wait([stopped, *workers], return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        _, late = await asyncio.wait(workers, timeout=self.grace)
        for task in [stopped, *late]:
            task.cancel()
        ended, late = await asyncio.wait(workers, timeout=inbox.step_timeout)
        for task in ended:
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()
        if late:
            seconds = f"{inbox.step_timeout:g} s"
            raise TimeoutError(f"consumer {self.durable}: handlers go on {seconds} after they were cancelled")

    def _closed(self, error: ConnectionClosedError) -> ConnectionClosedError:
        """The error of a client that has given up its reconnects, and never connects again."""
        error.add_note(f"consumer {self.durable}: closed for good; connect with max_reconnect_attempts=-1")
        return error

    async def _create(self) -> None:
        try:
            info = await self.jetstream.consumer_info(self.stream, self.durable)
            self.ack_wait = info.config.ack_wait or self.ack_wait
            if (info.config.ack_policy, info.config.max_deliver or -1) != (AckPolicy.EXPLICIT, -1):
                # JetStream would forget a message that has failed so often, before it is a dead letter.
                config = info.config.evolve(ack_policy=AckPolicy.EXPLICIT, max_deliver=-1)
                await self.jetstream.add_consumer(self.stream, config)
        except NotFoundError:
            pending = max(1000, 16 * self.concurrency)
            config = ConsumerConfig(
                durable_name=self.durable, filter_subject=self.filter_subject, max_ack_pending=pending,
                ack_policy=AckPolicy.EXPLICIT, ack_wait=self.ack_wait, max_deliver=-1,
            )
            await self.jetstream.add_consumer(self.stream, config)

    async def _work(self, inbox: Inbox, handler: Handler, stop: asyncio.Event) -> None:
        """Handles one message at a time, so it holds no message that waits for its turn."""
        client = self.jetstream._nc
        inbox_subject = client.new_inbox()
        answers = await client.subscribe(f"{inbox_subject}.*")
        pause, pulls = 0.0, 0
        held: list[Msg] = []
        heartbeat = asyncio.create_task(self._hold(held))
        try:
            while not stop.is_set():
                try:
                    if pause > 0:
                        # It may have been deleted, or its stream replaced.
                        await self._create()
                    pulls += 1
                    held[:] = await self._pull(answers, f"{inbox_subject}.{pulls}")
                    pause = 0.0
                except TimeoutError:
                    continue
                except ConnectionClosedError as error:
                    raise self._closed(error)
                except NatsError as error:
                    # The server is away, or the stream has no leader. The client reconnects by itself.
                    pause = min(2 * pause or 0.2, 5.0)
                    log.warning(
                        "consumer %s cannot be pulled from, will retry in %.1f s: %s", self.durable, pause, error
                    )
                    await _sleep(pause, stop)
                    continue
                if held:
                    await self._handle(inbox, handler, held[0])
                    held.clear()
        finally:
            heartbeat.cancel()
        # Without a connection there is nothing to unsubscribe from.
        with contextlib.suppress(NatsError):
            await answers.unsubscribe()

    async def _pull(self, answers: Subscription, answer_to: str) -> list[Msg]:
        """Pulls one message, or none within a while.

        nats-py's fetch() takes a message with a header `Status` for an answer of the server: it would
        never be handled, or end the consumer. Only messages have a subject to acknowledge to.
        """
        while answers.pending_msgs > 0:  # behind an earlier pull that took too long
            msg = await answers.next_msg(PULL)
            if msg.reply:
                return [msg]
        request = json.dumps({"batch": 1, "expires": int(PULL * 1e9)}).encode()
        subject = f"{self.jetstream._prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self.durable}"
        await self.jetstream._nc.publish(subject, request, answer_to)
        while True:
            msg = await answers.next_msg(PULL + 1)
            if msg.reply:
                return [msg]
            status, description = ((msg.headers or {}).get(name, "") for name in ("Status", "Description"))
            if msg.subject != answer_to or status == "100":
                continue
            if status in ("404", "408"):
                return []
            raise NatsError(f"the pull ended: {status} {description or 'no responders'}")

    async def _handle(self, inbox: Inbox, handler: Handler, msg: Msg) -> None:
        try:
            answer = await inbox.run(handler, received(msg))
        except (psycopg.Error, PoolTimeout) as error:
            # PostgreSQL is away, or refuses this message: that must not end the consumer of all others.
            log.warning("scope %s: the message could not be handled now, will retry: %s", inbox.scope, _line(error))
            return await self._tell(msg.nak(delay=inbox.backoff[0]))
        if answer.name in ("in_flight", "retry"):
            await self._tell(msg.nak(delay=answer.after))
        elif answer.name in ("dead", "mismatch"):
            await self._tell(msg.term())
        else:
            await self._tell(msg.ack())

    async def _hold(self, held: list[Msg]) -> None:
        """Tells JetStream that messages are in progress, so that they are not delivered again meanwhile."""
        while True:
            await asyncio.sleep(self.ack_wait / 3)
            for msg in held:
                await self._tell(msg.in_progress())

    async def _tell(self, sending: Any) -> None:
        try:
            await sending
        except NatsError as error:
            # The message is delivered again, and the copy is answered from the stored outcome.
            log.info("consumer %s: an acknowledgement was not sent: %s", self.durable, error)


def received(msg: Msg) -> Message:
    """Makes the message that an inbox takes."""
    # $JS.ACK.stream.consumer.deliveries.sequence..; some servers add a domain and an account hash after $JS.ACK.
    words = msg.reply.split(".")
    words = words if len(words) < 11 else words[2:]
    stored_at = EPOCH + timedelta(microseconds=int(words[7]) // 1000)
    headers = {name.lower(): value for name, value in (msg.headers or {}).items()}
    return Message(msg.subject, msg.data, headers, Origin(words[2], int(words[5]), stored_at), int(words[4]))


def _on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
