"""Pulls the messages of a JetStream consumer, handles each once, and acknowledges it after the COMMIT."""

import asyncio
import contextlib
import json
import logging
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError, NotFoundError

from . import headers, large, signals
from .batch import Batch, SetHandler
from .inbox import Inbox, first_line
from .message import Handler, Message, Origin, Verdict

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
        concurrency: int | None = None,
        batch: int = 1,
        ack_wait: float = 30.0,
        grace: float = 30.0,
        object_bytes_max: int = 64 << 20,
    ):
        """`batch`: up to so many messages, of those that are there, share a transaction; `concurrency`: how
        many transactions there are at once (None: 16, or 4 of batches); `ack_wait`: after how many seconds the messages of a process that died are delivered again;
        `grace`: how many seconds a drain waits for running handlers; `object_bytes_max`: a larger payload is
        not fetched from the Object Store, and its message fails."""
        self.jetstream, self.stream, self.durable = jetstream, stream, durable
        if not 1 <= batch <= 1000:
            raise ValueError(f"a batch of {batch} messages; the limit is 1 to 1000")
        self.filter_subject, self.batch = filter_subject, batch
        self.concurrency = (16 if batch == 1 else 4) if concurrency is None else concurrency
        self.ack_wait, self.grace, self.object_bytes_max = ack_wait, grace, object_bytes_max

    async def run(self, inbox: Inbox, handler: Handler | SetHandler, stop: asyncio.Event | None = None) -> None:
        """Consumes until `stop` is set, or until SIGTERM or SIGINT if `stop` is left out, and then waits
        for the running handlers. Raises TimeoutError when some go on although they are cancelled."""
        if stop is None:
            with signals.stop() as stop:
                return await self._run(inbox, handler, stop)
        await self._run(inbox, handler, stop)

    async def _run(self, inbox: Inbox, handler: Handler | SetHandler, stop: asyncio.Event) -> None:
        headers.keep_all(self.jetstream._nc)
        while not stop.is_set():
            try:
                await inbox.register()
                await self._create()
                break
            except ConnectionClosedError as error:
                raise self._closed(error)
            except (psycopg.OperationalError, NatsError) as error:
                if isinstance(error, APIError) and error.code != 503:
                    raise  # a setting or a grant, which does not go away
                log.warning("consumer %s cannot begin, will retry: %s", self.durable, first_line(error))
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
        """Finds or creates the consumer, and changes what would lose or withhold messages."""
        wanted = {"ack_policy": AckPolicy.EXPLICIT, "filter_subject": self.filter_subject, "filter_subjects": None}
        # JetStream would forget a message that has failed so often, before it is a dead letter.
        wanted |= {"max_deliver": -1, "headers_only": None, "backoff": None}
        try:
            found = (await self.jetstream.consumer_info(self.stream, self.durable)).config
        except NotFoundError:
            pending = max(1000, 16 * self.concurrency * self.batch)
            fresh = ConsumerConfig(durable_name=self.durable, max_ack_pending=pending, ack_wait=self.ack_wait)
            return await self.jetstream.add_consumer(self.stream, fresh.evolve(**wanted))
        if found.deliver_subject:
            raise ValueError(f"consumer {self.durable} of stream {self.stream} pushes; delete it, or choose another name")
        self.ack_wait = found.ack_wait or self.ack_wait
        differs = [name for name, value in wanted.items() if (getattr(found, name) or None) != value]
        if differs and not (differs == ["max_deliver"] and found.max_deliver is None):
            log.info("consumer %s is changed: %s", self.durable, ", ".join(differs))
            await self.jetstream.add_consumer(self.stream, found.evolve(**wanted))

    async def _work(self, inbox: Inbox, handler: Handler | SetHandler, stop: asyncio.Event) -> None:
        """Handles a batch at a time, so it holds no message that waits for a batch before."""
        client = self.jetstream._nc
        inbox_subject = client.new_inbox()
        answers = await client.subscribe(f"{inbox_subject}.*")
        pause, pulls = 0.0, 0
        # How often the client had reconnected when it sent a pull that nobody has answered yet.
        asked: int | None = None
        held: list[Msg] = []
        batch = Batch(inbox, handler)
        heartbeat = asyncio.create_task(self._hold(held, answers))
        try:
            while not stop.is_set():
                try:
                    if pause > 0:
                        # It may have been deleted, or its stream replaced.
                        await self._create()
                    if asked != client.stats["reconnects"]:
                        asked, pulls = client.stats["reconnects"], pulls + 1
                        await self._ask(f"{inbox_subject}.{pulls}")
                    held[:] = await self._pulled(answers, f"{inbox_subject}.{pulls}")
                    asked, pause = None, 0.0
                    if more := min(self.batch - 1, pending(held[0]) if held else 0):
                        pulls += 1
                        await self._ask(f"{inbox_subject}.{pulls}", more)
                        await self._gathered(held, answers, f"{inbox_subject}.{pulls}", more)
                except TimeoutError:
                    # A silent server would answer all pulls at once, with more than the worker can hold.
                    continue
                except ConnectionClosedError as error:
                    raise self._closed(error)
                except NatsError as error:
                    # The server is away, or the stream has no leader. The client reconnects by itself.
                    asked, pause = None, min(2 * pause or 0.2, 5.0)
                    text = "consumer %s cannot be pulled from, will retry in %.1f s: %s"
                    log.warning(text, self.durable, pause, first_line(error))
                    await _sleep(pause, stop)
                    continue
                if held:
                    await self._handle(batch, held)
                    held.clear()
        finally:
            heartbeat.cancel()
        # Without a connection there is nothing to unsubscribe from.
        with contextlib.suppress(NatsError):
            await self._hand_back(answers)
            await answers.unsubscribe()

    async def _ask(self, answer_to: str, there: int = 0) -> None:
        """Pulls one message, or so many of those that are there already, unless there is no connection, since the client would send all such pulls later."""
        client = self.jetstream._nc
        if not client.is_connected and not client.is_closed:
            raise NatsError("there is no connection to NATS")
        request = {"batch": there, "no_wait": True} if there else {"batch": 1, "expires": int(PULL * 1e9)}
        subject = f"{self.jetstream._prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self.durable}"
        await client.publish(subject, json.dumps(request).encode(), answer_to)

    async def _pulled(self, answers: Subscription, answer_to: str) -> list[Msg]:
        """The message that was pulled, or none within a while.

        nats-py's fetch() takes a message with a header `Status` for an answer of the server: it would
        never be handled, or end the consumer. Only messages have a subject to acknowledge to.
        """
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

    async def _gathered(self, held: list[Msg], answers: Subscription, answer_to: str, more: int) -> None:
        """Adds messages that are there, until the server says that these are all."""
        with contextlib.suppress(TimeoutError):
            for _ in range(more):
                msg = await answers.next_msg(PULL + 1)
                if not msg.reply:
                    if msg.subject == answer_to:
                        return
                    continue
                held.append(msg)

    async def _handle(self, batch: Batch, held: list[Msg]) -> None:
        msgs = list(held)
        messages = [received(msg) for msg in msgs]
        # Of payloads that are elsewhere one is in memory at a time.
        here = [n for n, message in enumerate(messages) if not large.is_elsewhere(message)]
        for n, answer in zip(here, await batch.run([messages[n] for n in here])):
            await self._acknowledge(batch.inbox, msgs[n], messages[n], answer)
            held.remove(msgs[n])
        for n in sorted({*range(len(msgs))}.difference(here)):
            await self._acknowledge(batch.inbox, msgs[n], messages[n], await self._fetched(batch, messages[n]))

    async def _fetched(self, batch: Batch, message: Message) -> Verdict | Exception:
        try:
            (answer,) = await batch.run([await large.whole(self.jetstream, message, self.object_bytes_max)])
            return answer
        except large.Wrong as problem:
            return await batch.inbox.incomplete(message, str(problem))
        except Exception as error:
            return error

    async def _acknowledge(self, inbox: Inbox, msg: Msg, message: Message, answer: Verdict | Exception) -> None:
        if isinstance(answer, Exception):
            # PostgreSQL is away, or refuses this message: that must not end the consumer of all others.
            text = "scope %s: the message could not be handled now, will retry: %s"
            log.warning(text, inbox.scope, first_line(answer))
            return await self._tell(msg.nak(delay=inbox.backoff[0]))
        if answer.name in ("in_flight", "retry"):
            return await self._tell(msg.nak(delay=answer.after))
        if answer.name in ("replayed", "rejected") and message.deliveries > 2:
            text = "message %d of stream %s comes again, delivery %d: may this user publish to $JS.ACK.>?"
            log.warning(text, message.origin.sequence, message.origin.stream, message.deliveries)
        await self._tell(msg.term() if answer.name in ("dead", "mismatch") else msg.ack())

    async def _hold(self, held: list[Msg], answers: Subscription) -> None:
        """Tells JetStream that messages are in progress, so that they are not delivered again meanwhile."""
        while True:
            await asyncio.sleep(self.ack_wait / 3)
            for msg in list(held):
                await self._tell(msg.in_progress())
            if held:
                await self._hand_back(answers)

    async def _hand_back(self, answers: Subscription) -> None:
        """Gives back what late answers to earlier pulls have brought: a worker handles one message."""
        while answers.pending_msgs > 0:
            msg = await answers.next_msg(PULL)
            if msg.reply:
                await self._tell(msg.nak())

    async def _tell(self, sending: Any) -> None:
        try:
            await sending
        except NatsError as error:
            # The message is delivered again, and the copy is answered from the stored outcome.
            log.info("consumer %s: an acknowledgement was not sent: %s", self.durable, error)


def _words(msg: Msg) -> list[str]:
    """$JS.ACK.stream.consumer.deliveries.sequence..; some servers add a domain and an account hash after $JS.ACK."""
    words = msg.reply.split(".")
    return words if len(words) < 11 else words[2:]


def pending(msg: Msg) -> int:
    """How many messages were there for the consumer behind this one."""
    return int(_words(msg)[8])


def received(msg: Msg) -> Message:
    """Makes the message that an inbox takes."""
    words = _words(msg)
    stored_at = EPOCH + timedelta(microseconds=int(words[7]) // 1000)
    origin = Origin(words[2], int(words[5]), stored_at)
    return Message(msg.subject, msg.data, headers.of(msg.headers), origin, int(words[4]))


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
