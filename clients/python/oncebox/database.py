"""The functions of the schema, called through the user's pool, each in a transaction of its own."""

import logging
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.sql import SQL, Identifier

from .transaction import Unattempted, connected
from .wire import Parameters, execute

log = logging.getLogger("oncebox")

_TYPES = {str: "", bool: "::bool", int: "::bigint", float: "::float8", UUID: "::uuid", datetime: "::timestamptz", timedelta: "::interval"}


class Typed(NamedTuple):
    """A text that is of this type in SQL, where its type in Python does not say it."""

    type: str
    text: str


class Database:
    """A pool and a schema; `step_timeout` is how many seconds it may take to get a connection, and each step on it."""

    def __init__(self, pool: Any, schema: str, step_timeout: float):
        self.pool, self.schema, self.step_timeout = pool, schema, step_timeout

    def sql(self, text: str) -> str:
        return SQL(text).format(schema=Identifier(self.schema)).as_string()

    async def ask(self, statement: str, parameters: Parameters = ()) -> tuple:
        try:
            async with connected(self.pool, self.step_timeout) as (connection, _):
                return await execute(connection, self.sql(statement), parameters)
        except Unattempted as unattempted:
            raise unattempted.__cause__

    async def call(self, function: str, columns: str = "f::text", **arguments: Any) -> tuple:
        """Calls a function by the names of its arguments, and returns its first row."""
        return await self.ask(*called(function, columns, **arguments))

    async def register(self, scope: str, retention: timedelta | None, **more: str) -> None:
        """Records a scope and its retention; fails when the scope is in use in another mode."""
        try:
            await self.call("register_scope", scope=scope, retention=retention, **more)
        except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction) as error:
            error.add_note("run `oncebox migrate --database-url ..`, which makes or updates the schema")
            log.error("schema %s is missing, or older than this client: run `oncebox migrate --database-url ..`", self.schema)
            raise


def called(function: str, columns: str = "f::text", **arguments: Any) -> tuple[str, list]:
    """The statement that calls a function, and its parameters."""
    call, parameters = expression(function, **arguments)
    return f"SELECT {columns} FROM {call} AS f", parameters


def expression(function: str, **arguments: Any) -> tuple[str, list]:
    """A call of a function, and its parameters: texts, which every library sends alike."""
    places = ", ".join(f"{name} => {'NULL' if value is None else f'%s::{_type(value)}'}" for name, value in arguments.items())
    return f"{{schema}}.{function}({places})", [_text(value) for value in arguments.values() if value is not None]


def _type(value: Any) -> str:
    if isinstance(value, Typed):
        return f"text::{value.type}"
    return "bytea" if isinstance(value, bytes) else f"text{_TYPES[type(value)]}"


def _text(value: Any) -> str | bytes:
    if isinstance(value, (bytes, str)):
        return value
    if isinstance(value, Typed):
        return value.text
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} s"
    return value.isoformat() if isinstance(value, datetime) else str(value).lower()
