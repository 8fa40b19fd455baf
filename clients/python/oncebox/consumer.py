"""Pulls the messages of a JetStream consumer, handles each once, and acknowledges it after the COMMIT."""

import asyncio
import contextlib
import logging
from collections import Counter
from datetime import datetime
from typing import Any, Literal

import psycopg
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from . import headers, large, metrics, signals
from .batch import Batch, SetHandler
from .causes import first_line
from .copies import MOST, Copies
from .durable import Durable, Place
from .inbox import Inbox
from .leader import Leader
from .leased import LeasedHandler
from .lines import Lines
from .message import Handler, Message, Verdict
from .ports import size_of
from .pull import Lost, Pull, pending
from .queue import Held, Queue

log = logging.getLogger("oncebox")

# Between two looks at a message that another process works on, or at a PostgreSQL that is away.
WAIT_FIRST, WAIT_LONGEST = 0.2, 10.0
# Between two looks at stopped lines.
LOOK = 1.0
# A trouble that goes on is logged again after this number of seconds.
REMIND = 60.0
AWAY = (Lost, NatsError, psycopg.OperationalError, TimeoutError, OSError)


class Consumer:
    """Runs an inbox on a durable JetStream consumer, which is created when it is missing.

    Messages with one ordering key are handled one at a time, in stream order, retries included: while one
    waits for its next attempt, those behind it wait. A dead letter stops them in strict order only: see
    `behind_dead`.
    """

    def __init__(
        self,
        jetstream: JetStreamContext,
        stream: str,
        durable: str,
        *,
        filter_subject: str | None = None,
        concurrency: int | None = None,
        batch: int = 1,
        order: Literal["process", "strict"] = "process",
        behind_dead: int | None = 1000,
        start: datetime | Literal["now"] | None = None,
        ack_wait: float = 30.0,
        grace: float = 30.0,
        object_bytes_max: int = 64 << 20,
    ):
        """`batch`: up to so many messages, of those that are there, share a transaction; `concurrency`: how
        many transactions there are at once (None: 16, or 4 of batches); `order`: "process" keeps the order
        of a key within each process, "strict" also across processes and crashes, of which one consumes;
        `behind_dead`: in strict order, how many later messages of a dead letter's ordering key may wait in the
        database until it is retried or discarded; the next ones stay in the stream (None: all overtake it);
        `start`: where a new durable begins, at a time or "now" (None: with the first message of the
        stream); `ack_wait`: after how many seconds the messages of a process that died are delivered
        again; `grace`: how many seconds a drain waits for running handlers; `object_bytes_max`: a larger
        payload is not fetched from the Object Store, and its message fails."""
        self.jetstream, self.stream, self.durable = jetstream, stream, durable
        if not 1 <= batch <= 1000:
            raise ValueError(f"a batch of {batch} messages; the limit is 1 to 1000")
        if order not in ("process", "strict"):
            raise ValueError(f'order {order!r} is neither "process" nor "strict"')
        if behind_dead is not None and not 1 <= behind_dead <= 100_000:
            raise ValueError(f"behind_dead {behind_dead} is not 1 to 100000 messages, nor None")
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency {concurrency}: at least one transaction at once is needed")
        if not (start in (None, "now") or isinstance(start, datetime)):
            raise ValueError(f'start {start!r} is neither a datetime nor "now"')
        if isinstance(start, datetime) and start.utcoffset() is None:
            raise ValueError("start has no time zone: use datetime.now(timezone.utc) - timedelta(...)")
        self.filter_subject, self.batch, self.order, self.start = filter_subject, batch, order, start
        self.behind_dead = behind_dead if order == "strict" else None
        self.concurrency = (16 if batch == 1 else 4) if concurrency is None else concurrency
        self.ack_wait, self.grace, self.object_bytes_max = ack_wait, grace, object_bytes_max
        # Why it does not consume now; None when it does. For a health check.
        self.problem: str | None = "the consumer has not begun"

    async def run(self, inbox: Inbox, handler: Handler | SetHandler | LeasedHandler, stop: asyncio.Event | None = None) -> None:
        """Consumes until `stop` is set, or until SIGTERM or SIGINT if `stop` is left out, and then waits
        for the running handlers. Raises TimeoutError when some go on although they are cancelled."""
        try:
            with signals.stop() if stop is None else contextlib.nullcontext(stop) as stop:
                running = _Running(self, inbox, handler, stop)
                await running.run()
            self.problem = "the consumer has ended"
            ends = ", ".join(f"{name} {count}" for name, count in running.ends.items()) or "no messages"
            log.info("consumer %s of stream %s has finished: %s", self.durable, self.stream, ends)
        except Exception as error:
            self.problem = first_line(error)
            # The user may never await this task.
            log.error("consumer %s of stream %s has ended: %s", self.durable, self.stream, self.problem)
            raise


