"""What a handler gets, and what it may answer."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Awaitable, Callable, Mapping, NamedTuple


class Origin(NamedTuple):
    """The place of a message in a stream."""

    stream: str
    sequence: int
    stored_at: datetime


@dataclass(frozen=True)
class Message:
    """A message as it arrived. Names of headers are in lower case; different values of one are lines of its text."""

    subject: str
    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    origin: Origin | None = None
    deliveries: int = 1
    # The headers with their names and values as they came, for a dead letter; `None`: `headers` has them.
    sent_headers: Mapping[str, str | list[str]] | None = field(default=None, repr=False)
    # Its place in a line of the database, which it comes from, and since when it is there.
    in_line: tuple[int, str] | None = field(default=None, repr=False)

    @property
    def id(self) -> int | None:
        """The number that the outbox gave it."""
        text = self.headers.get("oncebox-id", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

    @property
    def ordering_key(self) -> str | None:
        """Messages that share it are handled one at a time, in the order of their stream."""
        return self.headers.get("oncebox-ordering-key", "").partition("\n")[0] or None


@dataclass(frozen=True)
class Context:
    """What a handler gets besides the decoded payload: above all the transaction that it writes through."""

    # psycopg's AsyncConnection, or that of the inbox's library: a Session, asyncpg's connection.
    connection: Any
    key: str
    tenant: str
    message: Message
    # The inbox's.
    scope: str = ""


@dataclass(frozen=True)
class Reject:
    """Returned by a handler that rejects the message for good: its writes are committed, copies get this reply."""

    reply: Any = None


class Dead(Exception):
    """Raised by a handler to roll back, give the message up and record it as a dead letter."""


class _Later(Exception):
    """Raised by a handler to roll back, and to be run again after so many seconds."""

    def __init__(self, seconds: float, reason: str):
        if not isinstance(seconds, (int, float)) or not seconds >= 0:
            raise ValueError(f"a pause of {seconds!r} seconds: that is no number of at least 0")
        super().__init__(reason)
        self.seconds, self.reason = seconds, reason


class RetryAfter(_Later):
    """Raised by a handler that has failed, and is to be run again after so many seconds: an attempt."""

    def __init__(self, seconds: float):
        """Fails unless `seconds` is a number of at least 0."""
        super().__init__(seconds, f"the handler asked for a retry after {seconds} seconds")


class Snooze(_Later):
    """Raised by a handler that cannot work now, which is not the message's fault, as when its gateway is
    away: it is run again after so many seconds, an hour at most, and that is no attempt."""

    def __init__(self, seconds: float, reason: str):
        """Fails unless `seconds` is a number of at least 0."""
        super().__init__(seconds, reason)


class Verdict(NamedTuple):
    """The result of running a message. All but `retry`, `snoozed` and `in_flight` are final, and committed.

    `name` is handled, replayed, rejected, dead, mismatch, in_flight, retry, snoozed, or in_line: with strict
    order it waits in the database behind a dead letter of its ordering key; `reply` is the
    handler's reply, also when an earlier run gave it; `after` is the number of seconds until the
    next run.
    """

    name: str
    reply: Any = None
    reason: str | None = None
    after: float = 0.0


Handler = Callable[[Context, Any], Awaitable[Any]]


@dataclass(frozen=True)
class PipelinedHandler:
    """A handler, `async def handle(cx, data)`, that waits for no answer of PostgreSQL's but those that it
    fetches: its statements go through a pipeline of psycopg's, which those of a batch share. An error may come up
    later than its statement, also after the handler has returned, and `rowcount` is -1 until it fetches."""

    handle: Handler

    async def __call__(self, cx: Context, data: Any) -> Any:
        async with cx.connection.pipeline():
            return await self.handle(cx, data)
