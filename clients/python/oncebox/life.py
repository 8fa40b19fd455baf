"""What becomes of a message besides its handler's work: its pauses, its attempts, and how it is given up.

A message by itself, one of a batch and one under a lease go through the same.
"""

import json
import logging
import random
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from .causes import cause, first_line, reason_of
from .database import Database
from .effect import NotSent, OutcomeUnknown, Rejected, Settling
from .message import Dead, Message, RetryAfter, Snooze, Verdict
from .sql import Typed
from .transaction import Run

log = logging.getLogger("oncebox")

# The longest pause that a handler may ask for: a day. A snooze has an hour, so that it notices a gateway that is back.
RETRY_AFTER_MAX, SNOOZE_SHORTEST, SNOOZE_LONGEST = 86400.0, 0.1, 3600.0
# How often a message is run again at once after a conflict with another transaction.
CONFLICT_ROUNDS = 5
MISMATCH = "the key was used before with another payload"
NO_TRACE = "delivery limit reached, and the last attempt left no trace: did it end the process?"
COMMITTED = "the handler sent COMMIT by itself, which stays, and then failed"


class Incomplete(Exception):
    """The payload cannot be had."""


@dataclass
class Claim(Run):
    """A message, its key, and the run under way."""

    message: Message
    tenant: str
    key: str | None

    @property
    def place(self) -> dict[str, Any]:
        """Where the message is stored."""
        return dict(zip(("stream", "stream_sequence", "stored_at"), self.message.origin or (None,) * 3))


class Unreadable(ValueError):
    """A message that no handler can be run for, and the claim as far as it can be read."""

    def __init__(self, claim: Claim, reason: str):
        super().__init__(reason)
        self.claim = claim


