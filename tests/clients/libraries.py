"""A service that writes through its own library: enqueues in its transactions, and handles messages.

Prints `all is well`: see tests/it/clients/libraries.rs.
"""

import asyncio
import contextlib
import os
import sys

import oncebox
import oncebox.sync
from psycopg_pool import ConnectionPool

URL, WHAT = os.environ["DATABASE_URL"], sys.argv[1]
OTHER = URL.replace("postgres://", "postgresql://")
INSERT = "INSERT INTO charge (id, cents) VALUES ('{}', 1)"


class Refused(Exception):
    pass


def judge(data):
    """What the handler does once it has written."""
    match data["do"]:
        case "fail":
            raise Refused("as it was told")
        case "dead":
            try:
                raise oncebox.Dead("no use")
            except oncebox.Dead as error:
                raise Refused("wrapped") from error
        case "reply":
            return {"did": True}


def statements(data, key):
    yield INSERT.format(key)
    if data["do"] in ("commit", "rollback"):
        yield data["do"].upper()
    if data["do"] == "conflict" and not data.get("lost"):
        data["lost"] = seen_conflict.append(key) is None and len(seen_conflict) > 1
        if not data["lost"]:
            yield "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$"


seen_conflict, leftovers = [], []


def through_async(run):
    """A handler of a library that does not block; `run` sends a statement."""

    async def handle(cx, data):
        for text in statements(data, cx.key):
            await run(cx.connection, text)
        if data["do"] == "hide":
            with contextlib.suppress(Exception):
                await run(cx.connection, "SELECT 1 / 0")
            return None
        leftovers.append((cx.connection, run))
        # Over asyncpg each statement after a ROLLBACK in the text would be committed by itself.
        if data["do"] != "rollback":
            await oncebox.enqueue(cx.connection, oncebox.step_key(cx.key, "out"), "a.b", {"key": cx.key})
        if data["do"] == "hang":
            await asyncio.sleep(60)
        return judge(data)

    return handle


def through_blocking(run):
    def handle(cx, data):
        for text in statements(data, cx.key):
            run(cx.connection, text)
        if data["do"] == "hide":
            with contextlib.suppress(Exception):
                run(cx.connection, "SELECT 1 / 0")
            return None
        oncebox.sync.enqueue(cx.connection, oncebox.step_key(cx.key, "out"), "a.b", {"key": cx.key})
        if data["do"] == "hang":
            run(cx.connection, "SELECT pg_sleep(60)")
        return judge(data)

    return handle


EXPECTED = {
    "return": "handled", "reply": "handled", "fail": "retry", "dead": "dead", "conflict": "handled", "commit": "dead", "hang": "retry",
    "rollback": "retry", "hide": "retry",
}  # fmt: skip


async def runs(source, handle):
    """Each way for a handler to end, in an inbox over this library; then a batch of five."""
    inbox = oncebox.Inbox(source, scope=f"libraries:{WHAT}", handler_timeout=1.0, step_timeout=5.0)
    await inbox.register()
    for do, expected in EXPECTED.items():
        message = oncebox.Message("a.b", b'{"do": "%s"}' % do.encode(), {"idempotency-key": f"{WHAT}-{do}"})
        answer = await inbox.run(handle, message)
        assert answer.name == expected, (do, answer)
        if expected == "handled":
            again = await inbox.run(handle, message)
            assert (again.name, again.reply) == ("replayed", answer.reply), (do, again)
        assert await found(f"{WHAT}-{do}") == (1, 1 if expected == "handled" else 0) or expected != "handled", do
        if expected != "handled" and do != "commit":
            assert await found(f"{WHAT}-{do}") == (0, 0), do
    for connection, run in leftovers:
        try:
            await run(connection, INSERT.format("late"))
        except Exception:
            continue
        raise AssertionError("a statement behind the handler's end was sent")
    from oncebox.batch import Batch

    names = [f"{WHAT}-batch{n}" for n in range(5)]
    told = [b'{"do": "%s"}' % (b"fail" if n == 2 else b"return") for n in range(5)]
    messages = [oncebox.Message("a.b", text, {"idempotency-key": name}) for name, text in zip(names, told)]
    answers = [answer.name for answer in await Batch(inbox, handle).run(messages)]
    assert answers == ["handled", "handled", "retry", "handled", "handled"], answers
    assert [await found(name) for name in names] == [(1, 1), (1, 1), (0, 0), (1, 1), (1, 1)]


async def found(key):
    """How many effects and messages a key has."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(URL) as connection:
        sql = "SELECT (SELECT count(*) FROM charge WHERE id = %s), (SELECT count(*) FROM oncebox.message WHERE key = %s)"
        return await (await connection.execute(sql, [key, f"{key}:out"])).fetchone()


async def started(connection):
    """The saga of tests/clients/order.toml, in the transaction that is kept; then a no, which ends the one that is lost."""
    first = await oncebox.start_saga(connection, "order", WHAT, {"order": 1})
    again = await oncebox.start_saga(connection, "order", WHAT, {"order": 1}, version=1)
    assert (first.key, first.is_new, again) == (f"{WHAT}:order", True, first._replace(is_new=False))


async def refused(connection, start=oncebox.start_saga, type="order", business_id=WHAT, data={"order": 2}, reason="used", version=1):
    try:
        started = start(connection, type, business_id, data, version=version)
        raise AssertionError(await started if asyncio.iscoroutine(started) else started)
    except oncebox.SagaRefused as no:
        assert no.reason == reason, no


async def enqueued(connection, commit, rollback):
    """In a transaction of the user's: committed with it, or not at all; one by one and many at once."""
    for key, end in ((f"{WHAT}-kept", commit), (f"{WHAT}-lost", rollback)):
        assert await oncebox.enqueue(connection, f"{key}:out", "a.b", {"n": 1}, headers={"A": "b"}, ordering_key="o")
        many = [oncebox.Outgoing(f"{key}:#{n}", "a.b", {"n": n}) for n in range(3)]
        assert all(await oncebox.enqueue_all(connection, many))
        assert await oncebox.enqueue_all(connection, many) == [None, None, None]
        await (started(connection) if end is commit else refused(connection))
        await end()
        assert await found(key) == (0, int(end is commit))


