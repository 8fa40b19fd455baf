"""For the tests of your own service: which messages a transaction has enqueued, handlers without NATS, crashes on
purpose, and a database for each test. See docs/testing.md."""

import asyncio
import contextlib
import json
import subprocess
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Awaitable, Callable, Iterator, Mapping, Sequence
from unittest import mock
from urllib.parse import urlsplit, urlunsplit

import psycopg

from . import effect, leased
from . import inbox as inboxes
from .database import Database
from .flow import Flow, FlowError
from .inbox import Inbox
from .leased import LeasedHandler
from .message import Context, Handler, Message, Verdict
from .outbox import to_json
from .sql import named
from .wire import execute

_ENQUEUED = (
    "SELECT json_agg(json_build_array(m.key, m.subject, encode(coalesce(d.payload, m.payload), 'hex'),"
    " coalesce(d.headers, m.headers), coalesce(d.ordering_key, m.ordering_key), d.not_before) ORDER BY m.id)::text"
    " FROM {schema}.message AS m LEFT JOIN {schema}.delayed AS d ON m.lane = -1 AND d.id = m.id"
    " WHERE m.xact = pg_current_xact_id_if_assigned()"
)


@dataclass(frozen=True)
class Enqueued:
    """A message that this transaction has enqueued."""

    key: str
    subject: str
    payload: bytes
    headers: Mapping[str, str]
    ordering_key: str | None
    not_before: datetime | None

    def json(self) -> Any:
        return json.loads(self.payload)


async def enqueued(connection: Any, *, schema: str = "oncebox") -> list[Enqueued]:
    """The messages that the open transaction of this connection, of any library, has enqueued, in their order."""
    (found,) = await execute(connection, named(schema, _ENQUEUED))
    made = []
    for key, subject, payload, headers, ordering_key, time in json.loads(found or "[]"):
        headers = {name: value for name, value in headers.items() if name not in ("traceparent", "tracestate")}
        not_before = time and datetime.fromisoformat(time)
        made.append(Enqueued(key, subject, bytes.fromhex(payload), headers, ordering_key, not_before))
    return made


def message(key: str, payload: Any, *, subject: str = "test", headers: Mapping[str, str] | None = None, deliveries: int = 1) -> Message:
    """A message as a consumer would get it, for `Inbox.run`."""
    body = payload if isinstance(payload, bytes) else to_json(payload)
    return Message(subject, body, {"idempotency-key": key, **{name.lower(): value for name, value in (headers or {}).items()}}, None, deliveries)


async def run_until_final(inbox: Inbox, handler: Handler | LeasedHandler, message: Message, runs_max: int = 20) -> Verdict:
    """Runs a message again as JetStream would, without its pauses, until it has ended."""
    for _ in range(runs_max):
        with contextlib.suppress(psycopg.OperationalError):
            verdict = await inbox.run(handler, message)
            if verdict.name not in ("retry", "snoozed", "in_flight"):
                return verdict
            await _end_pauses(inbox, message)
        await asyncio.sleep(0.02)
    raise AssertionError(f"the message has not ended after {runs_max} runs")


async def _end_pauses(inbox: Inbox, message: Message, of_claims: str = "state <> 'running'") -> None:
    for table, change in (
        ("inbox_attempt", "due_at = NULL"), ("inbox_snooze", "due_at = clock_timestamp()"), ("inbox_claim", "lease_until = clock_timestamp()"),
    ):  # fmt: skip
        where = f" AND {of_claims}" if table == "inbox_claim" else ""
        statement = f"UPDATE {{schema}}.{table} SET {change} WHERE scope = %s AND key = %s{where}"
        await inbox.database.ask(statement, [inbox.scope, inbox.identify(message).key])


async def crashes(
    inbox: Inbox, handler: Handler | LeasedHandler, payload: Callable[[str], Any], effects: Callable[[str], Awaitable[Any]]
) -> list[str]:
    """Runs a handler through duplicates, crashes, a lost commit and races; returns in which it did not have its
    effects once. Each scenario has a key of its own; `effects(key)` tells what was done for it. Under a lease the
    process dies before and after each statement of the inbox, and each call of a provider."""
    calm = message("calm", payload("calm"))
    await run_until_final(inbox, handler, calm)
    expected, wrong = await effects("calm"), []

    async def check(key: str, name: str) -> None:
        if (found := await effects(key)) != expected:
            wrong.append(f"{name}: {found!r} instead of {expected!r}")

    for name, scenario in (
        ("duplicate", _duplicate), ("crash-before-commit", _before_commit), ("crash-after-commit", _after_commit),
        ("lost-commit", _lost_commit), ("concurrent-pair", _concurrent),
    ):  # fmt: skip
        if inbox.lease is None or scenario in (_duplicate, _after_commit, _concurrent):
            await scenario(inbox, handler, message(name, payload(name)))
            await check(name, name)
    place = 0
    while inbox.lease is not None and (died := await _dies(inbox, handler, message(f"crash-{place}", payload(f"crash-{place}")), place)):
        await check(f"crash-{place}", f"crash-{place}, {died}")
        place += 1
    return wrong


