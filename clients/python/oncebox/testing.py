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
from psycopg.sql import SQL, Identifier

from . import inbox as inboxes
from .inbox import Inbox
from .message import Context, Handler, Message, Verdict
from .outbox import to_json
from .wire import execute

_ENQUEUED = SQL(
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
    statement = _ENQUEUED.format(schema=Identifier(schema)).as_string()
    (found,) = await execute(connection, statement)
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


async def run_until_final(inbox: Inbox, handler: Handler, message: Message, runs_max: int = 20) -> Verdict:
    """Runs a message again as JetStream would, without its pauses, until it has ended."""
    for _ in range(runs_max):
        with contextlib.suppress(psycopg.OperationalError):
            verdict = await inbox.run(handler, message)
            if verdict.name not in ("retry", "snoozed", "in_flight"):
                return verdict
        await asyncio.sleep(0.02)
    raise AssertionError(f"the message has not ended after {runs_max} runs")


async def crashes(
    inbox: Inbox, handler: Handler, payload: Callable[[str], Any], effects: Callable[[str], Awaitable[Any]]
) -> list[str]:
    """Runs a handler through duplicates, crashes, a lost commit and races; returns in which it did not have its
    effects once. Each scenario has a key of its own; `effects(key)` tells what was done for it."""
    calm = message("calm", payload("calm"))
    await run_until_final(inbox, handler, calm)
    expected, wrong = await effects("calm"), []
    for name, scenario in (
        ("duplicate", _duplicate), ("crash-before-commit", _before_commit), ("crash-after-commit", _after_commit),
        ("lost-commit", _lost_commit), ("concurrent-pair", _concurrent),
    ):  # fmt: skip
        await scenario(inbox, handler, message(name, payload(name)))
        if (found := await effects(name)) != expected:
            wrong.append(f"{name}: {found!r} instead of {expected!r}")
    return wrong


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
        # All databases of a server share the roles; those of a template would stay behind it.
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
