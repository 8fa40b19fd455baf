"""The functions of the schema, called through the user's pool, each in a transaction of its own."""

import logging
from datetime import timedelta
from typing import Any

import psycopg

from .sql import called, named
from .transaction import Unattempted, connected
from .wire import Parameters, execute

log = logging.getLogger("oncebox")


class Database:
    """A pool and a schema; `step_timeout` is how many seconds it may take to get a connection, and each step on it."""

    def __init__(self, pool: Any, schema: str, step_timeout: float):
        self.pool, self.schema, self.step_timeout = pool, schema, step_timeout

    def sql(self, text: str) -> str:
        return named(self.schema, text)

    async def ask(self, statement: str, parameters: Parameters = (), wait: float | None = None) -> tuple:
        try:
            async with connected(self.pool, self.step_timeout, wait, autocommit=True) as (connection, _):
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
