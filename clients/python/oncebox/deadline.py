"""The end of a step on a connection that does not answer, as when the network swallows packets."""

import asyncio
from typing import Any

import psycopg
from psycopg import AsyncConnection

from .wire import shut


class Deadline:
    """Ends the socket of a connection when a step on it takes too long, so that the step fails.

    A step that is cancelled instead asks the server to cancel it, and waits for the socket again.
    """

    def __init__(self, seconds: float):
        self.seconds, self._is_over = seconds, False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: Any, more: float = 0.0) -> None:
        """Begins a step, which ends the one before; it has so many seconds more than other steps."""
        self.pause()
        self._timer = asyncio.get_running_loop().call_later(self.seconds + more, self._cut, connection)

    def __enter__(self) -> "Deadline":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.pause()
        if self._is_over and isinstance(error, psycopg.OperationalError):
            raise psycopg.OperationalError(
                f"PostgreSQL did not answer for {self.seconds:g} s, so the connection was closed"
            ) from error

    def pause(self) -> None:
        """No step is under way."""
        if self._timer is not None:
            self._timer.cancel()

    def _cut(self, connection: Any) -> None:
        self._is_over = True
        shut(connection) if isinstance(connection, AsyncConnection) else connection.cut()
