"""Connections of other libraries than psycopg's AsyncConnection, as the inbox uses them.

A port sends the inbox's statements through the user's library, in one transaction, and hands the handler
what that library's users write through. Errors of the inbox's statements are psycopg's. A library that
blocks lives in a thread of the message's own, and so does its handler, which is a plain function.
"""

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Sequence

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from .causes import sqlstate
from .wire import Lent, complete, rows, shut


class _Library:
    """A connection, as psycopg's pool of connections that block has it; others differ from it."""

    def open(self, pool: Any, seconds: float) -> None:
        self.pool, self.connection = pool, pool.getconn(seconds)

    def driver(self) -> Any:
        return self.connection

    def rows(self, statement: str, parameters: Sequence) -> list[tuple]:
        return complete(rows(self.connection, statement, parameters))

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def lend(self) -> Any:
        self.lent = Lent(self.connection)
        return self.lent

    def finish(self) -> Any:
        """Sends what the library has not sent yet."""

    def revoke(self) -> None:
        self.lent.__dict__["is_over"] = True

    def release(self, is_spoiled: bool) -> Any:
        if is_spoiled:
            self.connection.close()
        self.pool.putconn(self.connection)


class _Asyncpg(_Library):
    begun: Any = None

    async def open(self, pool: Any, seconds: float) -> None:
        self.pool, self.connection = pool, await pool.acquire(timeout=seconds)

    async def rows(self, statement: str, parameters: Sequence) -> list[tuple]:
        if self.begun is None:
            # Begun by hand, the handler could have no savepoints.
            self.begun = self.connection.transaction()
            await self.begun.start()
        return await rows(self.connection, statement, parameters)

    async def commit(self) -> None:
        begun, self.begun = self.begun, None
        if begun is not None:
            await begun.commit()

    async def rollback(self) -> None:
        begun, self.begun = self.begun, None
        if begun is not None:
            await begun.rollback()

    async def release(self, is_spoiled: bool) -> None:
        if is_spoiled:
            self.connection.terminate()
        await self.pool.release(self.connection)


class _Engine(_Library):
    """SQLAlchemy. A COMMIT of the handler's session releases a savepoint."""

    def open(self, engine: Any, seconds: float) -> None:
        self.pool, self.connection = engine, getattr(engine, "sync_engine", engine).connect()

    def driver(self) -> Any:
        return self.connection.connection.driver_connection

    def lend(self) -> Any:
        settings = {"join_transaction_mode": "create_savepoint", "expire_on_commit": False}
        if hasattr(self.pool, "sync_engine"):
            from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

            session = AsyncSession(AsyncConnection(self.pool, self.connection), **settings)
            self.lent = session.sync_session
            return session
        from sqlalchemy.orm import Session

        self.lent = Session(self.connection, **settings)
        return self.lent

    def finish(self) -> None:
        self.lent.commit()

    def revoke(self) -> None:
        self.lent.bind = None

    def release(self, is_spoiled: bool) -> None:
        if is_spoiled:
            self.connection.invalidate()
        self.connection.close()


class _Django(_Library):
    """Django. A handler uses its models; `on_commit` runs after the COMMIT."""

    begun: Any = None

    def open(self, connection: Any, seconds: float) -> None:
        from django.db import connections

        # Django has a connection for each thread, and this one ends with the message.
        self.connection = connections[connection.alias]
        self.connection.ensure_connection()

    def driver(self) -> Any:
        return self.connection.connection

    def rows(self, statement: str, parameters: Sequence) -> list[tuple]:
        if self.begun is None:
            from django.db import transaction

            self.begun = transaction.atomic(self.connection.alias, durable=True)
            self.begun.__enter__()
        return super().rows(statement, parameters)

    def commit(self) -> None:
        begun, self.begun = self.begun, None
        if begun is not None:
            begun.__exit__(None, None, None)

    def rollback(self) -> None:
        if self.begun is not None:
            self.connection.needs_rollback = True
        self.commit()

    def lend(self) -> Any:
        return self.connection

    def revoke(self) -> None: ...

    def release(self, is_spoiled: bool) -> None:
        if is_spoiled and self.connection.connection is not None:
            self.connection.connection.close()
        # With the option `pool` it goes back there.
        self.connection.close()


