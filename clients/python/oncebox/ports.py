"""Connections of other libraries than psycopg's AsyncConnection, as the inbox uses them.

A port sends the inbox's statements through the user's library, in one transaction, and hands the handler
what that library's users write through. Errors of the inbox's statements are psycopg's. A library that
blocks lives in a thread of the message's own, and so does its handler, which is a plain function.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Sequence

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from .causes import sqlstate
from .wire import Lent, complete, rows, shut


class _Asyncpg:
    async def open(self, pool: Any, seconds: float) -> None:
        self.pool, self.connection, self.begun = pool, await pool.acquire(timeout=seconds), None

    async def driver(self) -> Any:
        return self.connection

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

    def lend(self) -> Any:
        self.lent = Lent(self.connection)
        return self.lent

    async def finish(self) -> None: ...

    def revoke(self) -> None:
        self.lent.__dict__["is_over"] = True

    async def release(self, is_spoiled: bool) -> None:
        if is_spoiled:
            self.connection.terminate()
        await self.pool.release(self.connection)


class _Engine:
    """SQLAlchemy. A COMMIT of the handler's session releases a savepoint."""

    def open(self, engine: Any, seconds: float) -> None:
        self.connection = engine.connect()

    def driver(self) -> Any:
        return self.connection.connection.driver_connection

    def rows(self, statement: str, parameters: Sequence) -> list[tuple]:
        return complete(rows(self.connection, statement, parameters))

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def lend(self) -> Any:
        from sqlalchemy.orm import Session

        self.session = Session(self.connection, join_transaction_mode="create_savepoint", expire_on_commit=False)
        return self.session

    def finish(self) -> None:
        self.session.commit()

    def revoke(self) -> None:
        self.session.bind = None

    def release(self, is_spoiled: bool) -> None:
        if is_spoiled:
            self.connection.invalidate()
        self.connection.close()


class _AsyncEngine:
    async def open(self, engine: Any, seconds: float) -> None:
        self.connection = await engine.connect()

    async def driver(self) -> Any:
        return (await self.connection.get_raw_connection()).driver_connection

    async def rows(self, statement: str, parameters: Sequence) -> list[tuple]:
        return await rows(self.connection, statement, parameters)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    def lend(self) -> Any:
        from sqlalchemy.ext.asyncio import AsyncSession

        self.session = AsyncSession(self.connection, join_transaction_mode="create_savepoint", expire_on_commit=False)
        return self.session

    async def finish(self) -> None:
        await self.session.commit()

    def revoke(self) -> None:
        self.session.sync_session.bind = None

    async def release(self, is_spoiled: bool) -> None:
        if is_spoiled:
            await self.connection.invalidate()
        await self.connection.close()


class _Pool(_Engine):
    """psycopg's pool of connections that block."""

    def open(self, pool: Any, seconds: float) -> None:
        self.pool, self.connection = pool, pool.getconn(seconds)

    def driver(self) -> Any:
        return self.connection

    def lend(self) -> Any:
        self.lent = Lent(self.connection)
        return self.lent

    def finish(self) -> None: ...

    def revoke(self) -> None:
        self.lent.__dict__["is_over"] = True

    def release(self, is_spoiled: bool) -> None:
        if is_spoiled:
            self.connection.close()
        self.pool.putconn(self.connection)


class _Django(_Engine):
    """Django. A handler uses its models; `on_commit` runs after the COMMIT."""

    def open(self, connection: Any, seconds: float) -> None:
        from django.db import connections, transaction

        # Django has a connection for each thread.
        self.connection = connections[connection.alias]
        self.connection.close_if_unusable_or_obsolete()
        self.connection.ensure_connection()
        self.block = lambda: transaction.atomic(connection.alias, durable=True)
        self.begun = None

    def driver(self) -> Any:
        return self.connection.connection

    def rows(self, statement: str, parameters: Sequence) -> list[tuple]:
        if self.begun is None:
            self.begun = self.block()
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

    def finish(self) -> None: ...

    def revoke(self) -> None: ...

    def release(self, is_spoiled: bool) -> None:
        # The thread ends.
        self.connection.close()


class Port:
    """A connection of a library, and its transaction."""

    autocommit = False

    def __init__(self, source: Any, library: Any, is_blocking: bool):
        self._source, self._library, self.is_spoiled = source, library, False
        self.is_blocking = is_blocking
        # It starts with the first step.
        self._thread = ThreadPoolExecutor(1, "oncebox") if is_blocking else None
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
        self.revoke, self.finish = self._library.revoke, self._library.finish
        return self._library.lend()

    async def call(self, handler: Any, *given: Any) -> Any:
        """Runs the handler, and what it has left to be written."""
        if self._thread is None:
            result = await handler(*given)
            await self._library.finish()
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
            if self._thread is None:
                return await step(*given)
            return await asyncio.get_running_loop().run_in_executor(self._thread, step, *given)
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


def port_of(source: Any) -> Port | None:
    """A port to this pool, engine or connection of Django's; None for psycopg's own AsyncConnectionPool."""
    if isinstance(source, AsyncConnectionPool):
        return None
    if isinstance(source, ConnectionPool):
        return Port(source, _Pool(), True)
    if hasattr(source, "sync_engine"):
        return Port(source, _AsyncEngine(), False)
    if hasattr(source, "acquire"):
        return Port(source, _Asyncpg(), False)
    if hasattr(source, "alias"):
        return Port(source, _Django(), True)
    return Port(source, _Engine(), True)
