"""What becomes of a message besides its handler's work: its pauses, its attempts, and how it is given up.

A message by itself, one of a batch and one under a lease go through the same.
"""

import json
import logging
import random
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg

from .causes import cause, first_line, reason_of
from .database import Database, Typed, expression
from .message import Dead, Message, RetryAfter, Snooze, Verdict
from .transaction import Run

log = logging.getLogger("oncebox")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

# The longest pause that a handler may ask for: a day. A snooze has an hour, so that it notices a gateway that is back.
RETRY_AFTER_MAX, SNOOZE_SHORTEST, SNOOZE_LONGEST = 86400.0, 0.1, 3600.0
_MESSAGE = "WITH m AS (SELECT %s::text AS scope, %s::text AS tenant, %s::text AS key, %s::text AS message)"
# The pause of an earlier run, in another process perhaps, holds for this one, unless the key has ended.
_BEGIN = (
    f"{_MESSAGE} SELECT CASE WHEN d.due_at > clock_timestamp() THEN 'wait ' || extract(epoch FROM d.due_at - clock_timestamp()) ELSE $begin END"
    " FROM (SELECT max(w.due_at) AS due_at FROM (SELECT due_at FROM {schema}.inbox_attempt NATURAL JOIN m"
    " UNION ALL SELECT due_at FROM {schema}.inbox_snooze NATURAL JOIN m) AS w WHERE NOT EXISTS (SELECT FROM {schema}.inbox NATURAL JOIN m)) AS d"
)
# As snooze.sql of oncebox-inbox: how often it was snoozed in a row, and for how many seconds.
_SNOOZE = (
    f"{_MESSAGE}, s AS (SELECT clock_timestamp() + %s::text::interval AS due_at, clock_timestamp() - %s::text::interval AS longest),"
    " tried AS (UPDATE {schema}.inbox_attempt AS a SET failures = a.failures + greatest(a.begun - 2, 0), begun = 0, touched_at = clock_timestamp(),"
    " due_at = s.due_at FROM m, s WHERE (a.scope, a.tenant, a.key, a.message) = (m.scope, m.tenant, m.key, m.message) RETURNING a.failures)"
    " INSERT INTO {schema}.inbox_snooze AS p (scope, tenant, key, message, delivery, attempts, reason, due_at)"
    " SELECT m.*, %s::text::bigint, coalesce((SELECT t.failures FROM tried AS t), 0), %s::text, s.due_at FROM m, s"
    " ON CONFLICT ON CONSTRAINT inbox_snooze_pkey DO UPDATE SET delivery = excluded.delivery, attempts = excluded.attempts,"
    " reason = excluded.reason, due_at = excluded.due_at,"
    " snoozes = CASE WHEN p.due_at < (SELECT longest FROM s) THEN 1 ELSE p.snoozes + 1 END,"
    " snoozed_at = CASE WHEN p.due_at < (SELECT longest FROM s) THEN excluded.snoozed_at ELSE p.snoozed_at END"
    " RETURNING snoozes::text, extract(epoch FROM clock_timestamp() - snoozed_at)::text"
)


class Incomplete(Exception):
    """The payload cannot be had."""


@dataclass
class Claim(Run):
    """A message, its key, and the run under way."""

    message: Message
    tenant: str
    key: str | None

    @property
    def copy(self) -> str:
        """Which copy of the message, as the function inbox_copy() tells them apart."""
        if self.message.origin is None:
            return ""
        stream, sequence, stored_at = self.message.origin
        return f"{stream} {sequence} {(stored_at - EPOCH) // timedelta(microseconds=1)}"

    @property
    def place(self) -> dict[str, Any]:
        """Where the message is stored."""
        return dict(zip(("stream", "stream_sequence", "stored_at"), self.message.origin or (None,) * 3))


class Life:
    """Of the messages of a scope."""

    def __init__(self, database: Database, scope: str, attempts_max: int, backoff: tuple[float, float], snooze_max: float):
        self.database, self.scope, self.attempts_max, self.backoff, self.snooze_max = database, scope, attempts_max, backoff, snooze_max

    async def begin(self, claim: Claim, is_alone: bool = False) -> str:
        """Records that a message is run that was delivered before: `run`, `alone`, `dead`, or `wait` with seconds."""
        begin, parameters = expression(
            "begin_attempt", scope=self.scope, key=claim.key, tenant=claim.tenant, **claim.place,
            subject=printable(claim.message.subject), attempts_max=self.attempts_max, is_alone=is_alone,
        )  # fmt: skip
        (answer,) = await self.database.ask(_BEGIN.replace("$begin", begin), [self.scope, claim.tenant, claim.key, claim.copy, *parameters])
        return answer

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
        reason, told = reason_of(failure), cause(failure, Dead, RetryAfter, Snooze)
        if isinstance(told, Dead):
            return await self.bury(claim, first_line(told).removeprefix("Dead: "))
        if isinstance(told, Snooze):
            return await self._snooze(claim, told)
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
        parameters = [self.scope, claim.tenant, claim.key, claim.copy, f"{after} s", f"{self.snooze_max} s", str(claim.message.deliveries)]
        count, seconds = await self.database.ask(_SNOOZE, [*parameters, reason.encode()[:1000].decode(errors="ignore") or "no reason given"])
        if float(seconds) >= self.snooze_max:
            return await self.bury(claim, f"snoozed for too long, {count} times in {float(seconds):.0f} s: {reason}")
        log.log(logging.INFO if count == "1" else logging.DEBUG, "scope %s, key %s: snoozed for %.1f s: %s", self.scope, claim.key, after, reason)
        return await self.rest(claim, Verdict("snoozed", None, reason, after), is_attempt=False)

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
        return Verdict(name, None, reason, self.pause() if name == "in_flight" else 0.0)

    def pause(self) -> float:
        return min(self.backoff) * random.uniform(0.5, 1.0)


def headers_of(message: Message) -> str:
    return json.dumps({printable(name): printable(value) for name, value in message.headers.items()})


def printable(text: str) -> str:
    """A text that PostgreSQL can store: well-formed, without NUL."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
