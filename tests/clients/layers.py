"""The HTTP layer around routers, mounts, wrappers, readers of bodies, files, background tasks and SQLAlchemy.

Prints `all is well`: see tests/it/clients/libraries.rs.
"""

import asyncio
import os
import tempfile
from typing import Annotated

import oncebox
from fastapi import APIRouter, Depends, FastAPI
from oncebox.asgi import Claim, Idempotency, claim
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse
from starlette.routing import Mount, Route

URL = os.environ["DATABASE_URL"]
ran = []


async def send(app, path, body=b"7", key="k", length=None, **more):
    """A request through ASGI; the status and the body of its response."""
    headers = [(b"idempotency-key", key.encode()), (b"content-length", str(length or len(body)).encode())]
    headers += [(b"content-type", b"application/x-www-form-urlencoded")] if b"=" in body else []
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    scope |= {"root_path": "", "scheme": "http", "server": ("shop", 80), "client": ("127.0.0.1", 1), "http_version": "1.1", **more}
    messages, sent = [{"type": "http.request", "body": body, "more_body": False}], []

    async def receive():
        return messages.pop(0) if messages else await asyncio.Event().wait()

    async def answer(message):
        sent.append(message)

    try:
        await app(scope, receive, answer)
    except ZeroDivisionError:  # Starlette raises the application's error once its handler has answered
        pass
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def act(request: Request):
    own = claim(request)
    await own.connection.execute("INSERT INTO effect (key) VALUES (%s)", [own.key])
    return PlainTextResponse(request.url.path, 201)


async def count(pool, key="k"):
    async with pool.connection() as connection:
        return (await (await connection.execute("SELECT count(*) FROM effect WHERE key = %s", [key])).fetchone())[0]


def layer(app, pool, **settings):
    app.add_middleware(Idempotency, pool=pool, scope="layers", tenant=None, **settings)
    return app


async def routes(pool):
    """Each router is seen through, and each route is a scope of its own."""
    router, inner = APIRouter(prefix="/in"), APIRouter()

    @inner.post("/orders/{order}", status_code=201)
    async def place(order: str, own: Annotated[Claim, Depends(claim)]):
        await own.connection.execute("INSERT INTO effect (key) VALUES (%s)", [own.key])

    router.include_router(inner, prefix="/deep")
    fastapi = FastAPI()
    fastapi.include_router(router)
    fastapi.mount("/sub", Starlette(routes=[Route("/orders/{order}", act, methods=["POST"])]))
    layer(fastapi, pool)
    for path in ("/in/deep/orders/1", "/sub/orders/1"):
        key = path.replace("/", "")
        assert [(await send(fastapi, path, key=key))[0] for _ in range(2)] == [201, 201]
        assert await count(pool, key) == 1, path
    assert (await send(fastapi, "/nowhere"))[0] == 404
    mounted = layer(Starlette(routes=[Mount("/", Starlette(routes=[Route("/mounted", act, methods=["POST"])]))]), pool)
    assert [(await send(mounted, "/mounted", key="mounted"))[0] for _ in range(2)] == [201, 201]
    assert await count(pool, "mounted") == 1

    async def get(request):
        return PlainTextResponse("")

    partial = layer(Starlette(routes=[Route("/orders/{order}", get), Route("/orders/bulk", act, methods=["POST"])]), pool)
    assert (await send(partial, "/orders/bulk", key="bulk"))[0] == 201
    assert (await send(partial, "/orders/other", key="bulk"))[0] == 405
    async with pool.connection() as connection:
        scopes = await (await connection.execute("SELECT scope FROM oncebox.inbox_scope ORDER BY scope")).fetchall()
    expected = ["/in/deep/orders/{order}", "/mounted", "/orders/bulk", "/sub/orders/{order}"]
    assert [scope for (scope,) in scopes] == [f"layers POST {path}" for path in expected], scopes


async def unknown(pool):
    """An application that does not say its routes, or whose body was read before, is refused."""
    app = Starlette(routes=[Route("/orders", act, methods=["POST"])])

    async def wrapped(scope, receive, send):
        await app(scope, receive, send)

    closed = Idempotency(wrapped, pool=pool, scope="layers", tenant=None)
    status, body = await send(closed, "/orders", key="wrapped")
    assert status == 500 and b"set-up-wrongly" in body and await count(pool, "wrapped") == 0, body
    named = Idempotency(wrapped, pool=pool, scope="layers", tenant=None, route=lambda scope: scope["path"])
    assert [(await send(named, "/orders", key="wrapped"))[0] for _ in range(2)] == [201, 201]
    assert await count(pool, "wrapped") == 1
    app = layer(Starlette(routes=[Route("/orders", act, methods=["POST"])]), pool)

    async def reads(request, call_next):
        async for _ in request.stream():
            pass
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=reads)
    statuses = {(await send(app, "/orders", b"cents=%d" % cents, "read"))[0] for cents in (1, 1_000_000)}
    assert statuses <= {500, 422} or await count(pool, "read") == 1 and statuses == {201, 422}, statuses
    assert (await send(layer(Starlette(routes=[Route("/orders", act, methods=["POST"])]), pool), "/orders", b"", "short", length=5))[0] == 500


