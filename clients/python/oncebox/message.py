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

    @property
    def ordering_key(self) -> str | None:
        """Messages that share it are handled one at a time, in the order of their stream."""
        return self.headers.get("oncebox-ordering-key", "").partition("\n")[0] or None


@dataclass(frozen=True)
class Context:
    """What a handler gets besides the decoded payload: above all the transaction that it writes through."""

    # psycopg's AsyncConnection, or what the inbox's library writes through: a Session, asyncpg's connection.
    connection: Any
    key: str
    tenant: str
    message: Message


@dataclass(frozen=True)
class Reject:
    """Returned by a handler that rejects the message for good: its writes are committed, copies get this reply."""

    reply: Any = None


class Dead(Exception):
    """Raised by a handler to roll back, give the message up and record it as a dead letter."""


class RetryAfter(Exception):
    """Raised by a handler to roll back, and to be run again after so many seconds."""

    def __init__(self, seconds: float):
        """Fails unless `seconds` is a number of at least 0."""
        if not isinstance(seconds, (int, float)) or not seconds >= 0:
            raise ValueError(f"a retry after {seconds!r} seconds: that is no number of at least 0")
        super().__init__(f"the handler asked for a retry after {seconds} seconds")
        self.seconds = seconds


class Verdict(NamedTuple):
    """The result of running a message. All but `retry` and `in_flight` are final, and committed.

    `name` is handled, replayed, rejected, dead, mismatch, in_flight or retry; `reply` is the
    handler's reply, also when an earlier run gave it; `after` is the number of seconds until the
    next run.
    """

    name: str
    reply: Any = None
    reason: str | None = None
    after: float = 0.0


Handler = Callable[[Context, Any], Awaitable[Any]]
