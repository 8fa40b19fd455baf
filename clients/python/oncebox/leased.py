"""Handlers with effects outside the database, under a lease.

           ┌─ ended ─────▶ its outcome again, or a dead letter for another payload
claim ─────┼─ leased ────▶ in flight
 (commits) └─ won, or taken over after another's lease
    │                       ┌──────────── renew, every third of the lease ◀─┐
    ▼                       │              lost, or perhaps lost ─▶ cancelled, nothing is written
handler ─ effect ─ effect ──┤
    ├─ returns ───────────▶ BEGIN, finish, the key's outcome, COMMIT
    └─ raises, or hangs ──▶ released for a later run, or a dead letter

No transaction and no connection is held while a provider is slow. Every write of an owner is behind a
fence, its owner id and epoch. It stops early by its own clock, which counts from when a renewal was sent.
"""

import asyncio
import logging
import random
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Awaitable, Callable

import psycopg

from .causes import cause, first_line, is_conflict, is_useless, reason_of, sqlstate
from .effect import Call, Ledger, LeaseLost, run_effect
from .life import COMMITTED, CONFLICT_ROUNDS, MISMATCH, NO_TRACE, Claim, Life, Unreadable, headers_of, printable
from .message import Context, Message, Verdict
from .reply import ended
from .spans import handling
from .sql import Typed, called
from .transaction import Unattempted, commit, connected, lent, limited, undone
from .wire import SESSION, execute

log = logging.getLogger("oncebox")

AGAIN_FIRST, AGAIN_LONGEST = 0.02, 1.0
# A claim is released at once only if PostgreSQL is there.
RELEASE_MAX = 1.0


@dataclass(frozen=True)
class LeasedHandler:
    """`async def handle(cx, data)` has no transaction and calls providers through `cx.effect`. `finish(cx, reply)`,
    if there is one, writes through `cx.connection` in the transaction that ends the key, with what `handle` has returned."""

    handle: Callable[["LeasedContext", Any], Awaitable[Any]]
    finish: Callable[[Context, Any], Any] | None = None


class LeasedContext:
    """What a leased handler gets besides the decoded payload."""

    def __init__(self, lease: "Lease"):
        self._lease, claim = lease, lease.claim
        self.key, self.tenant, self.message = claim.key, claim.tenant, claim.message
        # How many times the key has been claimed, this time included.
        self.attempts = lease.attempts

    async def effect(
        self, step: str, call: Call, *, reconcile: Call | None = None, provider_idempotent: bool = False,
        timeout: float = 30.0, settles_within: float | None = None,
    ) -> Any:  # fmt: skip
        """An effect outside the database, once per key: returns what `call(key)` returned, now or in an earlier run.

        `call` gets the key `key:step` for the provider. It raises Rejected (never) or NotSent (not now); any other
        error, and no answer within `timeout` seconds, may hide an effect. Then the next run asks `reconcile(key)`,
        which changes nothing and returns Happened(result), Absent or Unknown; or it calls again, if the provider has
        one effect and one answer for a key. `settles_within` is for how many seconds after its beginning a call may
        still take effect (None: `timeout` and 30 s): until then Absent counts as unknown.
        """
        return await run_effect(self._lease, step, call, reconcile, provider_idempotent, timeout, settles_within)


class _Away(Exception):
    """PostgreSQL did not take a statement of ours; the cause says why."""


