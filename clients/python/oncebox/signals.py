"""SIGTERM and SIGINT end every consumer of the process, and still reach who listened before."""

import asyncio
import contextlib
import signal
from typing import Any, Iterator

_stops: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
_former: dict[int, Any] = {}


@contextlib.contextmanager
def stop() -> Iterator[asyncio.Event]:
    """An event that is set by the next SIGTERM or SIGINT. Fails outside of the main thread."""
    event = asyncio.Event()
    if not _stops:
        for number in (signal.SIGTERM, signal.SIGINT):
            _former[number] = signal.signal(number, _stop_all)
    _stops[event] = asyncio.get_running_loop()
    try:
        yield event
    finally:
        del _stops[event]
        if not _stops:
            for number, former in _former.items():
                # A handler that was set since then stays.
                if signal.getsignal(number) is _stop_all:
                    signal.signal(number, former)


def _stop_all(number: int, frame: Any) -> None:
    for event, loop in _stops.items():
        loop.call_soon_threadsafe(event.set)
    former = _former[number]
    # Python's own handlers of SIGINT would end the process, or cancel work that must be finished.
    is_own = former is signal.default_int_handler
    is_own |= isinstance(getattr(getattr(former, "func", None), "__self__", None), asyncio.Runner)
    if callable(former) and not is_own:
        former(number, frame)
