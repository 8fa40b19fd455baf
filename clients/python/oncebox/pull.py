"""Pulls the messages of a durable consumer, until something is lost.

nats-py's fetch() takes a message with a header `Status` for an answer of the server: it would never be
handled, or end the consumer. Here only messages have a subject to acknowledge to. While a pull is open
the server says each second that it still has it: when it dies, or loses its interest in us, nothing
else tells.
"""

import asyncio
import contextlib
import json
from datetime import datetime, timedelta, timezone
from typing import Callable

from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from . import headers
from .durable import Durable, Place
from .message import Message, Origin

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
EXPIRES, HEARTBEAT, LOST_AFTER = 5.0, 1.0, 3.5


class Lost(Exception):
    """The pull, or the connection, is gone: look the consumer up, and pull again."""


class Pull:
    """A session from looking up a durable consumer to losing it; `place` is set when the order is strict."""

    def __init__(
        self, jetstream: JetStreamContext, durable: Durable, place: Place | None,
        take: Callable[[Msg, Message], None], heard: asyncio.Event,
    ):  # fmt: skip
        self.jetstream, self.durable, self.place, self.take = jetstream, durable, place, take
        self.client = jetstream._nc
        # How many messages the open pull may still bring; 0 without one.
        self.asked = self._pulls = 0
        self._reconnects, self._lost_at = self.client.stats["reconnects"], 0.0
        self._lost: str | None = None
        self.is_answered = False
        self._heard = heard

    async def __aenter__(self) -> "Pull":
        self._inbox = self.client.new_inbox()
        self._answers = await self.client.subscribe(f"{self._inbox}.*", cb=self._hear)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Without a connection there is nothing to unsubscribe from.
        with contextlib.suppress(NatsError):
            await self._answers.unsubscribe()

    async def finish(self) -> None:
        """Takes in the messages that are on their way: the server's answer comes behind them."""
        if self.asked:
            with contextlib.suppress(NatsError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.durable.find()

    async def ask(self, count: int) -> None:
        """Opens a pull, unless there is no connection, since the client would send all such pulls later."""
        if not self.client.is_connected:
            raise Lost("there is no connection to NATS")
        expires = min(EXPIRES, self.durable.expires_max or EXPIRES)
        self.asked, self._pulls = min(count, self.durable.pull_max or count), self._pulls + 1
        request = {"batch": self.asked, "expires": int(expires * 1e9), "idle_heartbeat": int(min(HEARTBEAT, expires / 2) * 1e9)}
        subject = f"{self.jetstream._prefix}.CONSUMER.MSG.NEXT.{self.durable.stream}.{self.durable.name}"
        await self.client.publish(subject, json.dumps(request).encode(), f"{self._inbox}.{self._pulls}")
        self._lost_at = self._now() + LOST_AFTER

    async def check(self) -> None:
        """Raises Lost when it is, and ConnectionClosedError when the client never connects again."""
        if self.client.is_closed:
            raise ConnectionClosedError
        if self.asked and self._now() > self._lost_at:
            # If the process was busy, the answers are there, and were not read.
            await asyncio.sleep(0.2)
            if self._now() > self._lost_at:
                raise Lost(f"NATS has not answered for {LOST_AFTER:g} s")
        if self._lost is not None:
            raise Lost(self._lost)
        # Messages that were on their way may be gone, and it may be another server.
        if self.client.stats["reconnects"] != self._reconnects or not self.client.is_connected:
            raise Lost("the connection to NATS was lost")

    async def _hear(self, msg: Msg) -> None:
        self._lost_at, self.is_answered = self._now() + LOST_AFTER, True
        try:
            self._message(msg) if msg.reply else self._status(msg)
        except (ValueError, LookupError) as error:
            self._lost = f"an answer that cannot be read: {error!r}"
        self._heard.set()

    def _message(self, msg: Msg) -> None:
        self.asked = max(0, self.asked - 1)
        message = received(msg)
        if self.place is not None and self._lost is None:
            counted = self.place.deliveries(int(_words(msg)[6]), message)
            if counted is None:
                self._lost = "deliveries before this one went elsewhere"
            message = counted or message
        if self._lost is None or self.place is None:
            self.take(msg, message)

    def _status(self, msg: Msg) -> None:
        status, description = ((msg.headers or {}).get(name, "") for name in ("Status", "Description"))
        if msg.subject != f"{self._inbox}.{self._pulls}" or status == "100":
            return
        if status in ("404", "408") or description.lower() == "batch completed":
            self.asked = 0
        else:
            self._lost = f"the pull ended: {status} {description or 'no responders'}"

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


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
    return Message(msg.subject, msg.data, headers.of(msg.headers), origin, int(words[4]), headers.sent(msg.headers))
