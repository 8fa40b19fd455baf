"""A shop behind the HTTP layer, whose handler does as the header x-do says: see tests/it/clients/serving.rs."""

import asyncio
import contextlib
import json
import os
import sys
import uuid
from typing import Annotated

import oncebox
import psycopg
import uvicorn
from fastapi import Depends, FastAPI
from oncebox.asgi import Claim, Idempotency, claim
from psycopg_pool import AsyncConnectionPool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

INSERT = "INSERT INTO effect (key, n, line) VALUES (%s, %s, %s) RETURNING id"
pool = AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=0, max_size=4, open=False)


async def act(request: Request, own: Claim) -> Response:
    """Each run has a number, which no rollback takes back."""
    connection = own.connection
    (run,) = await (await connection.execute("SELECT nextval('run')")).fetchone()
    try:
        n = int(body := (await request.body()).decode())
    except ValueError:
        return PlainTextResponse(f"{body!r} is not a number", 400)
    what, _, number = request.headers.get("x-do", "order").partition(":")
    (row,) = await (await connection.execute(INSERT, [own.key, n, own.tenant])).fetchone()
    match what:
        case "status":
            return PlainTextResponse(f"status {number} of run {run}", int(number))
        case "lost":
            with contextlib.suppress(psycopg.Error):
                await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return PlainTextResponse("no money", int(number))
        case "keep":
            own.keeps_writes = True
            return PlainTextResponse("no money", int(number))
        case "panic":
            raise ValueError("this handler fails")
        case "conflict":
            await connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
        case "swallow":
            with contextlib.suppress(psycopg.Error):
                await connection.execute("SELECT 1 / 0")
        case "restart":
            await connection.execute("ROLLBACK")
            await connection.execute("BEGIN")
            await connection.execute(INSERT, [own.key, n, own.tenant])
        case "commit":
            await connection.execute("COMMIT")
        case "enqueue":
            await oncebox.enqueue(connection, oncebox.step_key(own.key, "pay"), "orders.placed", {"n": n})
        case "locked":
            await connection.execute("SELECT pg_advisory_xact_lock_shared(4711)")
        case "hang":
            await asyncio.sleep(60)
        case "large":
            return Response(b"x" * int(number), 201, {"location": f"/orders/{row}"})
        case "encoded":
            return Response("as if packed", 201, {"content-encoding": "gzip", "content-language": "de"})
    text = f'{{"z" : 1.0,\n\t"id":{row}, "a":"\\u00e9" }}\n'
    response = Response(text, 201, {"location": f"/orders/{row}", "etag": 'W/"1"', "x-request-id": str(uuid.uuid4())})
    response.headers["content-type"] = "application/vnd.shop+json; v=1"
    response.headers.append("link", '</orders>; rel="collection"')
    response.headers.append("link", '</>; rel="index"')
    return response


def starlette() -> Starlette:
    async def order(request: Request) -> Response:
        return PlainTextResponse("nothing") if request.method == "GET" else await act(request, claim(request))

    routes = [Route("/orders", order, methods=["GET", "POST", "PUT"]), Route("/orders/{id}/items", order, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


def fastapi() -> FastAPI:
    app = FastAPI(lifespan=lifespan)

    @app.get("/orders")
    async def read() -> Response:
        return PlainTextResponse("nothing")

    @app.post("/orders")
    @app.put("/orders")
    @app.post("/orders/{id}/items")
    async def order(request: Request, own: Annotated[Claim, Depends(claim)]) -> Response:
        return await act(request, own)

    return app


@contextlib.asynccontextmanager
async def lifespan(app):
    async with pool:
        yield


def tenant(scope) -> str | None:
    """As an authentication before the layer would find it out."""
    value = dict(scope["headers"]).get(b"x-tenant", b"main")
    return value.decode() if value.isascii() else None


app = {"starlette": starlette, "fastapi": fastapi}[sys.argv[1]]()
settings = json.loads(os.environ.get("SETTINGS", "{}"))
app.add_middleware(Idempotency, pool=pool, scope="shop", tenant=tenant, **settings)
uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