class Life:
    """Of the messages of a scope."""

    def __init__(self, database: Database, scope: str, attempts_max: int, backoff: tuple[float, float], snooze_max: float):
        self.database, self.scope, self.attempts_max, self.backoff, self.snooze_max = database, scope, attempts_max, backoff, snooze_max

    async def begin(self, claim: Claim, is_alone: bool = False) -> str:
        """Records that a message is run that was delivered before: `run`, `wait`, `alone`, or `dead`."""
        (answer,) = await self.database.call(
            "begin_attempt", scope=self.scope, key=claim.key, tenant=claim.tenant, **claim.place,
            subject=printable(claim.message.subject), attempts_max=self.attempts_max, is_alone=is_alone,
        )  # fmt: skip
        return answer

    async def pause_left(self, claim: Claim) -> float:
        """For how many seconds an earlier run, in another process perhaps, wants it to wait."""
        (seconds,) = await self.database.call("pause_left", scope=self.scope, key=claim.key, tenant=claim.tenant, **claim.place)
        return float(seconds)

    async def cancel(self, claim: Claim) -> None:
        """The run was no attempt. If this fails, the message runs alone once, which counts nothing."""
        with suppress(psycopg.Error):
            await self.database.call("cancel_attempt", scope=self.scope, key=claim.key, tenant=claim.tenant, **claim.place)

    async def forget(self, claim: Claim) -> None:
        """Forgets the attempts at a message that has ended. If this fails, its key says that it has."""
        with suppress(psycopg.Error):
            await self.database.call("forget_attempts", scope=self.scope, key=claim.key, tenant=claim.tenant)

    async def failed(self, claim: Claim, failure: Exception) -> Verdict:
        """Counts a failed run, or does not, and says when the next one is; or gives the message up."""
        # Of an effect that failed, or is unknown, the error of the provider's client decides nothing.
        reason, told = reason_of(failure), cause(failure, Dead, RetryAfter, Snooze, Rejected, NotSent, OutcomeUnknown)
        if isinstance(told, (Dead, Rejected)):
            return await self.bury(claim, first_line(told).removeprefix(f"{type(told).__name__}: "))
        if isinstance(told, Snooze):
            return await self._snooze(claim, told)
        if isinstance(told, Settling):
            after = min(told.seconds, self.backoff[1])
            log.info("scope %s, key %s: again in %.1f s: %s", self.scope, claim.key, after, told)
            return await self.rest(claim, Verdict("retry", None, reason, after), is_attempt=False)
        told = told if isinstance(told, RetryAfter) else None
        # The pause doubles with each failure.
        jitter = random.uniform(0.5, 1.0)
        first, longest = (jitter * pause for pause in self.backoff)
        if told is not None:
            first = longest = float(min(told.seconds, RETRY_AFTER_MAX))
        attempts = await self.count(claim, reason, first, longest)
        if attempts >= self.attempts_max:
            claim.key = None if isinstance(failure, Incomplete) else claim.key
            log.error("scope %s, key %s: the last attempt failed", self.scope, claim.key, exc_info=failure)
            return await self.bury(claim, f"delivery limit of {self.attempts_max} reached: {reason}")
        after = min(first * 2 ** min(attempts - 1, 30), longest)
        text = "scope %s, key %s: attempt %d failed, again in %.1f s: %s"
        log.warning(text, self.scope, claim.key, attempts, after, reason, exc_info=None if told else failure)
        return await self.rest(claim, Verdict("retry", None, reason, after))

    async def count(self, claim: Claim, reason: str, pause: float, pause_max: float) -> int:
        """How many attempts have failed. If PostgreSQL is away, this fails too, and the attempt does not count."""
        (attempts,) = await self.database.call(
            "attempt_failed", scope=self.scope, key=claim.key, tenant=claim.tenant, **claim.place, reason=printable(reason),
            subject=printable(claim.message.subject), pause=pause, pause_max=pause_max,
        )  # fmt: skip
        return int(attempts)

    async def rest(self, claim: Claim, verdict: Verdict, is_attempt: bool = True) -> Verdict:
        """The message has its pause now."""
        return verdict

    async def _snooze(self, claim: Claim, told: Snooze) -> Verdict:
        after, reason = min(max(told.seconds, SNOOZE_SHORTEST), SNOOZE_LONGEST), printable(told.reason)
        (may_wait,) = await self.database.call(
            "snooze", scope=self.scope, key=claim.key, pause=timedelta(seconds=after), reason=reason, tenant=claim.tenant, **claim.place,
            deliveries=claim.message.deliveries, longest=timedelta(seconds=self.snooze_max),
        )  # fmt: skip
        if may_wait != "true":
            return await self.bury(claim, f"snoozed for too long, {self.snooze_max:g} s: {reason}")
        log.info("scope %s, key %s: snoozed for %.1f s: %s", self.scope, claim.key, after, reason)
        return await self.rest(claim, Verdict("snoozed", None, reason, after), is_attempt=False)

    async def has_committed(self, claim: Claim, failure: Exception) -> bool:
        """Whether the handler has committed the claim by itself, so that a copy would be answered as handled."""
        if claim.is_ending and isinstance(failure, psycopg.OperationalError) and failure.sqlstate is None:
            return False  # the COMMIT may have been ours, whose answer got lost
        # Its row says so. The id alone does not: a server that crashes forgets ids that it has not written
        # to disk, and gives them to other transactions.
        row = "{schema}.inbox WHERE scope = %s AND tenant = %s AND key = %s AND xmin = %s::text::xid8::xid"
        (count,) = await self.database.ask(f"SELECT count(*)::text FROM {row}", [self.scope, claim.tenant, claim.key, claim.xid])
        return count != "0"

    async def bury(self, claim: Claim, reason: str, committed_by: str | None = None) -> Verdict:
        """Gives the message up, unless a copy decides instead."""
        reason, message = printable(reason), claim.message
        (name,) = await self.database.call(
            "bury", scope=self.scope, key=claim.key, payload=message.payload, reason=reason, subject=printable(message.subject),
            headers=Typed("jsonb", headers_of(message)), tenant=claim.tenant, message_id=message.id, **claim.place,
            deliveries=message.deliveries, committed_by=committed_by and Typed("xid8", committed_by),
        )  # fmt: skip
        if name in ("dead", "mismatch"):
            log.warning("scope %s, key %s: dead letter: %s", self.scope, claim.key, reason)
        return self.answered(name, None, reason)

    def answered(self, name: str, outcome: str | None, reason: str | None) -> Verdict:
        return Verdict(name, outcome and json.loads(outcome), reason, self.pause() if name == "in_flight" else 0.0)

    def pause(self) -> float:
        return min(self.backoff) * random.uniform(0.5, 1.0)


def headers_of(message: Message) -> str:
    """As all inboxes store them: a name that occurs more than once has an array."""
    headers = message.headers if message.sent_headers is None else message.sent_headers
    values_of = {name: [values] if isinstance(values, str) else values for name, values in headers.items()}
    texts = {printable(name): [printable(value) for value in values] for name, values in values_of.items()}
    return json.dumps({name: values[0] if len(values) == 1 else values for name, values in texts.items()})


def printable(text: str) -> str:
    """A text that PostgreSQL can store: well-formed, without NUL."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
