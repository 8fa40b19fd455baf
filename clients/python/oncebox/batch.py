"""Handles several messages in one transaction: their keys are claimed together, and end together.

A failure rolls all of them back. If the message that has failed is known, it is run again by itself,
which counts the attempt, and the others together; else each half is run again by itself.
"""

import asyncio
import json
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Sequence

from .inbox import Inbox, fingerprint
from .leased import LeasedHandler
from .life import Claim, Unreadable
from .lines import Lines
from .message import Context, Handler, Message, PipelinedHandler, Verdict
from .reply import ended
from .spans import handling, handling_set
from .transaction import Run, Unattempted, answered, before_handler, check_open, check_session, connected, lent, limited, pipelined
from .wire import SESSION, execute_all, rows

# After these seconds no other handler of a batch begins: its locks must not be held for long.
ROUND = 0.5
# After this number of failures the rest of a batch is run one by one, since each runs the others again.
FAILURES_MAX = 3
# How many handlers of a pipeline are under way before their answers are awaited.
PIPED_MAX = 16
CHANGED = "the handler changed the role or a setting of the session, which others would have met"


@dataclass(frozen=True)
class Entry:
    """A message of a set, decoded."""

    data: Any
    key: str
    tenant: str
    message: Message


@dataclass(frozen=True)
class SetHandler:
    """A handler of many messages at once: `async def handle(connection, entries)` writes for all of them,
    and returns None, or a handler's result for each entry in order. If it raises, the set is halved
    until the entry that fails is alone."""

    handle: Callable[[Any, Sequence[Entry]], Awaitable[Sequence[Any] | None]]

    async def all(self, connection: Any, entries: Sequence[Entry]) -> Sequence[Any]:
        replies = await self.handle(connection, entries)
        if replies is None:
            return [None] * len(entries)
        if len(replies) != len(entries):
            raise RuntimeError(f"the handler answered {len(replies)} of {len(entries)} entries: return None, or one reply for each")
        return replies

    async def one(self, cx: Context, data: Any) -> Any:
        (reply,) = await self.all(cx.connection, [Entry(data, cx.key, cx.tenant, cx.message)])
        return reply


class _Failed(Exception):
    """All are rolled back, because of the message at this place, or of one that is not known."""

    def __init__(self, place: int | None, is_alone: bool = False):
        self.place, self.is_alone = place, is_alone


@dataclass
class _Outcome:
    """How a transaction has ended: answers, messages to run by themselves, and those it did not come to.

    Claims that are given back are those of messages which were delivered before: one may end its process."""

    answers: dict[int, Verdict]
    alone: list[int]
    left: list[int]
    given_back: list[int]


