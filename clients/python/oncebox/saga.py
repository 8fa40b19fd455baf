"""Sagas: starting one, the barrier before a participant's actions and compensations, and its answers."""

from enum import StrEnum
from typing import Any, NamedTuple

from .causes import first_line, sqlstate
from .headers import matches, single
from .keys import check_key, step_key
from .message import Context, Reject
from .outbox import enqueue, to_json
from .sql import Typed, called, named
from .wire import execute, rows

# Why a saga is not started, by the SQLSTATE.
_REFUSALS = {"OB002": "business_id", "OB011": "data", "OB015": "definition", "OB016": "used"}


class Started(NamedTuple):
    """A saga: its id, its key, such as `4711:order`, and whether this call has started it."""

    id: int
    key: str
    is_new: bool


class SagaRefused(Exception):
    """Raised by `start_saga`; the transaction is aborted. `reason` is `business_id` (it cannot be part of a key),
    `data` (the definition does not read them), `definition` (none of this type is registered) or `used`
    (the business id has been used before, with other data or for another saga)."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason = reason


async def start_saga(connection: Any, type: str, business_id: str, data: Any, *, version: int | None = None, schema: str = "oncebox") -> Started:
    """Starts a saga of a registered definition in the caller's transaction; the connection is one of those that
    `enqueue` takes, and data are sent as JSON. The same start again returns the same saga. The version is that of the
    definition; without one it is the newest."""
    arguments = {"type": type, "business_id": business_id, "data": Typed("jsonb", to_json(data).decode())}
    if version is not None:
        arguments["version"] = Typed("int", str(version))
    statement, parameters = called("start_saga", "id::text, key, is_new::text", **arguments)
    try:
        [(id, key, is_new)] = await rows(connection, named(schema, statement), parameters)
    except Exception as error:
        if (reason := _REFUSALS.get(sqlstate(error) or "")) is None:
            raise
        raise SagaRefused(reason, f"saga {type} of {business_id} is not started: {first_line(error)}") from error
    return Started(int(id), key, is_new == "true")


class Action(StrEnum):
    """The decision for an action."""

    ACT = "act"  # have the effect
    ACTED = "acted"  # it had its effect before: answer as you did then
    REFUSED = "refused"  # its compensation came first, or another attempt is newer: never act, answer with a no


class Compensation(StrEnum):
    """The decision for a compensation."""

    UNDO = "undo"  # undo the action's effect
    NOTHING = "nothing"  # there is nothing to undo, which is a success
    WAIT = "wait"  # a leased run in Rust is under way: raise RetryAfter


class Barrier:
    """Stands before the actions and compensations of one kind in a service, such as `stock-service:reserve`.

    In any order and number, the effect of one of the two remains. Both handlers use a barrier of the
    same name, in the same database. Never rename one while sagas are under way.
    """

    def __init__(self, name: str, *, schema: str = "oncebox"):
        if not 1 <= len(name) <= 255 or not all("!" <= character <= "~" for character in name):
            raise ValueError(f"barrier {name!r} is not named by 1 to 255 bytes of visible ASCII")
        self.name, self.schema = name, schema

    async def action(self, cx: Context) -> Action:
        """Before the effect of an action: whether it may have it. Call `had_no_effect` if you refuse the command then."""
        return Action(await self._ask("enter_action", cx, is_leased=False))

    async def had_no_effect(self, cx: Context) -> None:
        """For an action that may act, but rejects the command: there is nothing to undo."""
        await self._ask("end_action", cx, had_effect=False)

    async def compensation(self, cx: Context) -> Compensation:
        """Before a compensation undoes anything; its key is the action's with `:undo` behind it."""
        return Compensation(await self._ask("enter_compensation", cx, is_leased=False))

    async def has_undone_nothing(self, cx: Context) -> None:
        """For a compensation that was told to undo, but rejects the command: the next attempt may undo."""
        await self._ask("end_compensation", cx, has_undone=False)

    async def _ask(self, function: str, cx: Context, **told: bool) -> str:
        key, attempt = _action(cx, is_undo=function.endswith("compensation"))
        attempt = Typed("int", str(attempt))
        statement, parameters = called(function, barrier=self.name, tenant=cx.tenant, key=key, attempt=attempt, **told)
        (answer,) = await execute(cx.connection, named(self.schema, statement), parameters)
        return answer


class Replier:
    """Answers commands on the subjects that a participant allows, such as `sagas.replies` or `sagas.*.replies`, and on no
    other: anybody who may send a command could make this service publish anywhere."""

    def __init__(self, *allowed: str, schema: str = "oncebox"):
        self.allowed, self.schema = allowed, schema

    async def reply(self, cx: Context, result: Any = None) -> bool:
        """Enqueues the answer to a command in the handler's transaction; `result` is what the handler returns then.

        Returns whether it was: not when the command names no subject, nor once more for a copy.
        """
        subject = single(cx.message.headers, "oncebox-reply-to")
        if subject is None:
            return False
        if not any(matches(pattern.split("."), subject.split(".")) for pattern in self.allowed):
            raise ValueError(f"the command asks for its answer on subject {subject}, and {', '.join(self.allowed)} is allowed")
        word, payload = ("rejected", result.reply) if isinstance(result, Reject) else ("done", result)
        headers = {"Reply-Outcome": word, "In-Reply-To": cx.key}
        if cx.scope.strip():
            headers["Reply-Scope"] = cx.scope.strip()
        ordering_key = single(cx.message.headers, "oncebox-ordering-key")
        key = step_key(cx.key, "reply")
        sent = await enqueue(cx.connection, key, subject, payload, headers=headers, ordering_key=ordering_key, schema=self.schema)
        return sent is not None


def _action(cx: Context, is_undo: bool) -> tuple[str, int]:
    """The key of the action, which all its attempts share, and the number of this attempt."""
    key = cx.key.removesuffix(":undo")
    if (key != cx.key) != is_undo:
        raise ValueError(f"key {cx.key} is {'not ' if is_undo else ''}that of a compensation")
    number = single(cx.message.headers, "saga-attempt") or ""
    bare = key.removesuffix(f":#{number}")
    if bare == key or not number.isdecimal() or not 1 < int(number) < 1 << 31:
        return key, 1
    return check_key(bare), int(number)
