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


def route_of(scope: Scope, app: Any) -> str | None:
    """The template of the path, such as /orders/{id}, of the application's own router; None when the router has
    no such route, so that the application answers 404 or 405. LookupError when it cannot be told."""
    if (route := getattr(scope.get("route"), "path", None)) is not None:
        return route
    routes = next((found for of in (scope.get("app"), app) if (found := getattr(of, "routes", None))), None)
    if routes is None:
        raise LookupError("the application has no routes to look at")
    # FastAPI notes things in the scope while it looks.
    return _matched(routes, {**scope, "fastapi": dict(scope.get("fastapi", {}))})


def _matched(routes: Iterable[Any], scope: Scope) -> str | None:
    for route in routes:
        match, child = route.matches(scope)
        # A partial match is one of the path, and not of the method: a later route may match as a whole.
        if match.value == 2:
            return _path(route, {**scope, **child})
    return None


def _path(route: Any, scope: Scope) -> str | None:
    if hasattr(route, "_match"):  # FastAPI's included router
        _, child, chosen, context = route._match(scope)
        if context is None:
            return _path(chosen, {**scope, **child})
        route, scope = context.starlette_route or context, {**scope, **child}
    path = getattr(route, "path", None)
    if path is None:
        raise LookupError(f"a {type(route).__name__} has no path")
    if not hasattr(route, "routes"):
        return path
    # Mounted: the route of the application that is mounted there.
    if not route.routes:
        raise LookupError(f"the application that is mounted at {path or '/'} has no routes to look at")
    found = _matched(route.routes, scope)
    return None if found is None else path + found
