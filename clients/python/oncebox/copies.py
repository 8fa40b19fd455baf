"""Copies: messages whose keys have ended. While they come they are looked up together, before a worker has them.

A copy needs no transaction and no handler, only to be acknowledged. A first delivery must not pay for that: messages
are looked up that were delivered before, and those that follow a copy, as long as half of them are copies.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg

from . import large
from .inbox import Inbox, fingerprint
from .life import Unreadable
from .message import Message, Verdict
from .queue import Held, Queue

# How many are looked up at once, and how many wait for it.
MOST = 256
# Longer than these seconds they do not wait for a connection: then the workers have them all.
WAIT = 1.0


class Copies:
    """Stands before a queue; `settle` acknowledges a copy."""

    def __init__(self, inbox: Inbox, queue: Queue, settle: Callable[[Held, Verdict], Awaitable[None]]):
        self.inbox, self.queue, self._settle = inbox, queue, settle
        self.waiting: list[Held] = []
        self.are_expected = False
        self._looking: asyncio.Task | None = None

    def push(self, msg: Msg, message: Message) -> None:
        """Looks the message up, if it may be a copy or comes behind such a one, and gives others to the queue."""
        may_be = self.are_expected or self.waiting or message.deliveries > 1
        if not may_be or self.inbox.lease is not None or message.origin in self.queue:
            self.queue.push(msg, message)
            return
        self.waiting.append(Held(msg, message))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    def take(self) -> list[Held]:
        """Takes out all that wait."""
        taken, self.waiting = self.waiting, []
        return taken

    async def _look(self) -> None:
        while waiting := self.waiting:
            group = waiting[:MOST]
            answers = await self._answers([held.message for held in group])
            if waiting is not self.waiting:
                continue  # they were taken out
            del waiting[: len(group)]
            copies = [(held, name) for held, name in zip(group, answers) if name]
            for held, name in zip(group, answers):
                if not name:
                    self.queue.push(held.msg, held.message)
            for held, name in copies:
                await self._settle(held, Verdict(name))
            self.are_expected = 2 * len(copies) >= len(group)

    async def _answers(self, messages: list[Message]) -> list[str]:
        """An empty answer means that the message is to be claimed."""
        answers, places, claims = [""] * len(messages), [], []
        for place, message in enumerate(messages):
            # The key of one without a key is not known, nor is the payload of one that is elsewhere.
            with contextlib.suppress(Unreadable):
                if not large.is_elsewhere(message):
                    claims.append(self.inbox.identify(message))
                    places.append(place)
        if not claims:
            return answers
        fields = [claim.tenant for claim in claims], [claim.key for claim in claims], [_bytea(fingerprint(claim.message)) for claim in claims]
        statement = "SELECT array_to_string({schema}.look_up_copies(%s, %s::text::text[], %s::text::text[], %s::text::bytea[]), ',', '')"
        # Where the look fails, the claim tells why.
        with contextlib.suppress(Exception):
            (found,) = await self.inbox.database.ask(statement, [self.inbox.scope, *map(_array, fields)], wait=WAIT)
            for place, name in zip(places, found.split(",")):
                answers[place] = name
        return answers


def _array(texts: list[str]) -> str:
    """An array as PostgreSQL writes it. From a list psycopg makes it in a third of the time of a look."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return '{"' + '","'.join(quoted) + '"}'


def _bytea(value: bytes) -> str:
    return "\\x" + value.hex()
