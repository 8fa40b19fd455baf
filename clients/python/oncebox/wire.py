"""What is sent to PostgreSQL for the library itself, whatever a user has set on the connection.

Parameters and answers are texts and bytes, of adapters of our own: row factories, classes of cursors,
loaders and dumpers of the pool, of the connection or of the process change nothing here.
"""

from typing import Any, Sequence

import psycopg
from psycopg import AsyncClientCursor, AsyncConnection, AsyncCursor
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.rows import tuple_row
from psycopg.types.string import BytesBinaryDumper, BytesDumper

Parameters = Sequence[str | bytes | None | list]

# The session as a handler may change it for good. What it sets for its transaction ends with COMMIT.
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
    def __init__(self, connection: AsyncConnection):
        super().__init__(connection, row_factory=tuple_row)
        self._adapters = ADAPTERS


class _Cursor(_Ours, AsyncCursor):
    pass


class _ClientCursor(_Ours, AsyncClientCursor):
    pass


async def execute(connection: AsyncConnection, statement: str, parameters: Parameters = ()) -> tuple | None:
    """Executes a statement whose columns are of type text, and returns its first row, if it has one."""
    cursor = await _Cursor(connection).execute(statement, parameters)
    return await cursor.fetchone() if cursor.description else None


async def execute_rows(connection: AsyncConnection, statement: str, parameters: Parameters = ()) -> list[tuple]:
    """Executes a statement whose columns are of type text, and returns its rows."""
    return await (await _Cursor(connection).execute(statement, parameters)).fetchall()


async def execute_all(connection: AsyncConnection, text: str, parameters: Parameters = ()) -> list[tuple]:
    """Executes statements in one round trip, none behind an error, and returns the first row of each that has rows."""
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

    It is a copy, so that what the handler sets on it stays with it; both have one lock and one socket.
    """

    def __init__(self, connection: AsyncConnection):
        self.connection = object.__new__(type(connection))
        self.connection.__dict__.update(connection.__dict__)
        self.connection._adapters = AdaptersMap(connection.adapters)
        self.connection.commit = self.connection.rollback = self.connection.close = _not_yours

    def revoke(self) -> None:
        """Whatever is still to be done with it fails. A statement that is at the server goes on."""
        self.connection.wait = self.connection.execute = _ended


async def _not_yours(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the inbox ends a handler's transaction: return to commit, raise to roll back")


async def _ended(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the handler has ended: await all work with cx.connection before it returns")