def enqueued_blocking(connection, commit, rollback):
    for key, end in ((f"{WHAT}-kept", commit), (f"{WHAT}-lost", rollback)):
        assert oncebox.sync.enqueue(connection, f"{key}:out", "a.b", {"n": 1}, headers={"A": "b"}, ordering_key="o")
        many = [oncebox.Outgoing(f"{key}:#{n}", "a.b", {"n": n}) for n in range(3)]
        assert all(oncebox.sync.enqueue_all(connection, many))
        assert oncebox.sync.cancel_delayed(connection, "none") is False
        if end is commit:
            oncebox.sync.wait(started(connection))
        else:
            oncebox.sync.wait(refused(connection, oncebox.sync.start_saga))
        end()
        assert asyncio.run(found(key)) == (0, int(end is commit))


async def sqlalchemy_async(driver):
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(OTHER.replace("postgresql", f"postgresql+{driver}", 1))
    async with AsyncSession(engine) as session:
        await enqueued(session, session.commit, session.rollback)
    await runs(engine, through_async(lambda session, sql: session.execute(text(sql))))
    await engine.dispose()


async def asyncpg():
    import asyncpg

    async with asyncpg.create_pool(URL, min_size=1, max_size=3) as pool:
        async with pool.acquire() as connection:
            for key in ("kept", "lost"):
                transaction = connection.transaction()
                await transaction.start()
                assert await oncebox.enqueue(connection, f"{WHAT}-{key}:out", "a.b", b"1", not_before=None)
                assert await oncebox.enqueue_all(connection, [oncebox.Outgoing(f"{WHAT}-{key}:#1", "a.b", 1)])
                await (started(connection) if key == "kept" else refused(connection))
                await (transaction.commit() if key == "kept" else transaction.rollback())
                assert await found(f"{WHAT}-{key}") == (0, int(key == "kept"))
        await runs(pool, through_async(lambda connection, sql: connection.execute(sql)))


def sqlalchemy_sync():
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session

    engine = create_engine(OTHER.replace("postgresql", "postgresql+psycopg", 1))
    with Session(engine) as session:
        enqueued_blocking(session, session.commit, session.rollback)
    asyncio.run(runs(engine, through_blocking(lambda session, sql: session.execute(text(sql)))))


def psycopg_sync():
    with ConnectionPool(URL, min_size=1, max_size=3) as pool:
        with pool.connection() as connection:
            enqueued_blocking(connection, connection.commit, connection.rollback)
            for wrong, reason in (({"business_id": "a b"}, "business_id"), ({"data": {}}, "data"), ({"type": "none"}, "definition"), ({"version": 2}, "definition")):
                oncebox.sync.wait(refused(connection, oncebox.sync.start_saga, reason=reason, **{"business_id": "other", **wrong}))
                connection.rollback()
        asyncio.run(runs(pool, through_blocking(lambda connection, sql: connection.execute(sql))))
    asyncio.run(psycopg_async())


async def psycopg_async():
    import psycopg

    async with await psycopg.AsyncConnection.connect(URL) as connection:
        first = await oncebox.start_saga(connection, "order", f"{WHAT}-async", {"order": 1}, version=1)
        assert (first.key, first.is_new) == (f"{WHAT}-async:order", True)
        await connection.commit()
        await refused(connection, business_id="other", reason="definition", version=2)
        await connection.rollback()


def django():
    from urllib.parse import urlsplit

    from django.conf import settings

    parts = urlsplit(URL)
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "HOST": parts.hostname, "PORT": parts.port}
    database |= {"USER": parts.username, "PASSWORD": parts.password or "", "OPTIONS": {"pool": {"min_size": 1, "max_size": 3}}}
    settings.configure(DATABASES={"default": database})
    from django.db import connection, transaction

    for key in ("kept", "lost"):
        try:
            with transaction.atomic():
                assert oncebox.sync.enqueue(connection, f"{WHAT}-{key}:out", "a.b", {"n": 1})
                if key == "lost":
                    oncebox.sync.wait(refused(connection, oncebox.sync.start_saga))
                    raise Refused
                oncebox.sync.wait(started(connection))
        except Refused:
            pass
        assert asyncio.run(found(f"{WHAT}-{key}")) == (0, int(key == "kept"))

    def execute(given, sql):
        with given.cursor() as cursor:
            cursor.execute(sql)

    asyncio.run(runs(connection, through_blocking(execute)))
    connection.close()
    connection.close_pool()


match WHAT:
    case "sqlalchemy-psycopg":
        asyncio.run(sqlalchemy_async("psycopg"))
    case "sqlalchemy-asyncpg":
        asyncio.run(sqlalchemy_async("asyncpg"))
    case "asyncpg":
        asyncio.run(asyncpg())
    case "sqlalchemy":
        sqlalchemy_sync()
    case "psycopg":
        psycopg_sync()
    case "django":
        django()
print("all is well")
