"""What is sent to PostgreSQL for the library itself, whatever a user has set on the connection.

Parameters and answers are texts and bytes, of adapters of our own: row factories, classes of cursors,
loaders and dumpers of the pool, of the connection or of the process change nothing here.
"""

import contextlib
import inspect
import socket
from typing import Any, Coroutine, Sequence

import psycopg
from psycopg import AsyncClientCursor, AsyncConnection, AsyncCursor
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.rows import tuple_row
from psycopg.types.string import BytesBinaryDumper, BytesDumper

Parameters = Sequence[str | bytes | None | list]

# The session as a handler may change it for good. A setting of its transaction ends with COMMIT.
SESSION = "concat_ws(' ', session_user, current_user, " + ", ".join(
    f"current_setting('{name}')"
    for name in (
        "search_path", "default_transaction_read_only", "default_transaction_isolation", "default_transaction_deferrable",
        "row_security", "session_replication_role", "lock_timeout", "DateStyle", "IntervalStyle", "TimeZone",
        "client_encoding", "standard_conforming_strings",
    )
) + ")"


class _Load(Loader):
    def load(self, data: Any) -> str:
        return bytes(data).decode()


class _Dump(Dumper):
    def dump(self, value: str) -> bytes:
        return value.encode()


ADAPTERS = AdaptersMap(psycopg.adapters)
ADAPTERS.register_loader("text", _Load)
ADAPTERS.register_dumper(str, _Dump)
for _dumper in (BytesDumper, BytesBinaryDumper):
    ADAPTERS.register_dumper(bytes, _dumper)


class _Ours:
    def __init__(self, connection: Any):
        super().__init__(connection, row_factory=tuple_row)
        self._adapters = ADAPTERS


class _Cursor(_Ours, AsyncCursor):
    pass


class _BlockingCursor(_Ours, psycopg.Cursor):
    pass


class _ClientCursor(_Ours, AsyncClientCursor):
    pass


async def execute(connection: Any, statement: str, parameters: Parameters = ()) -> tuple | None:
    """Executes a statement whose columns are of type text, and returns its first row, if it has one."""
    return next(iter(await rows(connection, statement, parameters)), None)


async def rows(connection: Any, statement: str, parameters: Parameters = ()) -> list[tuple]:
    """Executes a statement whose columns are of type text, through any library, and returns its rows.

    It waits only for libraries that do not block: `complete` runs it for the others."""
    if isinstance(connection, AsyncConnection):
        cursor = await _Cursor(connection).execute(statement, parameters)
        # In a pipeline nothing is known of the answer before it is fetched.
        return await cursor.fetchall() if cursor.description or connection.info.pipeline_status else []
    if hasattr(connection, "rows"):  # a port
        return await connection.rows(statement, parameters)
    if hasattr(connection, "get_bind"):  # a session of SQLAlchemy
        connection = connection.connection()
        connection = await connection if inspect.isawaitable(connection) else connection
    if hasattr(connection, "exec_driver_sql"):
        text = _numbered(statement) if connection.dialect.paramstyle == "numeric_dollar" else statement
        result = connection.exec_driver_sql(text, tuple(parameters) or None)
        result = await result if inspect.isawaitable(result) else result
        return [tuple(row) for row in result] if result.returns_rows else []
    if hasattr(connection, "fetchrow"):  # asyncpg
        return [tuple(row) for row in await connection.fetch(_numbered(statement), *parameters)]
    is_psycopg = isinstance(connection, psycopg.Connection)
    with _BlockingCursor(connection) if is_psycopg else connection.cursor() as cursor:
        cursor.execute(statement, tuple(parameters) or None)
        return list(cursor.fetchall()) if cursor.description else []


async def send(connection: AsyncConnection, statement: str) -> None:
    """Sends a statement, whose answer a pipeline takes in later."""
    await _Cursor(connection).execute(statement)


def complete(running: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        running.send(None)
    except StopIteration as done:
        return done.value
    running.close()
    raise TypeError("this connection does not block: await the function of the same name in `oncebox`")


def _numbered(statement: str) -> str:
    """$1, $2, .. in place of %s."""
    first, *others = statement.split("%s")
    return first + "".join(f"${n}{part}" for n, part in enumerate(others, 1))


async def execute_all(connection: AsyncConnection, text: str, parameters: Parameters = ()) -> list[tuple]:
    """Executes statements in one round trip, none behind an error, and returns the first row of each that has rows."""
    if not isinstance(connection, AsyncConnection):
        return await connection.each(text, parameters)
    # A cursor that puts parameters into the text costs more; without them, any sends it as it is.
    cursor, rows = _ClientCursor(connection) if parameters else _Cursor(connection), []
    await cursor.execute(text, parameters or None, prepare=False)
    while True:
        if cursor.description:
            rows.append(await cursor.fetchone())
        if not cursor.nextset():
            return rows


class Handle:
    """The connection as a handler gets it: only the inbox ends its transaction, and it ends with the handler.

    Of psycopg's it is a copy, so that what the handler sets on it stays with it; both have one lock and one socket.
    """

    def __init__(self, connection: Any):
        if not isinstance(connection, AsyncConnection):
            self.connection, self.call = connection.lend(), connection.call
            self.revoke, self.finish = connection.revoke, connection.finish
            return
        self.connection = object.__new__(type(connection))
        self.connection.__dict__.update(connection.__dict__)
        self.connection._adapters = AdaptersMap(connection.adapters)
        self.connection.commit = self.connection.rollback = self.connection.close = _not_yours

    async def call(self, handler: Any, *given: Any) -> Any:
        return await handler(*given)

    async def finish(self) -> None:
        """Sends what a library has not sent yet."""

    def revoke(self) -> None:
        """Whatever is still to be done with it fails. A statement that is at the server goes on."""
        self.connection.wait = self.connection.execute = _ended


class Lent:
    """A connection of a library as a handler gets it."""

    def __init__(self, connection: Any):
        self.__dict__.update(_connection=connection, is_over=False)

    def __getattr__(self, name: str) -> Any:
        if self.is_over:
            raise RuntimeError(ENDED)
        if name in ("commit", "rollback", "close", "terminate"):
            raise RuntimeError(NOT_YOURS)
        return getattr(self._connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._connection, name, value)


def close(connection: Any) -> None:
    """The connection is of no more use: its pool drops it."""
    if isinstance(connection, AsyncConnection):
        connection.pgconn.finish()
    else:
        connection.is_spoiled = True


def shut(connection: Any) -> None:
    """Ends the socket of psycopg's connections. Who waits for it sees its end, and closes it; closed here,
    its number might be another's."""
    with contextlib.suppress(OSError, psycopg.OperationalError):
        line = socket.socket(fileno=connection.fileno())
        try:
            line.shutdown(socket.SHUT_RDWR)
        finally:
            line.detach()


NOT_YOURS = "the inbox ends a handler's transaction: return to commit, raise to roll back"
ENDED = "the handler has ended: await all work with cx.connection before it returns"


async def _not_yours(*_: Any, **__: Any) -> Any:
    raise RuntimeError(NOT_YOURS)


async def _ended(*_: Any, **__: Any) -> Any:
    raise RuntimeError(ENDED)
