"""Calls of the schema's functions by the names of their arguments, as texts, which every library sends alike."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

_TYPES = {str: "", bool: "::bool", int: "::bigint", float: "::float8", UUID: "::uuid", datetime: "::timestamptz", timedelta: "::interval"}


class Typed(NamedTuple):
    """A text, or a list of them, that is of this type in SQL, where its type in Python does not say it."""

    type: str
    text: str | list


def named(schema: str, statement: str) -> str:
    """The statement with the name of the schema."""
    return statement.replace("{schema}", '"' + schema.replace('"', '""') + '"')


def called(function: str, columns: str = "f::text", **arguments: Any) -> tuple[str, list]:
    """The statement that calls a function, and its parameters."""
    places = ", ".join(f"{name} => {'NULL' if value is None else f'%s::{_type(value)}'}" for name, value in arguments.items())
    parameters = [_sent(value) for value in arguments.values() if value is not None]
    return f"SELECT {columns} FROM {{schema}}.{function}({places}) AS f", parameters


def _type(value: Any) -> str:
    if isinstance(value, Typed):
        # Bytes travel as bytes.
        return value.type if value.type == "bytea[]" else f"text{'[]' * isinstance(value.text, list)}::{value.type}"
    return "bytea" if isinstance(value, bytes) else "text" + next(cast for kind, cast in _TYPES.items() if isinstance(value, kind))


def _sent(value: Any) -> str | bytes | list:
    if isinstance(value, (bytes, str)):
        return value
    if isinstance(value, Typed):
        return value.text
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} s"
    return value.isoformat() if isinstance(value, datetime) else str(value).lower()