async def responses(pool):
    """Files are kept whole, odd messages are refused, and background tasks run behind the COMMIT."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"a file")
        file.flush()

        async def download(request):
            return FileResponse(file.name)

        async def odd(scope, receive, send):
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.push", "path": "/"})
            await send({"type": "http.response.body"})

        async def bare(scope, receive, send):
            await send({"type": "http.response.start", "status": 201})
            await send({"type": "http.response.body", "body": b"bare"})

        async def background(request):
            response = await act(request)
            response.background = BackgroundTask(mail, pool, claim(request).key)
            return response

        app = layer(Starlette(routes=[
            Route("/file", download, methods=["POST"]), Route("/background", background, methods=["POST"]),
            Mount("/odd", Starlette(routes=[Route("/", odd)])),
        ]), pool)  # fmt: skip
        for _ in range(2):
            assert await send(app, "/file", key="file", extensions={"http.response.pathsend": {}}) == (200, b"a file")
        closed = Idempotency(odd, pool=pool, scope="layers", tenant=None, route="/odd")
        assert (await send(closed, "/odd", key="odd"))[0] == 500
        closed = Idempotency(bare, pool=pool, scope="layers", tenant=None, route="/bare")
        assert [await send(closed, "/bare", key="bare") for _ in range(2)] == [(201, b"bare")] * 2
        for _ in range(2):
            try:
                assert (await send(app, "/background", key="background"))[0] == 201
            except ConnectionError:
                pass
        assert ran == [("background", 1)] and await count(pool, "background") == 1, ran


async def errors(pool):
    """The application's handler for its errors answers, as without the layer; nothing is stored."""

    async def divide(request):
        await act(request)
        return PlainTextResponse(str(1 / 0))

    async def tell(request, error):
        return PlainTextResponse(f"told: {type(error).__name__}", 500)

    routes = [Route("/orders", divide, methods=["POST"])]
    app = layer(Starlette(routes=routes, exception_handlers={Exception: tell}), pool)
    assert [await send(app, "/orders", key="told") for _ in range(2)] == [(500, b"told: ZeroDivisionError")] * 2
    status, body = await send(layer(Starlette(routes=routes), pool), "/orders", key="told")
    assert status == 500 and b"urn:oncebox:problem:failed" in body and await count(pool, "told") == 0, body


async def broken(pool):
    """A connection that died in the pool costs no request, and a lost race under SQLAlchemy is no failure."""
    app = layer(Starlette(routes=[Route("/orders", act, methods=["POST"])]), pool)
    async with pool.connection() as connection:
        await connection.set_autocommit(True)
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        await connection.execute(others)
        await connection.set_autocommit(False)
    async with pool.connection():
        assert (await send(app, "/orders", key="broken"))[0] == 201
    engine = create_async_engine(URL.replace("postgres://", "postgresql+asyncpg://").replace("postgresql://", "postgresql+asyncpg://"))

    async def conflict(request):
        await claim(request).connection.execute(text("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$"))

    app = layer(Starlette(routes=[Route("/orders", conflict, methods=["POST"])]), engine)
    assert (await send(app, "/orders", key="conflict"))[0] == 503
    await engine.dispose()


async def mail(pool, key):
    ran.append((key, await count(pool, key)))
    raise ConnectionError("no mail server")


async def sqlalchemy(pool):
    """The claim of a layer over SQLAlchemy has a session, which the layer commits."""
    for driver in ("psycopg", "asyncpg"):
        engine = create_async_engine(URL.replace("postgres://", "postgresql://").replace("postgresql", f"postgresql+{driver}", 1))

        async def place(request):
            own = claim(request)
            await own.connection.execute(text("INSERT INTO effect (key) VALUES (:key)"), {"key": own.key})
            await own.connection.commit()
            await oncebox.enqueue(own.connection, oncebox.step_key(own.key, "pay"), "a.b", {})
            # The length of the body chooses the status.
            return PlainTextResponse("", [201, 500, 402][int(request.headers["content-length"]) - 1])

        app = layer(Starlette(routes=[Route("/orders", place, methods=["POST"])]), engine)
        assert (await send(app, "/orders", b"77", driver))[0] == 500 and await count(pool, driver) == 0
        assert [(await send(app, "/orders", key=driver))[0] for _ in range(2)] == [201, 201]
        assert await count(pool, driver) == 1
        # A no is stored without the writes, and answers copies.
        assert [(await send(app, "/orders", b"777", f"{driver}-no"))[0] for _ in range(2)] == [402, 402]
        assert await count(pool, f"{driver}-no") == 0
        await engine.dispose()


async def main():
    async with AsyncConnectionPool(URL, min_size=1, max_size=4) as pool:
        async with pool.connection() as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS effect (key text)")
        for check in (routes, unknown, responses, errors, sqlalchemy, broken):
            await check(pool)
    print("all is well")


asyncio.run(main())
