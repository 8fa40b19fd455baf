"""Handles each message once: its key is claimed in the transaction that the handler writes through. A
run that fails is rolled back and counted; its message is run again later, or becomes a dead letter."""

import asyncio
import json
import logging
import random
from contextlib import nullcontext
from datetime import timedelta
from hashlib import sha256
from inspect import iscoroutinefunction
from typing import Any, Callable

from .causes import cause, fields_of, is_conflict, reason_of
from .database import Database
from .headers import single
from .keys import check_key
from .leased import LeasedHandler, run_leased
from .life import COMMITTED, CONFLICT_ROUNDS, MISMATCH, NO_TRACE, Claim, Incomplete, Life, Unreadable
from .message import Context, Dead, Handler, Message, RetryAfter, Snooze, Verdict
from .ports import check_size
from .reply import ended
from .spans import handling
from .transaction import Unattempted, before_handler, check_handler, commit, connected, lent, limited, undone
from .wire import SESSION, execute

log = logging.getLogger("oncebox")

class Inbox:
    """Runs handlers once per key, over connections of this pool."""

    def __init__(
        self,
        pool: Any,
        scope: str,
        *,
        tenant_header: str | None = None,
        key_headers: tuple[str, ...] = ("Idempotency-Key", "x-idempotency-key"),
        decode: Callable[[bytes], Any] = json.loads,
        attempts_max: int = 20,
        backoff: tuple[float, float] = (1.0, 300.0),
        snooze_max: float = 86400.0,
        handler_timeout: float = 60.0,
        step_timeout: float = 30.0,
        retention: timedelta | None = None,
        lease: float | None = None,
        schema: str = "oncebox",
    ):
        """The pool is psycopg's (AsyncConnectionPool, ConnectionPool) or asyncpg's, an engine of SQLAlchemy, or
        Django's `connection`. The scope names the consumer, `service:handler`; never rename it.

        `backoff` is the pause after the first failure and the longest one, `snooze_max` how many seconds a
        message may be snoozed in all, `retention` is how long a key is kept at least (None: for ever).
        `step_timeout` is how many seconds it may take to get a connection, and each step before and after
        the handler: then the connection is closed. `lease` is for handlers with effects outside the database:
        for how many seconds a key is claimed, which is renewed every third of them; 20 is a good value.
        """
        if lease is not None and not 0.1 <= lease <= 3600:
            raise ValueError(f"a lease of {lease} s: it is 0.1 to 3600 s")
        self.pool, self.scope, self.schema, self.lease = pool, scope, schema, lease
        self.database = Database(pool, schema, step_timeout if lease is None else min(step_timeout, lease))
        self.life = Life(self.database, scope, attempts_max, backoff, snooze_max)
        # This is the INSERT of the function claim(), which costs PostgreSQL more as a whole.
        self._claim_new = self.database.sql(
            "INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status)"
            " SELECT s.scope, %s::text, %s::text, %s::bytea, %s::text::bigint, 'completed' FROM {schema}.inbox_scope AS s"
            " WHERE s.scope = %s::text AND s.mode = 'transaction' AND pg_try_advisory_xact_lock(%s::text::bigint)"
            " AND set_config('idle_in_transaction_session_timeout', %s::text, true) IS NOT NULL"
            " ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING"
            f" RETURNING pg_current_xact_id()::text, {SESSION}"
        )
        self._claim = self.database.sql(
            f"SELECT answer, outcome::text, reason, pg_current_xact_id_if_assigned()::text, {SESSION},"
            " set_config('idle_in_transaction_session_timeout', %s, true)"
            " FROM {schema}.claim(%s, %s, %s::bytea, %s, %s::text::bigint)"
        )
        self._settle = self.database.sql("SELECT {schema}.settle(%s, %s, %s::text::json, %s, %s); ")
        self.tenant_header, self.key_headers, self.decode = tenant_header, key_headers, decode
        self.handler_timeout, self.step_timeout, self.retention = handler_timeout, step_timeout, retention
        # Held by the one message that runs although a run of it may have ended its process.
        self.suspected = asyncio.Lock()

    async def register(self) -> None:
        """Records the scope and its retention; fails when the scope is in use in the leased mode."""
        # A schema from before leases has no modes to choose from.
        await self.database.register(self.scope, self.retention, **({} if self.lease is None else {"mode": "lease"}))

    def check(self, handler: Any) -> None:
        """Fails unless this is a handler for this inbox."""
        if self.lease is None:
            return check_handler(self.pool, handler)
        check_size(self.pool, 2, "an inbox with a lease, which renews it beside the last writes,")
        handler = handler if isinstance(handler, LeasedHandler) else LeasedHandler(handler)
        if not iscoroutinefunction(handler.handle):
            raise TypeError("this inbox needs a handler that is async def: it waits for providers while the lease is renewed")
        if handler.finish is not None:
            check_handler(self.pool, handler.finish)

    async def run(self, handler: Handler | LeasedHandler, message: Message) -> Verdict:
        """Handles one message: runs the handler, or answers a copy from the stored outcome.

        Raises psycopg.OperationalError when PostgreSQL is away: run the message again later.
        """
        if self.lease is not None:
            return await run_leased(self, handler, message)
        try:
            claim, data = self.read(message)
        except Unreadable as problem:
            return await self.life.bury(problem.claim, str(problem))
        if message.deliveries < 2:
            return await self._run(handler, claim, data)
        return await self._run_again(handler, claim, data)

    async def _run_again(self, handler: Handler, claim: Claim, data: Any) -> Verdict:
        """Runs the handler for a message that was delivered before. If the process ends meanwhile, the record shows it."""
        begun = await self.life.begin(claim)
        if begun == "alone" and self.suspected.locked():
            # The message that runs now may be the one that ends the process.
            return Verdict("in_flight", after=self.life.pause())
        async with self.suspected if begun == "alone" else nullcontext():
            if begun == "alone":
                text = "scope %s, key %s: runs alone, since a run of it left no trace and may have ended its process"
                log.warning(text, self.scope, claim.key)
                begun = await self.life.begin(claim, is_alone=True)
            if begun == "wait":
                return Verdict("in_flight", after=await self.life.pause_left(claim))
            if begun == "dead":
                return await self.life.bury(claim, NO_TRACE)
            try:
                answer = await self._run(handler, claim, data)
            except Exception:
                await self.life.cancel(claim)
                raise
        if answer.name == "in_flight":
            await self.life.cancel(claim)
        return answer

    async def _run(self, handler: Handler, claim: Claim, data: Any) -> Verdict:
        for _ in range(CONFLICT_ROUNDS):
            try:
                answer = await self._attempt(handler, claim, data)
            except Unattempted as unattempted:
                failure = unattempted
                if not unattempted.is_closed:
                    break
                continue  # the pool's next connection may be a good one
            except Exception as error:
                failure = error
            else:
                if claim.message.deliveries > 1 and answer.name in ("handled", "replayed", "rejected"):
                    await self.life.forget(claim)
                return await self.life.bury(claim, MISMATCH) if answer.name == "mismatch" else answer
            if claim.xid is not None and await self.life.has_committed(claim, failure):
                return await self.life.bury(claim, f"{COMMITTED}: {reason_of(failure)}", claim.xid)
            if cause(failure, Dead, RetryAfter, Snooze) or not is_conflict(failure):
                break
            await asyncio.sleep(random.uniform(0.005, 0.1))
        if isinstance(failure, Unattempted):
            raise failure.__cause__
        return await self.life.failed(claim, failure)

    def read(self, message: Message) -> tuple[Claim, Any]:
        """The key and the decoded payload of a message, or Unreadable."""
        claim = self.identify(message)
        return claim, self.decoded(claim)

    def decoded(self, claim: Claim) -> Any:
        try:
            return self.decode(claim.message.payload)
        except Exception as problem:
            # The text of the error may quote the payload.
            fields = fields_of(problem)
            reason = f"the payload does not decode: {type(problem).__name__}" + (f" ({fields})" if fields else "")
            raise Unreadable(claim, reason) from problem

    def identify(self, message: Message) -> Claim:
        try:
            return Claim(message, self._tenant(message), self._key(message))
        except ValueError as problem:
            raise Unreadable(Claim(message, "", None), str(problem)) from None

    async def incomplete(self, message: Message, reason: str) -> Verdict:
        """Counts a failed attempt at a message whose payload cannot be had; in the end it is a dead letter
        without a key, since only the payload tells copies of a key from others."""
        try:
            return await self.life.failed(self.identify(message), Incomplete(reason))
        except Unreadable as problem:
            return await self.life.bury(problem.claim, str(problem))

    async def _attempt(self, handler: Handler, claim: Claim, data: Any) -> Verdict:
        claim.xid, claim.is_ending = None, False
        async with connected(self.pool, self.step_timeout) as (connection, deadline):
            with before_handler(connection):
                answer = await self._claimed(connection, claim)
            if answer.name != "handled":
                return answer
            # After its own limit, since a statement of the handler's may wait on although it is
            # cancelled.
            deadline.begin(connection, self.handler_timeout)
            async with undone(connection, claim):
                try:
                    with lent(connection, claim) as handle, handling(self.scope, claim.key, claim.message):
                        context = Context(handle.connection, claim.key, claim.tenant, claim.message, self.scope)
                        reply = await limited(handle.call(handler, context, data), self.handler_timeout)
                finally:
                    deadline.begin(connection)
                status, stored, text = ended(reply)
                # That there is no reply has the claim stored.
                settle = [] if (text, status) == ("null", "completed") else [self.scope, claim.key, text, claim.tenant, status]
                await commit(connection, claim, self._settle if settle else "", settle)
        return Verdict("rejected" if status == "rejected" else "handled", stored)

    async def _claimed(self, connection: Any, claim: Claim) -> Verdict:
        """Claims a key that is probably new, in a transaction that begins; else asks claim() what is known of it."""
        limit = f"{round(1000 * self.handler_timeout + 5000)}ms"
        lock = str(inbox_lock(self.schema, self.scope, claim.tenant, claim.key))
        message_id = None if claim.message.id is None else str(claim.message.id)
        parameters = [claim.tenant, claim.key, fingerprint(claim.message), message_id, self.scope, lock, limit]
        # BEGIN goes out before, alone: a pipeline of psycopg's costs more than the round trip.
        if row := await execute(connection, self._claim_new, parameters):
            claim.xid, claim.session = row
            return Verdict("handled")  # once the handler has returned
        await connection.rollback()
        # It tells claim() that an inbox will commit; in any other transaction claim() fails.
        await execute(connection, "SET TRANSACTION DEFERRABLE")
        parameters = [limit, self.scope, claim.key, claim.message.payload, claim.tenant, message_id]
        name, outcome, reason, xid, claim.session, _ = await execute(connection, self._claim, parameters)
        if name == "new":
            claim.xid, name = xid, "handled"
        else:
            await connection.rollback()
        return self.life.answered(name, outcome, reason)

    def _key(self, message: Message) -> str:
        for name in self.key_headers:
            if (value := single(message.headers, name)) is not None:
                return check_key(value)
        raise ValueError(f"no key: none of the headers {', '.join(self.key_headers)} is present")

    def _tenant(self, message: Message) -> str:
        if self.tenant_header is None:
            return ""
        tenant = single(message.headers, self.tenant_header) or ""
        if not 1 <= len(tenant.encode()) <= 255 or any(c < " " or "\x7f" <= c <= "\x9f" for c in tenant):
            raise ValueError(f"tenant header {self.tenant_header} is not 1 to 255 bytes without control characters")
        return tenant


def fingerprint(message: Message) -> bytes:
    """Tells payloads of one key apart, as the function inbox_fingerprint() does."""
    return sha256(b"oncebox payload 1\0" + message.payload).digest()


def inbox_lock(schema: str, scope: str, tenant: str, key: str) -> int:
    """64 bits that stand for a key in advisory locks, as the function inbox_lock() computes them."""
    fields = [field.encode() for field in ("oncebox inbox 1", schema, scope, tenant, key)]
    hashed = sha256(b"".join(len(field).to_bytes(8, "big") + field for field in fields))
    return int.from_bytes(hashed.digest()[:8], "big", signed=True)
