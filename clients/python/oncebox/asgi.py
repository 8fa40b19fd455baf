"""Answers a repeated request from its stored response: an ASGI middleware for the `Idempotency-Key` header.

The middleware claims the key in the transaction that the handler writes through, and stores the
response in it. Which responses are stored, and the answers of the layer itself, are those of the crate
oncebox-http; services of both kinds may answer each other's requests.
"""

import asyncio
import json
import logging
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Awaitable, Callable, Iterable

import psycopg

from .causes import first_line, is_conflict
from .database import Database
from .problem import Problem
from .request import Scope, client_key, route_of
from .transaction import Run, Unattempted, before_handler, check_blocking, check_session, commit, connected, lent, limited
from .wire import SESSION, execute_all

try:
    from starlette.requests import Request
except ImportError:
    Request = Any

log = logging.getLogger("oncebox")

SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
Response = tuple[int, list[tuple[bytes, bytes]], bytes]


@dataclass
class Claim:
    """The claim of the request's key, and the transaction that it is claimed in."""

    connection: Any
    # The root of the keys of the request's messages: step_key(claim.key, "ship").
    key: str
    tenant: str
    # Whether the writes are committed with a 4xx, too.
    keeps_writes: bool = False


def claim(request: Request) -> Claim:
    """The claim of a request; for FastAPI a dependency: `Annotated[Claim, Depends(claim)]`."""
    try:
        return request.scope["oncebox.claim"]
    except KeyError:
        raise RuntimeError("there is no claim: the request has no key, or the app no middleware Idempotency") from None


@dataclass
class _Pending(Run):
    """A request that is to be answered."""

    scope: Scope
    route: str
    tenant: str
    client_key: str
    body: bytes
    key: str = field(default="", init=False)
    # It waits at the end of its response until that may be sent.
    application: asyncio.Task | None = field(default=None, init=False)
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event, init=False)