class _Died(BaseException):
    """The process ends here."""


async def _dies(inbox: Inbox, handler: Handler | LeasedHandler, given: Message, place: int) -> str | None:
    """The process dies at this place, and another one goes on when the lease has ended. Returns where, if it did."""
    left = place

    def dying(step: Callable[..., Awaitable[Any]], name: Callable[..., str]) -> Callable[..., Awaitable[Any]]:
        async def wrapped(*given: Any, **named: Any) -> Any:
            nonlocal left
            if name(*given) == "renew_lease":
                return await step(*given, **named)
            for when in ("before", "after"):
                left -= 1
                if left == -1:
                    raise _Died(f"{when} {name(*given)}")
                result = await step(*given, **named) if when == "before" else result
            return result

        return wrapped

    died = None
    with (
        mock.patch.object(Database, "call", dying(Database.call, lambda *given: given[1])),
        mock.patch.object(leased, "commit", dying(leased.commit, lambda *given: "COMMIT")),
        mock.patch.object(effect.Effect, "asked", dying(effect.Effect.asked, lambda *given: f"a call for {given[0].step}")),
    ):
        try:
            await inbox.run(handler, given)
        except _Died as end:
            died = str(end)
    await _end_pauses(inbox, given, "true")
    # As if the call had settled long ago.
    old = "UPDATE {schema}.inbox_effect SET started_at = started_at - interval '1 day' WHERE scope = %s"
    await inbox.database.ask(old, [inbox.scope])
    await run_until_final(inbox, handler, given)
    return died


async def _duplicate(inbox: Inbox, handler: Handler, given: Message) -> None:
    for _ in range(3):
        await run_until_final(inbox, handler, given)


async def _before_commit(inbox: Inbox, handler: Handler, given: Message) -> None:
    """The connection dies when the handler has done its work."""

    async def dying(cx: Context, data: Any) -> Any:
        await handler(cx, data)
        await cx.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    await inbox.run(dying, given)
    await run_until_final(inbox, handler, given)


async def _after_commit(inbox: Inbox, handler: Handler, given: Message) -> None:
    """The process dies before it acknowledges, so another one gets the message again."""
    await run_until_final(inbox, handler, given)
    again = Message(given.subject, given.payload, given.headers, None, 2)
    await run_until_final(inbox, handler, again)


async def _lost_commit(inbox: Inbox, handler: Handler, given: Message) -> None:
    """COMMIT is done, and its answer is lost."""

    async def losing(connection: Any, *given: Any) -> None:
        await inboxes_commit(connection, *given)
        connection.pgconn.finish()
        raise psycopg.OperationalError("the answer to COMMIT was lost")

    inboxes_commit = inboxes.commit
    with mock.patch.object(inboxes, "commit", losing):
        await inbox.run(handler, given)
    await run_until_final(inbox, handler, given)


async def _concurrent(inbox: Inbox, handler: Handler, given: Message) -> None:
    await asyncio.gather(*(run_until_final(inbox, handler, given) for _ in range(2)))


class Template:
    """A database with the schema of Oncebox and your own tables, of which each test gets a copy within milliseconds."""

    def __init__(self, url: str, *, sql: Sequence[str] = (), program: str = "oncebox"):
        """`url` names a database from which others can be made, `sql` makes your tables, `program` migrates."""
        self.url, self.sql, self.program = url, sql, program
        self.name = f"oncebox_template_{uuid.uuid4().hex[:12]}"

    def __enter__(self) -> "Template":
        self._execute(f"CREATE DATABASE {self.name}")
        template = self._of(self.name)
        # All databases of a server share the roles; those of a template would outlive it.
        command = [self.program, "migrate", "--role-prefix", "oncebox", "--database-url", template]
        subprocess.run(command, check=True, capture_output=True)
        with psycopg.connect(template, autocommit=True) as connection:
            for text in self.sql:
                connection.execute(text)
        return self

    def __exit__(self, *_: object) -> None:
        self._execute(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a fresh copy, which is dropped at the end."""
        name = f"oncebox_test_{uuid.uuid4().hex[:12]}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {self.name}")
        try:
            yield self._of(name)
        finally:
            self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _of(self, name: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def _execute(self, text: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(text)
