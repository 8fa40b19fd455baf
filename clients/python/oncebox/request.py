"""Who a request is: its key and its route."""

from typing import Any, Iterable, MutableMapping

from .keys import root_key
from .problem import Problem

Scope = MutableMapping[str, Any]


def client_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key of a request, or None when it has none. A header that comes several times must say the same
    each time: nobody can know which one the client means."""
    values = {value for name, value in headers if name.lower() == b"idempotency-key"}
    if not values:
        return None
    try:
        (value,) = values
        key = _unquoted(value.decode("ascii").strip(" \t"))
        root_key(key)
    except ValueError:
        raise Problem("key-malformed") from None
    return key


def _unquoted(text: str) -> str:
    """The string of a structured field (RFC 9651), or a bare token, as many clients send it."""
    if not text.startswith('"'):
        if any(character in text for character in '"\\,;'):
            raise ValueError("neither a string nor a token")
        return text
    content, characters = "", iter(text[1:-1])
    if len(text) < 2 or not text.endswith('"'):
        raise ValueError("the string is not closed")
    for character in characters:
        if character == "\\":
            character = next(characters, "")
            if character not in ('"', "\\"):
                raise ValueError("an escape of nothing")
        elif character == '"':
            raise ValueError("a quote within the string")
        content += character
    return content


def route_of(scope: Scope) -> str | None:
    """The template of the path, such as /orders/{id}, of the application's own router."""
    if (route := getattr(scope.get("route"), "path", None)) is not None:
        return route
    return _matched(getattr(scope.get("app"), "routes", ()), scope)


def _matched(routes: Iterable[Any], scope: Scope) -> str | None:
    for route in routes:
        match, child = route.matches(scope)
        if match.value == 0:  # Match.NONE
            continue
        path, inner = getattr(route, "path", ""), getattr(route, "routes", None)
        if not inner:
            return path or None
        found = _matched(inner, {**scope, **child})
        return None if found is None else path + found
    return None