class Idempotency:
    """ASGI middleware, for Starlette and FastAPI: `app.add_middleware(Idempotency, pool=pool, ...)`."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        *,
        pool: Any,
        scope: str,
        tenant: Callable[[Scope], str | None] | None,
        credentials: Iterable[str] | None = None,
        content: Callable[[Scope, bytes], bytes] | None = None,
        route: str | Callable[[Scope], str | None] | None = None,
        passes_without_key: bool = False,
        not_stored: Iterable[int] = (401, 403, 408, 409, 425, 429),
        kept_headers: Iterable[str] = ("content-type", "location", "etag", "link"),
        request_body_max: int = 256 << 10,
        response_body_max: int = 256 << 10,
        in_flight_wait: float = 1.5,
        retry_after: int = 1,
        handler_timeout: float = 60.0,
        step_timeout: float = 30.0,
        retention: timedelta | None = timedelta(days=1),
        documentation: str | None = None,
        schema: str = "oncebox",
    ):
        """`scope` names the service; with method and route it is the scope of a key. Never rename it.

        `tenant` takes the ASGI scope behind your authentication, and returns the user's id; None as a
        result is refused with 403. With `tenant=None` all requests belong to one tenant, and a repeated
        request must have the same `credentials`, by default the headers authorization and cookie.
        `documentation` is the address of your API's, for a `Link` in the layer's own answers.
        `route` names the route in place of the application's router, as a text for all or of each request.
        `content` chooses what tells requests apart instead of content type and body.
        """
        check_blocking(pool)
        self.app, self.pool, self.scope, self.schema, self.tenant, self.route = app, pool, scope, schema, tenant, route
        names = ("authorization", "cookie") if credentials is None and tenant is None else credentials or ()
        self.credentials, self.content = [name.lower().encode() for name in names], content
        self.passes_without_key, self.not_stored = passes_without_key, frozenset(not_stored)
        self.kept_headers = [name.lower().encode() for name in (*kept_headers, "content-encoding")]
        self.request_body_max, self.response_body_max = request_body_max, response_body_max
        self.documentation = documentation
        self.in_flight_wait, self.retry_after = in_flight_wait, retry_after
        self.handler_timeout, self.step_timeout, self.retention = handler_timeout, step_timeout, retention
        # The mark tells claim_request() that this layer will commit.
        self.database = Database(pool, schema, step_timeout)
        self._claim = self.database.sql(
            "SET TRANSACTION DEFERRABLE; SELECT answer, key, status::text, headers::text, encode(body, 'hex'),"
            f" pg_current_xact_id_if_assigned()::text, {SESSION}, set_config('idle_in_transaction_session_timeout', %s, true)"
            " FROM {schema}.claim_request(%s, %s, %s,"
            " {schema}.request_fingerprint(%s, %s, %s, %s::text::jsonb, %s, %s::bytea))"
        )
        self._settle = self.database.sql("SELECT {schema}.settle_request(%s, %s, %s, %s::text::bool, %s::text::int, %s::text::jsonb, %s::bytea); ")
        self._registered: set[str] = set()

    async def __call__(self, scope: Scope, receive: Callable, send: Callable) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE:
            return await self.app(scope, receive, send)
        pending = None
        try:
            pending = await self._pending(scope, receive)
            if pending is None:
                return await self.app(scope, receive, send)
            # It goes on when the client goes away, or the server cancels it.
            answering = asyncio.ensure_future(self._answer(pending))
            try:
                status, headers, body = await asyncio.shield(answering)
            except asyncio.CancelledError:
                answering.add_done_callback(lambda _: pending.may_go_on.set())
                raise
        except Problem as problem:
            own = getattr(scope.get("app"), "exception_handlers", {})
            if problem.name == "failed" and problem.__cause__ is not None and (Exception in own or 500 in own):
                raise problem.__cause__  # for the application's own handler, which is outside of its middleware
            status, headers, body = problem.response(self.retry_after, self.documentation)
        if not any(name.lower() == b"content-length" for name, _ in headers) and status not in (204, 304):
            headers = [*headers, (b"content-length", str(len(body)).encode())]
        try:
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        finally:
            if pending is not None:
                # Its background tasks run now, after the COMMIT and the response.
                pending.may_go_on.set()
        if pending is not None and pending.application is not None:
            await pending.application

    async def _pending(self, scope: Scope, receive: Callable) -> _Pending | None:
        """The request, if it is one that needs a key and has a route."""
        if len(scope["method"]) > 20:
            raise Problem("method-unknown")
        key = client_key(scope["headers"])
        if key is None:
            if self.passes_without_key:
                return None
            raise Problem("key-missing")
        tenant = "" if self.tenant is None else self.tenant(scope)
        is_printable = isinstance(tenant, str) and not any(c < " " or "\x7f" <= c <= "\x9f" for c in tenant)
        if self.tenant is not None and not (is_printable and 1 <= len(tenant.encode()) <= 255):
            raise Problem("tenant-missing")
        route = self._route(scope)
        if route is None:
            return None  # the application answers it with 404
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Problem("failed")  # nobody hears it
            body += message.get("body", b"")
            if len(body) > self.request_body_max:
                raise Problem("body-too-large")
            if not message.get("more_body", False):
                self._check_whole(scope, body)
                return _Pending(scope, f"{self.scope} {scope['method']} {route}", tenant, key, body)

    def _route(self, scope: Scope) -> str | None:
        if self.route is not None:
            return self.route(scope) if callable(self.route) else self.route
        try:
            return route_of(scope, self.app)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            # Without a scope there is no claim, and the handler might act twice.
            log.error("scope %s: the route of a request is not known (%s): give Idempotency(.., route=..)", self.scope, error)
            raise Problem("set-up-wrongly") from error

    def _check_whole(self, scope: Scope, body: bytes) -> None:
        """Fails when a middleware before this one has read the body: other requests would look like this one."""
        named = {name.lower(): value for name, value in scope["headers"]}
        length = named.get(b"content-length", b"")
        is_read = not body and b"chunked" in named.get(b"transfer-encoding", b"").lower()
        if is_read or length.isdigit() and int(length) != len(body):
            text = "scope %s: %d bytes of a body of %s are left: add the middleware that reads it before this one"
            log.error(text, self.scope, len(body), length.decode() or "chunks")
            raise Problem("set-up-wrongly")

    async def _answer(self, pending: _Pending) -> Response:
        """Looks at the key until it is claimed, or done, or the time is over."""
        deadline = asyncio.get_running_loop().time() + self.in_flight_wait
        try:
            if pending.route not in self._registered:
                await self.database.register(pending.route, self.retention, kind="http")
                self._registered.add(pending.route)
            wait = None
            while True:
                try:
                    async with connected(self.pool, self.step_timeout, wait) as (connection, step):
                        with before_handler(connection):
                            response = await self._look(connection, pending)
                        if response is not None:
                            await connection.rollback()
                            return response
                        if pending.xid is not None:
                            return await self._run(connection, step, pending)
                        await connection.rollback()
                except Unattempted as unattempted:
                    # Of a broken connection; the pool's next one may be a good one, if it has one.
                    if not unattempted.is_closed or asyncio.get_running_loop().time() >= deadline:
                        raise
                    wait = 1.0
                    continue
                if asyncio.get_running_loop().time() >= deadline:
                    raise Problem("in-flight")
                await asyncio.sleep(random.uniform(0.01, 0.1))
        except (Unattempted, psycopg.Error) as error:
            log.warning("scope %s: a request is answered with 503: %s", pending.route, first_line(error.__cause__ or error))
            raise Problem("unavailable") from error

    async def _look(self, connection: Any, pending: _Pending) -> Response | None:
        """The stored response of the key. Without one the key is claimed, or another request works on it."""
        limit = f"{round(1000 * self.handler_timeout + 5000)}ms"
        parameters = [limit, pending.route, pending.tenant, pending.client_key, *self._content(pending)]
        row = (await execute_all(connection, self._claim, parameters))[-1]
        answer, pending.key, status, headers, body, xid, pending.session, _ = row
        pending.xid = xid if answer == "new" else None
        if answer == "mismatch":
            raise Problem("key-reused")
        if answer != "replayed":
            return None
        if status is None:
            raise Problem("response-unknown")
        kept = [(name.encode(), value.encode("latin-1")) for name, value in json.loads(headers)]
        replayed = (b"idempotent-replayed", b"true")
        if body is None:
            gone = Problem("response-not-kept", int(status)).response(self.retry_after, self.documentation)
            of_body = (b"content-type", b"content-encoding")
            return gone[0], [*gone[1], *(pair for pair in kept if pair[0] not in of_body), replayed], gone[2]
        return int(status), [*kept, replayed], bytes.fromhex(body)

    def _content(self, pending: _Pending) -> list[str | bytes | None]:
        """The parts that tell a request from another one."""
        scope = pending.scope
        path = scope.get("raw_path") or scope["path"].encode()
        pairs = [(name.lower(), value) for name, value in scope["headers"]]
        credentials = [(n.decode(), v.decode("latin-1")) for wanted in self.credentials for n, v in pairs if n == wanted]
        content_type = next((value.decode("latin-1") for name, value in pairs if name == b"content-type"), "")
        text = [scope["method"], path.partition(b"?")[0].decode("latin-1"), scope["query_string"].decode("latin-1")]
        chosen = [content_type, pending.body] if self.content is None else [None, self.content(scope, pending.body)]
        return [*text, json.dumps(credentials), *chosen]

    async def _run(self, connection: Any, step: Any, pending: _Pending) -> Response:
        """Runs the application, and stores its response with its writes, alone, or not at all."""
        step.begin(connection, self.handler_timeout)
        try:
            try:
                with lent(connection, pending) as handle:
                    own = Claim(handle.connection, pending.key, pending.tenant)
                    status, headers, body = await limited(self._call(pending, own), self.handler_timeout)
                    if status < 400 or own.keeps_writes:
                        await handle.finish()
            finally:
                step.begin(connection)
            if 400 <= status < 500 and status not in self.not_stored and not own.keeps_writes:
                await check_session(connection, pending)
                return await self._reject(connection, pending, (status, headers, body))
            if status >= 400 and (status >= 500 or status in self.not_stored):
                await check_session(connection, pending)
                return status, headers, body
            await self._commit(connection, pending, (status, headers, body), status >= 400)
        except Exception as error:
            if pending.application is not None:
                pending.application.cancel()
                pending.application = None
            await check_session(connection, pending)
            raise self._problem(pending, error) from error
        return status, headers, body

    async def _call(self, pending: _Pending, own: Claim) -> Response:
        """The application's whole response. A stored one may be for a client that accepts another encoding."""
        headers = [pair for pair in pending.scope["headers"] if pair[0].lower() != b"accept-encoding"]
        scope = {**pending.scope, "headers": [*headers, (b"accept-encoding", b"identity")], "oncebox.claim": own}
        # Responses of other kinds, such as paths of files, could not be stored.
        scope["extensions"] = {}
        messages = iter([{"type": "http.request", "body": pending.body, "more_body": False}])
        started, parts, is_whole = {}, [], asyncio.Event()

        async def receive() -> dict:
            for message in messages:
                return message
            return await asyncio.Event().wait()  # nobody tells the handler that the client has gone

        async def send(message: dict) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            elif message["type"] != "http.response.body":
                raise RuntimeError(f"the idempotency layer does not know the message {message['type']}")
            else:
                parts.append(message.get("body", b""))
                if not message.get("more_body", False) and not is_whole.is_set():
                    is_whole.set()
                    await pending.may_go_on.wait()

        application = asyncio.create_task(self.app(scope, receive, send))
        ends = asyncio.create_task(is_whole.wait())
        try:
            await asyncio.wait([application, ends], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            application.cancel()
            await asyncio.wait([application], timeout=1.0)
            raise
        finally:
            ends.cancel()
        if application.done():
            application.result()
        else:
            pending.application = application
        if "status" not in started:
            raise RuntimeError("the application has sent no response")
        own_headers = [pair for pair in started.get("headers", ()) if pair[0].lower() != b"idempotent-replayed"]
        return started["status"], [*own_headers, (b"idempotent-replayed", b"false")], b"".join(parts)

    async def _commit(self, connection: Any, pending: _Pending, response: Response, is_rejected: bool) -> None:
        status, headers, body = response
        kept = [(n.lower().decode(), v.decode("latin-1")) for wanted in self.kept_headers for n, v in headers if n.lower() == wanted]
        parameters = [pending.route, pending.tenant, pending.key, str(is_rejected), str(status), json.dumps(kept)]
        parameters.append(body if len(body) <= self.response_body_max else None)
        await commit(connection, pending, self._settle, parameters)

    async def _reject(self, connection: Any, pending: _Pending, response: Response) -> Response:
        """Stores a no, without the handler's writes. Unless that works, the client does not get it: a copy
        that comes later could be done."""
        try:
            # Another library may have begun a transaction for the look at the session.
            await connection.rollback()
            stored = await self._look(connection, pending)
        except psycopg.OperationalError as error:
            raise Problem("unavailable") from error
        if stored is not None:
            return stored  # another process was faster
        if pending.xid is None:
            raise Problem("in-flight")
        await self._commit(connection, pending, response, True)
        return response

    def _problem(self, pending: _Pending, error: Exception) -> Problem:
        if isinstance(error, Problem):
            return error
        # Whether a COMMIT without an answer has happened finds the next attempt out.
        if is_conflict(error) or pending.is_ending and isinstance(error, psycopg.OperationalError):
            return Problem("unavailable")
        text = "scope %s, key %s: the handler failed, and its writes are rolled back"
        log.error(text, pending.route, pending.key, exc_info=error)
        return Problem("too-slow" if isinstance(error, TimeoutError) else "failed")
