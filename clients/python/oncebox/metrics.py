"""Metrics of consumers, where the package prometheus-client is installed: names as in docs/metrics.md."""

import contextlib
from typing import Iterator

from .message import Verdict

try:
    from prometheus_client import Counter, Gauge, Histogram
except ImportError:
    Counter = None
else:
    _MESSAGES = Counter("oncebox_inbox_messages_total", "How messages ended", ["outcome", "scope"])
    _SECONDS = Histogram("oncebox_inbox_run_seconds", "How long handlers ran", ["scope"])
    _RUNNING = Gauge("oncebox_inbox_running", "Handlers that run now", ["scope"])
    _CONSUMING = Gauge("oncebox_inbox_consuming", "1 while a consumer pulls", ["scope"])

_OUTCOMES = {"handled": "done", "mismatch": "mismatched", "retry": "retried"}


def ended(scope: str, answer: Verdict | Exception) -> None:
    """Counts how a message has ended for now; `unavailable` means that PostgreSQL was away."""
    if Counter is not None:
        name = "unavailable" if isinstance(answer, Exception) else _OUTCOMES.get(answer.name, answer.name)
        if name != "behind":
            _MESSAGES.labels(name, scope).inc()


def consumes(scope: str, is_consuming: bool) -> None:
    if Counter is not None:
        _CONSUMING.labels(scope).set(is_consuming)


@contextlib.contextmanager
def running(scope: str) -> Iterator[None]:
    """Measures a run of a handler."""
    if Counter is None:
        yield
        return
    with _RUNNING.labels(scope).track_inprogress(), _SECONDS.labels(scope).time():
        yield
