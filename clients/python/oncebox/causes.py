"""Why an error was raised: the errors that it was raised from, and the members of groups."""

import json
import re
from itertools import islice
from typing import Iterator, TypeVar

# A lost race: serialization_failure and deadlock_detected.
CONFLICTS = ("40001", "40P01")
# The server is read-only, ends, or has ended the connection: the next one may be better.
USELESS = ("08", "25006", "25P03", "57P")
DEPTH_MAX = 100
Kind = TypeVar("Kind", bound=BaseException)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and all that have led to it, the nearest first."""
    waiting, seen = [error], set()
    while waiting and len(seen) < DEPTH_MAX:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        waiting += found.exceptions if isinstance(found, BaseExceptionGroup) else ()
        waiting += [found.__cause__] if found.__cause__ is not None else []


def cause(error: BaseException, *kinds: type[Kind]) -> Kind | None:
    """The nearest cause of these kinds."""
    return next((found for found in causes(error) if isinstance(found, kinds)), None)


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE that any driver of PostgreSQL gives."""
    states = (getattr(found, name, None) for found in causes(error) for name in ("sqlstate", "pgcode"))
    return next((state for state in states if isinstance(state, str)), None)


def is_conflict(error: BaseException) -> bool:
    return sqlstate(error) in CONFLICTS


def is_useless(error: BaseException) -> bool:
    """Whether no later statement on this connection can do better."""
    return (sqlstate(error) or "").startswith(USELESS)


def first_line(error: BaseException) -> str:
    """The first line of an error's name and text, which it may fail to say, and the fields that it names."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be read"
    fields = fields_of(error)
    return f"{type(error).__name__}: {text or repr(error)}".partition("\n")[0] + (f" ({fields})" if fields else "")


def reason_of(error: BaseException) -> str:
    """Why a run failed: the error, and those that have led to it."""
    return " < ".join(first_line(found) for found in islice(causes(error), 4))


def fields_of(error: BaseException) -> str:
    """The fields that do not fit, without their values: of Pydantic, msgspec, jsonschema, and json itself."""
    try:
        if isinstance(error, json.JSONDecodeError):
            return f"{error.msg}, at character {error.pos}"
        if hasattr(error, "json_path"):
            return str(error.json_path)
        if callable(errors := getattr(error, "errors", None)):
            found = errors(include_url=False, include_context=False, include_input=False)
            return ", ".join(f"{'.'.join(map(str, each['loc']))}: {each['type']}" for each in found[:5])
        return "".join(re.findall(r"`(\$[^`]*)`$", str(error))) if isinstance(error, ValueError) else ""
    except Exception:
        return ""
