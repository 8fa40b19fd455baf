"""Enqueueing a message in the caller's transaction."""

import json
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from typing import Any, Mapping, Sequence

from .spans import with_context
from .sql import Typed, called, named
from .wire import execute, rows


@dataclass(frozen=True)
class Outgoing:
    """One of many messages that are enqueued together."""

    key: str
    subject: str
    payload: Any
    headers: Mapping[str, str] | None = None
    ordering_key: str | None = None


async def enqueue(
    connection: Any,
    key: str,
    subject: str,
    payload: Any,
    *,
    headers: Mapping[str, str] | None = None,
    ordering_key: str | None = None,
    not_before: datetime | None = None,
    schema: str = "oncebox",
) -> int | None:
    """Enqueues a message; a relay publishes it if and only if the transaction commits. The connection is
    psycopg's AsyncConnection, asyncpg's, or an AsyncSession or AsyncConnection of SQLAlchemy; `oncebox.sync`
    has the same for libraries that block.

    A payload that is not bytes is sent as JSON, also a dataclass or a model of Pydantic; one that has
    no JSON is a TypeError or a ValueError. The message is not sent before `not_before`, a time with a
    time zone. Returns the message's id, or None when the same message is already enqueued; the same
    key with another subject or payload is an error with SQLSTATE OB001.
    """
    if not_before is not None and not_before.utcoffset() is None:
        raise ValueError("not_before has no time zone: use datetime.now(timezone.utc) + timedelta(...)")
    when = {} if not_before is None else {"not_before": not_before}
    statement, parameters = called(
        "enqueue_at" if when else "enqueue", key=key, subject=subject, payload=_body(payload),
        headers=Typed("jsonb", json.dumps(with_context(headers))), ordering_key=ordering_key, **when,
    )  # fmt: skip
    (message_id,) = await execute(connection, named(schema, statement), parameters)
    return None if message_id is None else int(message_id)


async def enqueue_all(connection: Any, messages: Sequence[Outgoing], *, schema: str = "oncebox") -> list[int | None]:
    """Enqueues up to 10,000 messages with one statement, which fails as a whole; returns what `enqueue`
    returns for each. Messages of transactions at the same time come in one order, or they may deadlock."""
    statement, parameters = called(
        "enqueue_all", "id::text", keys=Typed("text[]", [message.key for message in messages]),
        subjects=Typed("text[]", [message.subject for message in messages]),
        payloads=Typed("bytea[]", [_body(message.payload) for message in messages]),
        headers=Typed("jsonb[]", [json.dumps(with_context(message.headers)) for message in messages]),
        ordering_keys=Typed("text[]", [message.ordering_key for message in messages]),
    )  # fmt: skip
    ids = await rows(connection, named(schema, statement), parameters)
    return [None if found is None else int(found) for (found,) in ids]


async def cancel_delayed(connection: Any, key: str, *, schema: str = "oncebox") -> bool:
    """Gives a delayed message up in this transaction; False when no message of this key waits."""
    statement, parameters = called("cancel_delayed", key=key)
    return await execute(connection, named(schema, statement), parameters) == ("true",)


def _body(payload: Any) -> bytes:
    return bytes(payload) if isinstance(payload, (bytes, bytearray, memoryview)) else to_json(payload)


def to_json(payload: Any) -> bytes:
    """The JSON of a payload. A retry must send the same bytes, so there are no blanks, which versions of
    Python may write differently. NaN and infinities have no JSON."""
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} has no JSON: send a text or a number instead")