class Batch:
    """Runs this handler for batches of messages of an inbox."""

    def __init__(self, inbox: Inbox, handler: Handler | SetHandler | LeasedHandler, lines: Lines | None = None):
        self.inbox, self.handler, self.lines = inbox, handler, lines or Lines(inbox, None)
        self.single = handler.one if isinstance(handler, SetHandler) else handler
        inbox.check(self.single)
        self._claim = inbox.database.sql(
            "SELECT place::text, answer, outcome::text, CASE WHEN place = 1 THEN " + SESSION + " END, pg_current_xact_id_if_assigned()::text"
            " FROM {schema}.claim_batch(%s, %s::text[], %s::text[], %s::bytea[], %s::text[]::bigint[], make_interval(secs => %s::text::float8))"
        )
        # The cast fails, and so do all later statements.
        self._settle = inbox.database.sql(
            f"SELECT CASE WHEN {SESSION} IS DISTINCT FROM %s::text THEN concat('{CHANGED}', pg_current_xact_id_if_assigned())::int END; "
            "SELECT {schema}.settle_batch(%s, %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[]); COMMIT"
        )

    async def run(self, messages: Sequence[Message]) -> list[Verdict | Exception]:
        """Handles these messages, and answers each; an exception means the same as from `Inbox.run`."""
        answers: dict[int, Verdict | Exception] = {}
        claims, alone, failures = {}, [], 0
        # Of these ordering keys a message waits for its next run, and so do the later ones.
        waiting: set[str | None] = set()
        for place, message in enumerate(messages):
            try:
                read = self.inbox.read(message)
            except Unreadable:
                alone.append(place)
                continue
            if self.lines.may_have_to_wait(message):
                alone.append(place)
            else:
                claims[place] = read
        rounds, at_once = [list(claims)], PIPED_MAX if isinstance(self.handler, PipelinedHandler) else 1
        while rounds:
            before = waiting | {messages[place].ordering_key for place in alone} - {None}
            places = [place for place in rounds[0] if messages[place].ordering_key not in before]
            alone += [place for place in rounds.pop(0) if place not in places]
            if len(places) < 2 or failures > FAILURES_MAX:
                alone += places
                continue
            try:
                outcome = await self._together({place: claims[place] for place in places}, at_once)
            except Unattempted as unattempted:
                answers |= dict.fromkeys(places, unattempted.__cause__)
                waiting |= {messages[place].ordering_key for place in places} - {None}
            except _Failed as failed:
                if failed.is_alone:
                    alone += places
                elif failed.place is None and at_once > 1:
                    at_once = 1  # which finds the one that fails
                    rounds.insert(0, places)
                elif failed.place is None:
                    rounds[:0] = [places[: len(places) // 2], places[len(places) // 2 :]]
                else:
                    failures += 1
                    alone.append(failed.place)
                    rounds.insert(0, [place for place in places if place != failed.place])
            else:
                answers |= outcome.answers
                alone += outcome.alone
                rounds.insert(0, outcome.left)
        for place in sorted(alone):
            answers[place] = await self._alone(messages[place], waiting)
        return [answers[place] for place in range(len(messages))]

    async def _alone(self, message: Message, waiting: set[str | None]) -> Verdict | Exception:
        if message.ordering_key in waiting:
            return Verdict("behind")
        answer: Verdict | Exception
        try:
            answer = await self.lines.wait(message) or await self.inbox.run(self.single, message)
        except Exception as error:
            answer = error
        if message.ordering_key is not None and (isinstance(answer, Exception) or answer.name in ("retry", "snoozed", "in_flight")):
            waiting.add(message.ordering_key)
        if isinstance(answer, Verdict) and answer.name in ("dead", "mismatch"):
            self.lines.note_dead()
        return answer

    async def _together(self, claims: dict[int, tuple[Claim, Any]], at_once: int) -> _Outcome:
        inbox, run = self.inbox, Run()
        limit = inbox.handler_timeout + ROUND
        async with connected(inbox.pool, inbox.step_timeout) as (connection, deadline):
            try:
                with before_handler(connection):
                    outcome = await self._claimed(connection, claims, run, limit + 5)
                fresh = [place for place in claims if place not in outcome.answers and place not in outcome.alone]
                if not fresh:
                    await connection.rollback()
                    return outcome
                deadline.begin(connection, limit)
                try:
                    of = {place: claims[place] for place in fresh}
                    is_set = isinstance(self.handler, SetHandler)
                    replies = await (self._set(connection, of, run) if is_set else self._each(connection, of, run, at_once))
                finally:
                    deadline.begin(connection)
                outcome.left = [place for place in fresh if place not in replies]
                await self._settled(connection, claims, replies, outcome, run)
            except Exception as error:
                await check_session(connection, run)
                if isinstance(error, (_Failed, Unattempted)):
                    raise
                raise _Failed(None) from error
        for place, (status, stored, _) in replies.items():
            outcome.answers[place] = Verdict("rejected" if status == "rejected" else "handled", stored)
        return outcome

    async def _claimed(self, connection: Any, claims: dict, run: Run, limit: float) -> _Outcome:
        of = [claim for claim, _ in claims.values()]
        claimed = await rows(connection, self._claim, [
            self.inbox.scope, [claim.tenant for claim in of], [claim.key for claim in of],
            [fingerprint(claim.message) for claim in of], [None if claim.message.id is None else str(claim.message.id) for claim in of], str(limit),
        ])
        *_, run.session, run.xid = claimed[0]
        outcome = _Outcome({}, [], [], [])
        before: set[str | None] = set()
        for place, (_, name, reply, *_) in zip(claims, claimed, strict=True):
            message = claims[place][0].message
            if name in ("replayed", "rejected"):
                outcome.answers[place] = Verdict(name, reply and json.loads(reply))
            elif name == "alone" or message.deliveries > 1 or message.ordering_key in before:
                outcome.alone.append(place)
                before |= {message.ordering_key} - {None}
                if name == "new":
                    outcome.given_back.append(place)
        return outcome

    async def _each(self, connection: Any, claims: dict, run: Run, at_once: int) -> dict[int, tuple[str, Any, str]]:
        """One handler after another, as long as the round lasts. In a pipeline this number begins before answers are awaited."""
        replies, clock, limit = {}, asyncio.get_running_loop().time, self.inbox.handler_timeout
        until, is_piped = clock() + ROUND, isinstance(self.handler, PipelinedHandler)
        handler = self.handler.handle if is_piped else self.handler
        async with pipelined(connection, run) if is_piped else nullcontext() as pipeline:
            for place, (claim, data) in claims.items():
                if replies and clock() > until:
                    break
                try:
                    with lent(connection, run) as handle, handling(self.inbox.scope, claim.key, claim.message):
                        context = Context(handle.connection, claim.key, claim.tenant, claim.message, self.inbox.scope)
                        reply = await limited(handle.call(handler, context, data), limit)
                    replies[place] = ended(reply)
                    if pipeline is None:
                        check_open(connection)
                    elif len(replies) % at_once == 0 or len(replies) == len(claims):
                        await limited(answered(pipeline, connection, run), limit)
                except Exception as error:
                    raise _Failed(place if at_once == 1 else None) from error
        return replies

    async def _set(self, connection: Any, claims: dict, run: Run) -> dict[int, tuple[str, Any, str]]:
        entries = [Entry(data, claim.key, claim.tenant, claim.message) for claim, data in claims.values()]
        try:
            with lent(connection, run) as handle, handling_set(self.inbox.scope, [claim.message for claim, _ in claims.values()]):
                running_all = handle.call(self.handler.all, handle.connection, entries)
                replies = await limited(running_all, self.inbox.handler_timeout)
        except TimeoutError as late:
            # Each half might take as long again.
            raise _Failed(None, is_alone=True) from late
        check_open(connection)
        ends = {}
        for place, reply in zip(claims, replies):
            try:
                ends[place] = ended(reply)
            except Exception as error:
                raise _Failed(place) from error
        return ends

    async def _settled(self, connection: Any, claims: dict, replies: dict, outcome: _Outcome, run: Run) -> None:
        stored = {place: end for place, end in replies.items() if end[2] != "null" or end[0] == "rejected"}
        tenants, keys = ([getattr(claims[place][0], name) for place in stored] for name in ("tenant", "key"))
        back = outcome.left + outcome.given_back
        left_tenants, left_keys = ([getattr(claims[place][0], name) for place in back] for name in ("tenant", "key"))
        texts, statuses = [end[2] for end in stored.values()], [end[0] for end in stored.values()]
        parameters = [run.session, self.inbox.scope, tenants, keys, texts, statuses, left_tenants, left_keys]
        await execute_all(connection, self._settle, parameters)
