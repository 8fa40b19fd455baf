"""Strict order behind a dead letter: later messages of its ordering key wait in the database, and follow it.

PostgreSQL decides which ones wait. A process only remembers whether any line of its scope may be stopped, and
asks nothing otherwise: inbox/src/inbox/lines.rs says why it never misses one.
"""

import json
import logging
from datetime import datetime, timedelta, timezone

from . import headers
from .inbox import Inbox
from .life import Unreadable, headers_of, printable
from .message import Message, Origin, Verdict
from .sql import Typed

log = logging.getLogger("oncebox")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Lines:
    """The stopped lines of an inbox; `behind_max`: how many messages of each may wait, None for none."""

    def __init__(self, inbox: Inbox, behind_max: int | None):
        self.inbox, self.behind_max = inbox, behind_max
        # A message of a line has ended: the next one may run.
        self.have_moved = False
        # How many dead letters were seen, and how many when no line was stopped.
        self._seen = self._free = 0
        self._is_full = False

    @property
    def are_stopped(self) -> bool:
        """Whether a line may be stopped."""
        return self._seen > self._free

    def note_dead(self) -> None:
        """A message is a dead letter: that is committed."""
        self._seen += 1

    async def follow(self) -> None:
        """Called when the place in the stream is known: each message that died before is known to the database then."""
        most = None if self.behind_max is None else str(self.behind_max)
        (stopped,) = await self._ask("SELECT {schema}.follow_lines(%s, %s::text::integer)::text", most)
        if stopped == "true":
            self.note_dead()

    def may_have_to_wait(self, message: Message) -> bool:
        """Whether a message must ask for its place before its claim."""
        return self.behind_max is not None and self.are_stopped and message.in_line is None and message.ordering_key is not None

    async def wait(self, message: Message) -> Verdict | None:
        """Has a message wait behind the dead letter of its ordering key; None when it is to be claimed."""
        if not self.may_have_to_wait(message):
            return None
        try:
            claim = self.inbox.identify(message)
        except Unreadable:
            return None
        (place,) = await self.inbox.database.call(
            "wait_in_line", scope=self.inbox.scope, key=claim.key, payload=message.payload, subject=printable(message.subject),
            headers=Typed("jsonb", headers_of(message)), tenant=claim.tenant, **claim.place,
        )  # fmt: skip
        if place == "free":
            return None
        if place == "behind":
            return Verdict("in_line")
        if not self._is_full:
            text = "scope %s, key %s: as many messages as may wait behind a dead letter of ordering key %s: the next ones wait in the stream,"
            text += " and hold up the consumer when it holds no others: retry or discard the dead letter (logged once)"
            log.warning(text, self.inbox.scope, claim.key, message.ordering_key)
            self._is_full = True
        return Verdict("in_flight", after=self.inbox.life.pause())

    async def next(self, stream: str, after: int) -> Message | None:
        """The next message above this id that is to run from a line."""
        seen = self._seen
        columns = "id::text, since::text, subject, headers::text, encode(payload, 'hex'), stream_sequence::text,"
        columns += " (extract(epoch FROM stored_at) * 1000000)::bigint::text"
        statement = f"SELECT {columns} FROM {{schema}}.next_in_line(%s, %s, %s::text::bigint)"
        row = await self._ask(statement, stream, str(after))
        if row is None:
            self._free, self._is_full = max(self._free, seen), False
            return None
        place, since, subject, texts, payload, sequence, stored = row
        if place is None:
            return None
        sent = {name: values if isinstance(values, list) else [values] for name, values in json.loads(texts).items()}
        origin = Origin(stream, int(sequence), EPOCH + timedelta(microseconds=int(stored)))
        # It counts as delivered before: a run that ends its process is known then.
        return Message(subject, bytes.fromhex(payload), headers.joined(sent), origin, 2, sent, (int(place), since))

    async def end(self, in_line: tuple[int, str]) -> None:
        """Takes a message out of its line that has ended."""
        place, since = in_line
        await self._ask("SELECT {schema}.end_in_line(%s, %s::text::bigint, %s::text::bigint)::text", str(place), since)
        self.have_moved = True

    async def _ask(self, statement: str, *parameters: str | None) -> tuple | None:
        return await self.inbox.database.ask(statement, [self.inbox.scope, *parameters])