class Lease(Life):
    """A claim that was won, for a time that is renewed meanwhile."""

    def __init__(self, inbox: Any, claim: Claim, owner: uuid.UUID, epoch: int, attempts: int, asked: float):
        life = inbox.life
        super().__init__(life.database, life.scope, life.attempts_max, life.backoff, life.snooze_max)
        self.inbox, self.claim, self.attempts, self.seconds = inbox, claim, attempts, inbox.lease
        self.of = {"scope": life.scope, "key": claim.key, "tenant": claim.tenant, "owner": owner, "epoch": epoch}
        # Not later than the end of the lease in the database.
        self.until, self._lost = asked + self.seconds, False
        self.ledger = Ledger()

    def check(self) -> None:
        if self._lost or _now() >= self.until:
            raise self.is_lost()

    def is_lost(self) -> LeaseLost:
        self._lost = True
        return LeaseLost("the lease is lost; another process may have taken over")

    async def patiently(self, function: str, columns: str = "f::text", **more: Any) -> tuple:
        """A statement of the owner's that may be repeated, and is while PostgreSQL is away and the lease lasts."""
        pause = AGAIN_FIRST
        while True:
            try:
                return await self.database.call(function, columns, **self.of, **more)
            except psycopg.OperationalError:
                if _now() >= self.until:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_LONGEST)

    async def renewing(self, function: str, columns: str = "f::text", **more: Any) -> tuple:
        """One that starts the time of the lease again, for an effect."""
        if self._lost:
            raise self.is_lost()
        sent = _now()
        try:
            row = await self.patiently(function, columns, lease=timedelta(seconds=self.seconds), **more)
        except psycopg.OperationalError as error:
            raise _Away(f"{function}: {first_line(error)}") from error
        if row[0] not in ("lost", "false"):
            self.until = max(self.until, sent + self.seconds)
        return row

    async def keep(self, work: Awaitable[Any]) -> Any:
        """Does the work, and renews the lease. When the lease is lost, or may be, the work is cancelled wherever it waits."""
        task, renewal = asyncio.ensure_future(work), asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait([task, renewal], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await renewal
            return task.result()
        finally:
            renewal.cancel()
            if not task.done():
                self._lost = True
                task.cancel()
                await asyncio.wait([task], timeout=RELEASE_MAX)
            for one in (task, renewal):
                one.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _renew(self) -> None:
        """Renews the lease until it is lost, which is an error."""
        third, pause, last = self.seconds / 3, 0.0, None
        while True:
            until = self.until
            due = _now() + pause if pause else until - 2 * third
            await asyncio.sleep(min(due, until) - _now())
            if self.until > until:
                continue  # an effect has renewed it
            sent = _now()
            # Not awaited after its time: a statement that is cancelled waits for the socket again.
            asking = asyncio.ensure_future(self.database.call("renew_lease", **self.of, lease=timedelta(seconds=self.seconds)))
            # After a pause of the process it is asked once more: perhaps no other process has taken
            # over.
            await asyncio.wait([asking], timeout=max(until, sent + third) - sent)
            if not asking.done():
                asking.cancel()
                asking.add_done_callback(lambda done: done.cancelled() or done.exception())
            elif asking.exception() is not None:
                last, pause = asking.exception(), min(max(2 * pause, AGAIN_FIRST), third, AGAIN_LONGEST)
                if not isinstance(last, psycopg.OperationalError):
                    raise last
            elif asking.result() == ("true",):
                self.until, pause = max(self.until, sent + self.seconds), 0.0
            else:
                raise self.is_lost()
            if _now() >= self.until:
                self._lost = True
                raise _Away("the lease could not be renewed in time") from last or psycopg.OperationalError("no answer")

    async def count(self, claim: Claim, reason: str, pause: float, pause_max: float) -> int:
        return self.attempts

    async def rest(self, claim: Claim, verdict: Verdict, is_attempt: bool = True) -> Verdict:
        reason = self._explained(verdict.reason)
        if not await self.release(verdict.after, reason, is_attempt):
            return self._ended_elsewhere()
        if is_attempt:
            # For operators; the claim itself counts.
            try:
                await super().count(claim, reason, verdict.after, verdict.after)
            except psycopg.Error as error:
                log.warning("scope %s: a failed attempt is not recorded for operators: %s", self.scope, first_line(error))
        return verdict._replace(reason=reason)

    async def release(self, pause: float, reason: str, is_attempt: bool) -> bool:
        more = {"pause": timedelta(seconds=pause), "reason": printable(reason), "is_unknown": bool(self.ledger.open()), "is_attempt": is_attempt}
        return await self.patiently("release_leased", **more) == ("true",)

    async def _release_soon(self, reason: str) -> None:
        """So that the next run need not wait for the end of the lease, if PostgreSQL is back already; no attempt."""
        releasing = asyncio.ensure_future(self.release(self.pause(), reason, is_attempt=False))
        await asyncio.wait([releasing], timeout=RELEASE_MAX)
        releasing.cancel()
        releasing.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def bury(self, claim: Claim, reason: str, committed_by: str | None = None) -> Verdict:
        """Gives the key up, with the effects that may have happened in the reason; their records stay."""
        reason, message = printable(self._explained(reason)), claim.message
        (is_held,) = await self.patiently(
            "bury_leased", payload=message.payload, reason=reason, subject=printable(message.subject),
            headers=Typed("jsonb", headers_of(message)), **claim.place, deliveries=message.deliveries,
        )  # fmt: skip
        if is_held != "true":
            return self._ended_elsewhere()
        log.warning("scope %s, key %s: dead letter: %s", self.scope, claim.key, reason)
        return Verdict("dead", None, reason)

    def _explained(self, reason: str) -> str:
        opened = self.ledger.open()
        is_told = not opened or f"effect {opened} is unknown" in reason
        return reason if is_told else f"{reason}; the outcome of effect {opened} is unknown"

    def _ended_elsewhere(self) -> Verdict:
        log.warning("scope %s, key %s: the lease is lost: the key has another owner, or has ended; nothing was written", self.scope, self.claim.key)
        return Verdict("in_flight", after=self.pause())

    async def handled(self, handler: LeasedHandler, data: Any) -> Verdict:
        """Runs the handler, and ends the key, or says when the next run is."""
        claim, limit = self.claim, self.inbox.handler_timeout
        try:
            with handling(self.scope, claim.key, claim.message):
                try:
                    reply = await self.keep(limited(handler.handle(LeasedContext(self), data), limit))
                finally:
                    self._lost = True  # for effects that the handler has left behind
            if self.ledger.open():
                raise RuntimeError("the handler went on after an effect")
            return await self._finished(handler.finish, reply)
        except Exception as error:
            if cause(error, LeaseLost):
                return self._ended_elsewhere()
            if (away := cause(error, _Away, Unattempted)) is not None:
                await self._release_soon(first_line(error))
                raise away.__cause__
            if claim.xid is not None:
                if claim.is_ending and isinstance(error, psycopg.OperationalError) and sqlstate(error) is None:
                    await self._release_soon(first_line(error))
                    raise  # the COMMIT may have been ours, whose answer got lost
                if await self.has_committed(claim, error):
                    return await self.bury(claim, f"{COMMITTED}: {reason_of(error)}")
            return await self.failed(claim, error)

    async def has_committed(self, claim: Claim, failure: Exception) -> bool:
        """Whether the last writes were committed by the handler itself. No row of ours is among them. Of a lost
        connection the id tells nothing: a server that crashes gives ids that it has lost to others."""
        lost = cause(failure, psycopg.OperationalError)
        if is_useless(failure) or (lost is not None and lost.sqlstate is None):
            return False
        (status,) = await self.database.ask("SELECT pg_xact_status(%s::text::xid8)", [claim.xid])
        return status == "committed"

    async def _finished(self, finish: Any, reply: Any) -> Verdict:
        """Ends the key, in one transaction with the last writes of the handler."""
        status, stored, text = ended(reply)
        for rounds_left in reversed(range(CONFLICT_ROUNDS)):
            try:
                await self._finish(finish, reply, Typed("json", text), status)
                break
            except Exception as error:
                if sqlstate(error) == "OB014":
                    raise self.is_lost() from error
                if not rounds_left or not is_conflict(error) or await self.has_committed(self.claim, error):
                    raise
            await asyncio.sleep(random.uniform(0.005, 0.1))
        if self.attempts > 1:
            await self.forget(self.claim)
        return Verdict("rejected" if status == "rejected" else "handled", stored)

    async def _finish(self, finish: Any, reply: Any, outcome: Typed, status: str) -> None:
        claim, limit = self.claim, self.inbox.handler_timeout
        settle, parameters = called("finish_leased", **self.of, outcome=outcome, status=status)
        claim.xid, claim.is_ending = None, False
        async with connected(self.database.pool, self.database.step_timeout) as (connection, deadline):
            opening = f"SELECT pg_current_xact_id()::text, {SESSION}, set_config('idle_in_transaction_session_timeout', %s, true)"
            claim.xid, claim.session, _ = await execute(connection, opening, [f"{round(1000 * limit + 5000)}ms"])
            async with undone(connection, claim):
                if finish is not None:
                    deadline.begin(connection, limit)
                    try:
                        with lent(connection, claim) as handle:
                            context = Context(handle.connection, claim.key, claim.tenant, claim.message, self.inbox.scope)
                            await self.keep(limited(handle.call(finish, context, reply), limit))
                    finally:
                        deadline.begin(connection)
                # The renewal has stopped, since it would take a claim that has just ended for lost.
                await commit(connection, claim, self.database.sql(settle) + "; ", parameters)


async def run_leased(inbox: Any, handler: LeasedHandler | Callable, message: Message) -> Verdict:
    """Handles one message under a lease, or answers a copy from the stored outcome."""
    handler = handler if isinstance(handler, LeasedHandler) else LeasedHandler(handler)
    try:
        claim = inbox.identify(message)
    except Unreadable as problem:
        return await inbox.life.bury(problem.claim, str(problem))
    won = await _claimed(inbox, claim, is_alone=False)
    if won is None:
        # The message that runs alone now may be the one that ends the process.
        if inbox.suspected.locked():
            return Verdict("in_flight", after=inbox.life.pause())
        async with inbox.suspected:
            log.warning("scope %s, key %s: runs alone, since it may have ended the processes that had it", inbox.scope, claim.key)
            return await _answered(inbox, handler, claim, await _claimed(inbox, claim, is_alone=True))
    return await _answered(inbox, handler, claim, won)


async def _claimed(inbox: Any, claim: Claim, is_alone: bool) -> Lease | Verdict | None:
    """The lease, or how the key stands; None when the message must run alone."""
    asked, owner = _now(), uuid.uuid4()
    answer, outcome, reason, epoch, attempts = await inbox.database.call(
        "claim_leased", "answer, outcome::text, reason, epoch::text, attempts::text", scope=inbox.scope, key=claim.key, payload=claim.message.payload,
        owner=owner, lease=timedelta(seconds=inbox.lease), tenant=claim.tenant, message_id=claim.message.id, is_alone=is_alone,
    )  # fmt: skip
    if answer == "new":
        return Lease(inbox, claim, owner, int(epoch), int(attempts), asked)
    if answer == "alone":
        return None
    return inbox.life.answered(answer, outcome, reason)


async def _answered(inbox: Any, handler: LeasedHandler, claim: Claim, won: Lease | Verdict | None) -> Verdict:
    if not isinstance(won, Lease):
        if won is None or won.name != "mismatch":
            return won or Verdict("in_flight", after=inbox.life.pause())
        return await inbox.life.bury(claim, MISMATCH)
    if won.attempts > won.attempts_max:
        return await won.bury(claim, NO_TRACE)
    try:
        data = inbox.decoded(claim)
    except Unreadable as problem:
        return await won.bury(claim, str(problem))
    return await won.handled(handler, data)


def _now() -> float:
    return asyncio.get_running_loop().time()
