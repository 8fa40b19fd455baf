"""The messages that a consumer holds: of one ordering key one at a time, in the order in which they came."""

import asyncio
from collections import deque
from dataclasses import dataclass, replace

from nats.aio.msg import Msg

from . import large
from .message import Message, Origin


@dataclass(eq=False)
class Held:
    """A message that this process has not settled yet."""

    # None for a message of a stopped line, which the database has.
    msg: Msg | None
    message: Message
    # "behind" an earlier one of its ordering key, "ready", "running", "resting" until its next run, or "dropped".
    state: str = "behind"
    # Runs in a row that were no attempts.
    waits: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def line(self) -> str | None:
        """Its ordering key; what comes from a stopped line stands before all that the stream delivers."""
        return None if self.msg is None else self.message.ordering_key

    def again(self) -> None:
        """A run that failed counts like a delivery: the next one leaves a record."""
        self.message = replace(self.message, deliveries=self.message.deliveries + 1)


class Queue:
    """Bounded by its owner, who asks JetStream for no more than there is room for."""

    def __init__(self) -> None:
        # None tells a worker to end.
        self.ready: asyncio.Queue[Held | None] = asyncio.Queue()
        self._held: dict[Origin, Held] = {}
        self._lines: dict[str, deque[Held]] = {}
        self.is_closing = False

    def close(self, workers: int) -> None:
        """So many workers end once they have finished their messages."""
        self.is_closing = True
        for _ in range(workers):
            self.ready.put_nowait(None)

    def __contains__(self, origin: Origin | None) -> bool:
        return origin in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def active(self) -> int:
        """How many are ready or running."""
        return sum(held.state in ("ready", "running") for held in self._held.values())

    def all(self) -> list[Held]:
        return list(self._held.values())

    def push(self, msg: Msg | None, message: Message) -> None:
        """Adds a message. A copy of one that is held is dropped: the held one settles both."""
        if message.origin in self._held:
            return
        held = self._held[message.origin] = Held(msg, message)
        if (key := held.line) is not None:
            line = self._lines.setdefault(key, deque())
            line.append(held)
            if line[0] is not held:
                return
        self._promote(held)

    def take(self, first: Held, count: int) -> list[Held]:
        """The first, which is ready, and others that may share its transaction, in their order."""
        taken: list[Held] = []
        following: Held | None = first
        while following is not None:
            following.state = "running"
            taken.append(following)
            following = None if len(taken) == count else self._next_behind(taken[-1]) or self._next_ready()
        return taken

    def remove(self, held: Held) -> None:
        """It is settled, or given back; the one behind it is ready."""
        self._held.pop(held.message.origin, None)
        key = held.line
        if key is None or (line := self._lines.get(key)) is None:
            return
        if held in line:
            line.remove(held)
        if not line:
            del self._lines[key]
        elif line[0].state == "behind":
            self._promote(line[0])

    def rest(self, held: Held, seconds: float) -> None:
        """It runs again after so many seconds, or after those before it; those behind it wait."""
        line = self._lines.get(held.line or "", ())
        if line and line[0] is not held:
            held.state = "behind"
        else:
            held.state = "resting"
            held.timer = asyncio.get_running_loop().call_later(seconds, self._promote, held)

    def take_idle(self) -> list[Held]:
        """Takes out everything that no worker has."""
        while not self.ready.empty():
            self.ready.get_nowait()
        idle = [held for held in self._held.values() if held.state != "running"]
        for held in idle:
            held.state = "dropped"
            if held.timer is not None:
                held.timer.cancel()
            del self._held[held.message.origin]
        for key in list(self._lines):
            line = deque(held for held in self._lines[key] if held.state == "running")
            self._lines[key] = line
            if not line:
                del self._lines[key]
        return idle

    def _promote(self, held: Held) -> None:
        held.state, held.timer = "ready", None
        self.ready.put_nowait(held)

    def _next_ready(self) -> Held | None:
        held = None if self.ready.empty() else self.ready.get_nowait()
        if held is None and self.is_closing:
            self.ready.put_nowait(None)
        return held

    def _next_behind(self, held: Held) -> Held | None:
        """The one behind in its line. A payload that is elsewhere is handled by itself."""
        line = self._lines.get(held.line or "", ())
        place = line.index(held) + 1 if held in line else len(line)
        if place == len(line) or line[place].state != "behind" or large.is_elsewhere(held.message):
            return None
        return None if large.is_elsewhere(line[place].message) else line[place]
