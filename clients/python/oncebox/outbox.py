"""Enqueueing a message in the caller's transaction."""

import json
from typing import Any, Mapping

from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier
from .wire import execute

_ENQUEUE = SQL(
    "SELECT {schema}.enqueue(key => %s, subject => %s, payload => %s::bytea, headers => %s::jsonb,"
    " ordering_key => %s)::text"
)


async def enqueue(
    connection: AsyncConnection,
    key: str,
    subject: str,
    payload: Any,
    *,
    headers: Mapping[str, str] | None = None,
    ordering_key: str | None = None,
    schema: str = "oncebox",
) -> int | None:
    """Enqueues a message; a relay publishes it if and only if the transaction commits.

    A payload that is not bytes is sent as JSON. Returns the message's id, or None when the same
    message is already enqueued; the same key with another subject or payload is an error with
    SQLSTATE OB001.
    """
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        # A retry must send the same bytes, so there are no blanks, which versions of Python may write differently.
        payload = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
    statement = _ENQUEUE.format(schema=Identifier(schema)).as_string()
    parameters = [key, subject, bytes(payload), json.dumps(dict(headers or {})), ordering_key]
    (message_id,) = await execute(connection, statement, parameters)
    return None if message_id is None else int(message_id)
