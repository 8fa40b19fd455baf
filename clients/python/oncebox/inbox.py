"""Handles each message once: its key is claimed in the transaction that the handler writes through. A
run that fails is rolled back and counted; its message is run again later, or becomes a dead letter."""

import asyncio
import json
import logging
import random
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, AsyncIterator, Awaitable, Callable, Mapping, NamedTuple

import psycopg
from psycopg import AsyncClientCursor, AsyncConnection
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Identifier
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from .deadline import Deadline
from .keys import check_key

log = logging.getLogger("oncebox")

# How often a message is run again at once after a conflict with another transaction.
CONFLICT_ROUNDS = 5
MISMATCH = "the key was used before with another payload"


class Origin(NamedTuple):
    """The place of a message in a stream."""

    stream: str
    sequence: int
    stored_at: datetime


@dataclass(frozen=True)
class Message:
    """A message as it arrived. Names of headers are in lower case."""

    subject: str
    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    origin: Origin | None = None
    deliveries: int = 1


@dataclass(frozen=True)
class Context:
    """What a handler gets besides the decoded payload: above all the transaction that it writes through."""

    connection: AsyncConnection
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
        super().__init__(f"the handler asked for a retry after {seconds} seconds")
        self.seconds = seconds


class Answer(NamedTuple):
    """The result of running a message. All but `retry` and `in_flight` are final, and committed.

    `name` is new, replayed, rejected, dead, mismatch, in_flight or retry; `reply` is the handler's
    reply, also when an earlier run gave it; `after` is the number of seconds until the next run.
    """

    name: str
    reply: Any = None
    reason: str | None = None
    after: float = 0.0


Handler = Callable[[Context, Any], Awaitable[Any]]


