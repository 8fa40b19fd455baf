"""The functions of the outbox, and the start of a saga, for connections that block: psycopg's, psycopg2's,
SQLAlchemy's Session and Connection, Django's `connection`. `wait` runs a barrier or a replier in a handler
that is a plain function."""

from functools import wraps
from typing import Any, Callable, Coroutine

from . import outbox, saga
from .wire import complete as wait

__all__ = ["cancel_delayed", "enqueue", "enqueue_all", "start_saga", "wait"]


def _blocking(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        return wait(function(*given, **named))

    return call


enqueue = _blocking(outbox.enqueue)
enqueue_all = _blocking(outbox.enqueue_all)
cancel_delayed = _blocking(outbox.cancel_delayed)
start_saga = _blocking(saga.start_saga)