class Port:
    """A connection of a library, and its transaction."""

    autocommit = False

    def __init__(self, source: Any, library: _Library, kind: str):
        self._source, self._library, self._kind, self.is_spoiled = source, library, kind, False
        self.is_blocking = kind == "thread"
        # It starts with the first step.
        self._thread = ThreadPoolExecutor(1, "oncebox") if self.is_blocking else None
        self._driver: Any = None

    async def open(self, seconds: float) -> None:
        try:
            await self._do(self._library.open, self._source, seconds)
            self._driver = await self._do(self._library.driver)
        except BaseException:
            self._end_thread()
            raise

    async def rows(self, statement: str, parameters: Sequence = ()) -> list[tuple]:
        return await self._do(self._library.rows, statement, parameters)

    async def each(self, text: str, parameters: Sequence = ()) -> list[tuple]:
        """The statements of a text, and the first row of each that has rows."""
        firsts, left = [], list(parameters)
        for statement in filter(None, (part.strip() for part in text.split("; "))):
            if statement in ("COMMIT", "ROLLBACK"):
                await (self.commit() if statement == "COMMIT" else self.rollback())
                continue
            count = statement.count("%s")
            firsts += (await self.rows(statement, left[:count]))[:1]
            del left[:count]
        return firsts

    async def commit(self) -> None:
        await self._do(self._library.commit)

    async def rollback(self) -> None:
        await self._do(self._library.rollback)

    def lend(self) -> Any:
        """What the handler writes through, until `revoke`."""
        self.revoke = self._library.revoke
        return self._library.lend()

    async def finish(self) -> None:
        await self._do(self._library.finish)

    async def call(self, handler: Any, *given: Any) -> Any:
        """Runs the handler, and what it has left to be written."""
        if self._thread is None:
            result = await handler(*given)
            await self.finish()
            return result
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._called, handler, *given)
        except asyncio.CancelledError:
            self.cut()  # the thread goes on, and its next statement fails
            raise

    def _called(self, handler: Any, *given: Any) -> Any:
        result = handler(*given)
        self._library.finish()
        return result

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, as far as the driver can say."""
        is_in = getattr(self._driver, "is_in_transaction", None)
        return is_in() if is_in is not None else self._driver.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def cut(self) -> None:
        """Ends the connection: what waits for it fails."""
        self.is_spoiled = True
        terminate = getattr(self._driver, "terminate", None)
        terminate() if terminate is not None else shut(self._driver)

    async def release(self) -> None:
        try:
            await self._do(self._library.release, self.is_spoiled)
        except psycopg.Error:
            pass  # it is broken, and its pool knows
        finally:
            self._end_thread()

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _do(self, step: Any, *given: Any) -> Any:
        try:
            if self._thread is not None:
                return await asyncio.get_running_loop().run_in_executor(self._thread, step, *given)
            if self._kind == "greenlet":
                from sqlalchemy.util import greenlet_spawn

                return await greenlet_spawn(step, *given)
            result = step(*given)
            return await result if inspect.isawaitable(result) else result
        except psycopg.Error:
            raise
        except Exception as error:
            raise as_psycopg(error) from error


def as_psycopg(error: Exception) -> psycopg.Error:
    """An error of a library, as the inbox tells errors apart."""
    try:
        kind = psycopg.errors.lookup(sqlstate(error) or "")
    except KeyError:
        kind = psycopg.OperationalError
    return kind(f"{type(error).__name__}: {error}")


def check_size(source: Any, needed: int, use: str) -> None:
    """Fails when a pool is known to be smaller than this use of it needs."""
    if (size := size_of(source)) is not None and size < needed:
        raise ValueError(f"{use} needs {needed} connections at once, and the pool has {size}: make it larger")


def size_of(source: Any) -> int | None:
    """How many connections a pool has at most; None when it does not say, or has no limit."""
    if hasattr(source, "get_max_size"):  # asyncpg's
        return source.get_max_size()
    pool = source if hasattr(source, "max_size") else getattr(source, "pool", None)  # an engine's, or Django's
    if callable(size := getattr(pool, "size", None)) and (overflow := getattr(pool, "_max_overflow", None)) is not None:
        return None if overflow < 0 else size() + overflow
    return getattr(pool, "max_size", None)


def port_of(source: Any) -> Port | None:
    """A port to this pool, engine or connection of Django's; None for psycopg's own AsyncConnectionPool."""
    if isinstance(source, AsyncConnectionPool):
        return None
    if isinstance(source, ConnectionPool):
        return Port(source, _Library(), "thread")
    if hasattr(source, "acquire"):
        return Port(source, _Asyncpg(), "task")
    if hasattr(source, "alias"):
        return Port(source, _Django(), "thread")
    return Port(source, _Engine(), "greenlet" if hasattr(source, "sync_engine") else "thread")