class Inbox:
    """Runs handlers once per key, over connections of this pool."""

    def __init__(
        self,
        pool: AsyncConnectionPool,
        scope: str,
        *,
        tenant_header: str | None = None,
        key_headers: tuple[str, ...] = ("Idempotency-Key", "x-idempotency-key"),
        decode: Callable[[bytes], Any] = json.loads,
        attempts_max: int = 20,
        backoff: tuple[float, float] = (1.0, 300.0),
        handler_timeout: float = 60.0,
        step_timeout: float = 30.0,
        retention: timedelta | None = None,
        schema: str = "oncebox",
    ):
        """The scope names the consumer, `service:handler`; never rename it.

        `backoff` is the pause after the first failure and the longest one, `retention` is how long a
        key is kept at least (None: for ever). `step_timeout` is how many seconds it may take to get a
        connection, and each step before and after the handler: then the connection is closed.
        """
        self.pool, self.scope, self.schema = pool, scope, schema
        # This is the INSERT of the function claim(), which costs PostgreSQL more as a whole.
        self._claim_new = self._sql(
            "INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status)"
            " SELECT s.scope, %s, %s, %s, %s, 'completed' FROM {schema}.inbox_scope AS s"
            " WHERE s.scope = %s AND s.mode = 'transaction' AND pg_try_advisory_xact_lock(%s)"
            " AND set_config('idle_in_transaction_session_timeout', %s, true) IS NOT NULL"
            " ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING"
        )
        self._claim = self._sql(
            "SELECT answer, outcome, reason, set_config('idle_in_transaction_session_timeout', %s, true)"
            " FROM {schema}.claim(%s, %s, %s::bytea, %s, %s)"
        )
        self._settle_and_commit = self._sql("SELECT {schema}.settle(%s, %s, %s::json, %s, %s); COMMIT")
        self.tenant_header, self.key_headers, self.decode = tenant_header, key_headers, decode
        self.attempts_max, self.backoff = attempts_max, backoff
        self.handler_timeout, self.step_timeout, self.retention = handler_timeout, step_timeout, retention

    async def register(self) -> None:
        """Records the scope and its retention; fails when the scope is in use in the leased mode."""
        await self._ask("SELECT {schema}.register_scope(%s, %s)", [self.scope, self.retention])

    async def run(self, handler: Handler, message: Message) -> Answer:
        """Handles one message: runs the handler, or answers a copy from the stored outcome.

        Raises psycopg.OperationalError or PoolTimeout when PostgreSQL is away: run the message again later.
        """
        try:
            tenant, key = self._tenant(message), self._key(message)
        except ValueError as problem:
            return await self._bury("", None, message, str(problem))
        try:
            data = self.decode(message.payload)
        except Exception as problem:
            # The text of the error may quote the payload.
            return await self._bury(tenant, key, message, f"the payload does not decode: {type(problem).__name__}")
        for _ in range(CONFLICT_ROUNDS):
            try:
                answer = await self._attempt(handler, tenant, key, message, data)
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as conflict:
                failure: Exception = conflict
                await asyncio.sleep(random.uniform(0.005, 0.1))
            except Exception as error:
                failure = error
                break
            else:
                return await self._bury(tenant, key, message, MISMATCH) if answer.name == "mismatch" else answer
        return await self._failed(tenant, key, message, failure)

    async def _attempt(self, handler: Handler, tenant: str, key: str, message: Message, data: Any) -> Answer:
        async with self._connection() as (connection, deadline):
            answer = await self._claimed(connection, tenant, key, message)
            if answer.name != "new":
                return answer
            # Behind its own limit, since a statement of the handler's may wait on although it is cancelled.
            deadline.begin(connection, self.handler_timeout)
            # Only the inbox ends the transaction: whatever began another would be committed without the key.
            connection.commit = connection.rollback = _refuse
            try:
                async with asyncio.timeout(self.handler_timeout):
                    reply = await _uncancelled(handler(Context(connection, key, tenant, message), data))
            finally:
                del connection.commit, connection.rollback
                deadline.begin(connection)
            # In a transaction that an error aborted, COMMIT would be a silent ROLLBACK.
            if connection.info.transaction_status != TransactionStatus.INTRANS:
                raise RuntimeError("the handler ended the transaction, or caught an error that has aborted it")
            status, stored = ("rejected", reply.reply) if isinstance(reply, Reject) else ("completed", reply)
            if reply is not None:
                # In one round trip. That there is no reply has the claim stored.
                parameters = [self.scope, key, json.dumps(stored), tenant, status]
                await AsyncClientCursor(connection).execute(self._settle_and_commit, parameters)
        return Answer("new", stored)

    async def _claimed(self, connection: AsyncConnection, tenant: str, key: str, message: Message) -> Answer:
        """Claims a key that is probably new, in a transaction that begins; else asks claim() what is known of it."""
        limit = f"{round(1000 * self.handler_timeout + 5000)}ms"
        fingerprint = sha256(b"oncebox payload 1\0" + message.payload).digest()
        lock = inbox_lock(self.schema, self.scope, tenant, key)
        message_id = self._message_id(message)
        parameters = [tenant, key, fingerprint, message_id, self.scope, lock, limit]
        # BEGIN goes out before, alone: a pipeline of psycopg's costs more than the round trip.
        if (await connection.execute(self._claim_new, parameters)).rowcount == 1:
            return Answer("new")
        await connection.rollback()
        # It tells claim() that an inbox will commit; in any other transaction claim() fails.
        await connection.execute("SET TRANSACTION DEFERRABLE")
        parameters = [limit, self.scope, key, message.payload, tenant, message_id]
        name, outcome, reason, _ = await (await connection.execute(self._claim, parameters)).fetchone()
        if name != "new":
            await connection.rollback()
        return Answer(name, outcome, reason, self._pause(1) if name == "in_flight" else 0.0)

    async def _failed(self, tenant: str, key: str, message: Message, failure: Exception) -> Answer:
        if isinstance(failure, Dead):
            return await self._bury(tenant, key, message, str(failure))
        if isinstance(failure, PoolTimeout):
            raise failure
        reason = f"{type(failure).__name__}: {failure}".splitlines()[0]
        # If PostgreSQL is away, this statement fails too, and the attempt does not count.
        statement = "SELECT {schema}.attempt_failed(%s, %s, %s, %s, %s, %s)"
        attempts = await self._ask(statement, [self.scope, key, tenant, *(message.origin or [None] * 3)])
        if attempts >= self.attempts_max:
            return await self._bury(tenant, key, message, f"delivery limit of {self.attempts_max} reached: {reason}")
        after = failure.seconds if isinstance(failure, RetryAfter) else self._pause(attempts)
        after = min(after, self.backoff[1])
        log.warning("scope %s, key %s: attempt %d failed, again in %.1f s: %s", self.scope, key, attempts, after, reason)
        return Answer("retry", None, reason, after)

    async def _bury(self, tenant: str, key: str | None, message: Message, reason: str) -> Answer:
        statement = "SELECT {schema}.bury(%s, %s, %s::bytea, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
        reason = _printable(reason)
        headers = Jsonb({_printable(name): _printable(value) for name, value in message.headers.items()})
        parameters = [self.scope, key, message.payload, reason, _printable(message.subject), headers, tenant]
        parameters += [self._message_id(message), *(message.origin or [None] * 3), message.deliveries]
        name = await self._ask(statement, parameters)
        if name in ("dead", "mismatch"):
            log.warning("scope %s, key %s: dead letter: %s", self.scope, key, reason)
        return Answer(name, None, reason, self._pause(1) if name == "in_flight" else 0.0)

    async def _ask(self, statement: str, parameters: list[Any]) -> Any:
        """Calls a function in a transaction of its own."""
        async with self._connection() as (connection, _):
            (answer,) = await (await connection.execute(self._sql(statement), parameters)).fetchone()
        return answer

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[AsyncConnection, Deadline]]:
        """A connection, and the deadline of the steps on it; the first has begun, and the last is COMMIT or ROLLBACK."""
        with Deadline(self.step_timeout) as deadline:
            try:
                # The pool keeps to its own limit, except while it checks a connection.
                async with asyncio.timeout(self.step_timeout + 1):
                    connection = await self.pool.getconn(self.step_timeout)
            except TimeoutError:
                raise PoolTimeout("the pool's check of a connection got no answer") from None
            deadline.begin(connection)
            # Otherwise each statement would be committed by itself.
            is_autocommit = connection.autocommit
            try:
                if is_autocommit:
                    await connection.set_autocommit(False)
                async with connection:
                    yield connection, deadline
            finally:
                if is_autocommit:
                    with suppress(psycopg.Error):  # of a broken connection
                        await connection.set_autocommit(True)
                await self.pool.putconn(connection)

    def _key(self, message: Message) -> str:
        for name in self.key_headers:
            value = message.headers.get(name.lower())
            if value is not None:
                return check_key(value)
        raise ValueError(f"no key: none of the headers {', '.join(self.key_headers)} is present")

    def _tenant(self, message: Message) -> str:
        if self.tenant_header is None:
            return ""
        tenant = message.headers.get(self.tenant_header.lower(), "")
        if not 1 <= len(tenant.encode()) <= 255 or any(c < " " or "\x7f" <= c <= "\x9f" for c in tenant):
            raise ValueError(f"tenant header {self.tenant_header} is not 1 to 255 bytes without control characters")
        return tenant

    @staticmethod
    def _message_id(message: Message) -> int | None:
        text = message.headers.get("oncebox-id", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

    def _pause(self, attempts: int) -> float:
        return min(self.backoff[0] * 2 ** min(attempts - 1, 30), self.backoff[1]) * random.uniform(0.5, 1.0)

    def _sql(self, text: str) -> str:
        return SQL(text).format(schema=Identifier(self.schema)).as_string()


async def _uncancelled(running: Awaitable[Any]) -> Any:
    """Waits for a handler. A cancellation that is not the consumer's, as of a task that the handler waits
    for, is an error like any other; else it would end the consumer without one."""
    try:
        return await running
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():
            raise
        raise RuntimeError("the handler was cancelled from within") from None


async def _refuse() -> None:
    raise RuntimeError("the inbox ends a handler's transaction: return to commit, raise to roll back")


def inbox_lock(schema: str, scope: str, tenant: str, key: str) -> int:
    """64 bits that stand for a key in advisory locks, as the function inbox_lock() computes them."""
    fields = [field.encode() for field in ("oncebox inbox 1", schema, scope, tenant, key)]
    hashed = sha256(b"".join(len(field).to_bytes(8, "big") + field for field in fields))
    return int.from_bytes(hashed.digest()[:8], "big", signed=True)


def _printable(text: str) -> str:
    """A text that PostgreSQL can store: well-formed, without NUL."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