class _Running:
    """A consumer that runs."""

    def __init__(self, consumer: Consumer, inbox: Inbox, handler: Handler | SetHandler | LeasedHandler, stop: asyncio.Event):
        self.of, self.inbox, self.stop = consumer, inbox, stop
        if consumer.batch > 1 and inbox.lease is not None:
            raise ValueError(f"a batch of {consumer.batch} messages shares a transaction, and an inbox with a lease has none: leave `batch` out")
        # No more transactions at once than workers; messages that wait for others of their key are
        # held as well.
        self.at_once = consumer.concurrency * consumer.batch
        self.held_max = max(64, 4 * self.at_once)
        self.durable = Durable(
            consumer.jetstream, consumer.stream, consumer.durable, filter_subject=consumer.filter_subject,
            ack_wait=consumer.ack_wait, max_ack_pending=max(1000, 16 * self.at_once), start=consumer.start,
        )  # fmt: skip
        self.lines, self.looked_at = Lines(inbox, consumer.behind_dead), 0.0
        self.queue, self.batch = Queue(), Batch(inbox, handler, self.lines)
        self.copies = Copies(inbox, self.queue, self._settle)
        self.filter = consumer.filter_subject and consumer.filter_subject.split(".")
        self.changed = asyncio.Event()
        self.failures, self.reminded, self.idle = 0, 0.0, 0
        # How many messages got each answer.
        self.ends: Counter[str] = Counter()

    async def run(self) -> None:
        client = self.of.jetstream._nc
        headers.keep_all(client)
        if self.of.order == "strict":
            leader = Leader(self.inbox, self.of.stream, self.of.durable)
        else:
            leader = contextlib.nullcontext()
        text = "consumer %s begins: stream %s, scope %s, filter %s, concurrency %d, batch %d, order %s"
        of = (self.of.durable, self.of.stream, self.inbox.scope, self.of.filter_subject or ">")
        log.info(text, *of, self.of.concurrency, self.of.batch, self.of.order)
        size, needed = size_of(self.inbox.pool), self.of.concurrency + (self.of.order == "strict")
        if size is not None and size < needed and self.inbox.lease is None:
            text = "consumer %s: the pool has %d connections for %d workers, which wait for one another: give it %d, or lower `concurrency`"
            log.warning(text, self.of.durable, size, self.of.concurrency, needed)
        # Also while it stands by.
        metrics.consumes(self.inbox.scope, False)
        await self._register()
        with leader as leading:
            pump = asyncio.create_task(self._pump(leading))
            stopped = asyncio.create_task(self.stop.wait())
            stopped.add_done_callback(lambda _: self.changed.set())
            progress = asyncio.create_task(self._report_progress())
            workers = [asyncio.create_task(self._work()) for _ in range(self.of.concurrency)]
            try:
                # A worker, or the pump, ends before the signal only with an error, and then all end.
                await asyncio.wait([stopped, pump, *workers], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.stop.set()
                metrics.consumes(self.inbox.scope, False)
                await self._drain(pump, workers)
                for task in (stopped, progress, pump):
                    task.cancel()
            for task in (pump, *workers):
                if task.done() and not task.cancelled() and task.exception() is not None:
                    raise task.exception()

    async def _register(self) -> None:
        """Waits for a database that is away. A missing schema, or a right, is an error."""
        while not self.stop.is_set():
            try:
                return await self.inbox.register()
            except psycopg.OperationalError as error:
                await self._interrupted(error)

    async def _pump(self, leader: Leader | None) -> None:
        """Keeps pulling until the signal."""
        has_begun = False
        while not self.stop.is_set():
            try:
                place = await self._begin(leader)
                has_begun = True
                if not self.stop.is_set():
                    async with Pull(self.of.jetstream, self.durable, place, self._take, self.changed) as pull:
                        await self._pull(pull, leader)
            except ConnectionClosedError as error:
                # A client that has given up its reconnects never connects again.
                error.add_note(f"consumer {self.of.durable}: closed for good; connect with max_reconnect_attempts=-1")
                raise error
            except AWAY as error:
                if isinstance(error, APIError) and error.code != 503 and not has_begun:
                    raise  # a setting or a grant, which does not go away
                await self._interrupted(error)

    async def _begin(self, leader: Leader | None) -> Place | None:
        """Looks the durable consumer up; in strict order waits for the right to consume, and continues."""
        before = self.durable.created
        if leader is None:
            await self.durable.prepare()
            if before not in (None, self.durable.created):
                # Acknowledgements go by sequence: those of an earlier stream's messages would settle others.
                self._take_idle()
            await self.lines.follow()
            return None
        is_new = leader.lost.is_set() or not leader.leads.is_set()
        while not (leader.leads.is_set() or self.stop.is_set()):
            self.of.problem = None  # standing by is no trouble
            await _sleep(0.1, self.stop)
        if self.stop.is_set():
            return None
        leader.lost.clear()
        # Messages that no worker has come again, in their places.
        self._take_idle()
        place = await self.durable.continued(self.inbox, is_new)
        await self.lines.follow()
        return place

    async def _pull(self, pull: Pull, leader: Leader | None) -> None:
        while not self.stop.is_set():
            self.changed.clear()
            if leader is not None and (leader.lost.is_set() or not leader.leads.is_set()):
                raise Lost("the right to consume is lost")
            await pull.check()
            await self._take_of_lines()
            if not pull.asked and (room := self._room()) > 0:
                await pull.ask(room)
            if pull.is_answered:
                self._recovered()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self.changed.wait()
        await pull.finish()

    def _room(self) -> int:
        waiting = len(self.copies.waiting)
        if self.copies.are_expected:
            return max(self.held_max, MOST) - waiting - len(self.queue)
        return min(self.at_once - self.queue.active, self.held_max - len(self.queue)) - waiting

    def _take_idle(self) -> list[Held]:
        """Takes out everything that no worker has."""
        return self.copies.take() + self.queue.take_idle()

    def _take(self, msg: Msg, message: Message) -> None:
        if "nats-marker-reason" in message.headers:
            # The server says that messages were deleted, or are too old: this is none.
            asyncio.get_running_loop().create_task(self._tell(msg.ack()))
            return
        if self.filter is not None and not headers.matches(self.filter, msg.subject.split(".")):
            text = "consumer %s got a message of subject %s, outside of its filter: another service has changed the durable"
            log.error(text + " and needs a name of its own", self.of.durable, msg.subject)
            asyncio.get_running_loop().create_task(self._tell(msg.nak(delay=1.0)))
            return
        self.copies.push(msg, message)

    async def _take_of_lines(self) -> None:
        """Takes messages of stopped lines whose turn has come, of each line one."""
        now, after = asyncio.get_running_loop().time(), 0
        if not self.lines.are_stopped or not self.lines.have_moved and now < self.looked_at + LOOK:
            return
        self.looked_at, self.lines.have_moved = now, False
        room = self.of.concurrency - sum(held.msg is None for held in self.queue.all())
        while room > 0 and (message := await self.lines.next(self.of.stream, after)) is not None:
            after = message.in_line[0]
            room -= message.origin not in self.queue
            self.queue.push(None, message)

    async def _work(self) -> None:
        while True:
            self.idle += 1
            first = await self.queue.ready.get()
            self.idle -= 1
            if first is None:
                return
            if self.of.batch > 1 and first.msg is not None and pending(first.msg):
                # More are on their way.
                await asyncio.sleep(0.002)
            if first.state == "ready":
                # Idle workers share those that are ready.
                share = -(-(1 + self.queue.ready.qsize()) // (1 + self.idle))
                await self._handle(self.queue.take(first, min(share, self.of.batch)))

    async def _handle(self, taken: list[Held]) -> None:
        # Of payloads that are elsewhere one is in memory at a time.
        here = [held for held in taken if not large.is_elsewhere(held.message)]
        for held, answer in zip(here, await self.batch.run([held.message for held in here])):
            await self._settle(held, answer)
        for held in taken:
            if large.is_elsewhere(held.message):
                await self._settle(held, await self._fetched(held.message))

    async def _fetched(self, message: Message) -> Verdict | Exception:
        try:
            if (waits := await self.lines.wait(message)) is not None:
                return waits
            (answer,) = await self.batch.run([await large.whole(self.of.jetstream, message, self.of.object_bytes_max)])
            return answer
        except large.Wrong as problem:
            return await self.inbox.incomplete(message, str(problem))
        except Exception as error:
            return error

    async def _settle(self, held: Held, answer: Verdict | Exception) -> None:
        message = held.message
        metrics.ended(self.inbox.scope, answer)
        self.ends[answer.name if isinstance(answer, Verdict) else "unavailable"] += 1
        if isinstance(answer, Exception) or answer.name == "in_flight":
            # PostgreSQL is away, or a copy is at work: that must not end the consumer of all others.
            pause = min(WAIT_FIRST * 2 ** min(held.waits, 8), WAIT_LONGEST)
            held.waits += 1
            if isinstance(answer, Exception):
                text = "scope %s: the message could not be handled now, will retry: %s"
                log.warning(text, self.inbox.scope, first_line(answer))
                pause = max(pause, self.inbox.life.backoff[0])
            else:
                pause = max(pause, answer.after)
            await self._again(held, pause)
        elif answer.name in ("retry", "snoozed"):
            held.waits = 0
            held.again()
            await self._again(held, answer.after)
        elif answer.name == "behind":
            self.queue.rest(held, 0.0)
        else:
            self.copies.are_expected |= answer.name == "replayed"
            # Under a lease a copy may have waited for long.
            if answer.name == "replayed" and message.deliveries > 2 and self.inbox.lease is None:
                text = "message %d of stream %s comes again, delivery %d: may this user publish to $JS.ACK.>?"
                log.warning(text, message.origin.sequence, message.origin.stream, message.deliveries)
            if held.msg is None:
                try:
                    await self.lines.end(message.in_line)
                except AWAY as error:
                    log.info("consumer %s: a line is not moved on yet: %s", self.of.durable, first_line(error))
                    self.queue.rest(held, WAIT_FIRST)
                    return
            else:
                await self._tell(held.msg.term() if answer.name in ("dead", "mismatch") else held.msg.ack())
            self.queue.remove(held)
        self.changed.set()

    async def _again(self, held: Held, seconds: float) -> None:
        """A message with an ordering key is kept, since those behind it wait for it."""
        if held.msg is not None and (held.message.ordering_key is None or self.stop.is_set()):
            await self._tell(held.msg.nak(delay=seconds))
            self.queue.remove(held)
        else:
            self.queue.rest(held, seconds)

    async def _report_progress(self) -> None:
        """Tells JetStream that messages are in progress, so that they are not delivered again meanwhile."""
        while True:
            await asyncio.sleep(self.durable.ack_wait / 3)
            for held in self.copies.waiting + self.queue.all():
                if held.msg is not None:
                    await self._tell(held.msg.in_progress())

    async def _drain(self, pump: asyncio.Task, workers: list[asyncio.Task]) -> None:
        """Gives back the messages that no worker has, and lets the others finish within the grace period."""
        await asyncio.wait([pump], timeout=self.of.grace)
        await self._give_back(self._take_idle())
        self.queue.close(len(workers))
        _, late = await asyncio.wait(workers, timeout=self.of.grace)
        for task in late:
            task.cancel()
        if late:
            _, late = await asyncio.wait(late, timeout=self.inbox.step_timeout)
        await self._give_back(self.queue.all())
        if late:
            seconds = f"{self.inbox.step_timeout:g} s"
            raise TimeoutError(f"consumer {self.of.durable}: handlers go on {seconds} after they were cancelled")

    async def _give_back(self, all_held: list[Held]) -> None:
        for held in all_held:
            if held.msg is not None:
                await self._tell(held.msg.nak(delay=0.1))

    async def _interrupted(self, error: BaseException) -> None:
        """Waits before the next try. A trouble is logged when it begins, now and then, and when it ends."""
        now, pause = asyncio.get_running_loop().time(), min(0.1 * 2 ** min(self.failures, 6), 5.0)
        self.failures += 1
        self.of.problem = first_line(error)
        metrics.consumes(self.inbox.scope, False)
        if self.failures == 1 or now > self.reminded + REMIND:
            self.reminded = now
            log.warning("consumer %s cannot consume now, and tries again: %s", self.of.durable, self.of.problem)
        await _sleep(pause, self.stop)

    def _recovered(self) -> None:
        if self.failures:
            log.info("consumer %s consumes again", self.of.durable)
        metrics.consumes(self.inbox.scope, True)
        self.failures, self.of.problem = 0, None

    async def _tell(self, sending: Any) -> None:
        try:
            await sending
        except NatsError as error:
            # The message is delivered again, and the copy is answered from the stored outcome.
            log.info("consumer %s: an acknowledgement was not sent: %s", self.of.durable, error)


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
