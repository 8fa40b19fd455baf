"""The helpers for users' tests, in their own test: see tests/it/clients/testing.rs."""

import asyncio
import os
import uuid
from pathlib import Path

import oncebox
import psycopg
import pytest
from oncebox import testing
from psycopg_pool import AsyncConnectionPool

TABLE = "CREATE TABLE charge (key text, cents bigint)"


@pytest.fixture(scope="session")
def template():
    with testing.Template(os.environ["DATABASE_URL"], sql=[TABLE], program=os.environ["ONCEBOX"]) as template:
        yield template


@pytest.fixture
def database_url(template):
    with template.database() as url:
        yield url


def test_what_a_transaction_has_enqueued(database_url):
    async def test():
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await oncebox.enqueue(connection, "before", "a.b", {})
            await connection.commit()
            assert await testing.enqueued(connection) == []
            await oncebox.enqueue(connection, "k:pay", "a.pay", {"cents": 7}, ordering_key="o", headers={"A": "b"})
            async with connection.transaction():
                await oncebox.enqueue(connection, "k:later", "a.later", b"\xff", not_before=oncebox_time())
            (pay, later) = await testing.enqueued(connection)
            assert (pay.key, pay.subject, pay.json(), pay.headers, pay.ordering_key) == ("k:pay", "a.pay", {"cents": 7}, {"A": "b"}, "o")
            assert (pay.not_before, later.payload, later.not_before) == (None, b"\xff", oncebox_time())
            await connection.rollback()
            assert await testing.enqueued(connection) == []

    asyncio.run(test())


def oncebox_time():
    from datetime import datetime, timezone

    return datetime(2035, 1, 1, tzinfo=timezone.utc)


class Forgetful(oncebox.Inbox):
    """Breaks the promise that the scenarios are about."""

    async def run(self, handler, message):
        return await oncebox.Inbox(self.pool, scope=str(uuid.uuid4())).run(handler, message)


def wrong(**cents):
    return [f"{name.replace('_', '-')}: {found} instead of 7" for name, found in cents.items()]


TWICE = wrong(duplicate=21, crash_after_commit=14, lost_commit=14, concurrent_pair=14)


@pytest.mark.parametrize(
    ("inbox_class", "is_bad", "expected"),
    [(oncebox.Inbox, False, []), (oncebox.Inbox, True, wrong(crash_before_commit=14)), (Forgetful, False, TWICE)],
)
def test_a_handler_through_crashes(database_url, inbox_class, is_bad, expected):
    async def test():
        async with AsyncConnectionPool(database_url, min_size=1, max_size=6) as pool:

            async def charge(cx, data):
                insert = "INSERT INTO charge (key, cents) VALUES (%s, %s)"
                if is_bad:  # in a transaction of its own
                    async with pool.connection() as connection:
                        await connection.execute(insert, [cx.key, data["cents"]])
                else:
                    await cx.connection.execute(insert, [cx.key, data["cents"]])

            async def charged(key):
                async with pool.connection() as connection:
                    found = await connection.execute("SELECT sum(cents)::int FROM charge WHERE key = %s", [key])
                    return (await found.fetchone())[0]

            inbox = inbox_class(pool, scope="test")
            await inbox.register()
            return await testing.crashes(inbox, charge, lambda key: {"cents": 7}, charged)

    assert asyncio.run(test()) == expected


@pytest.mark.parametrize("is_bad", [False, True])
def test_a_leased_handler_through_crashes_at_each_statement(database_url, is_bad):
    async def test():
        made, looked = [], []

        async def charge(key):
            made.append(key)
            return key

        async def find(key):
            looked.append(key)
            return oncebox.Happened(key) if key in made else oncebox.Absent

        async def handle(cx, data):
            if is_bad:  # not as an effect
                await charge(f"{cx.key}:pay")
            return await cx.effect("pay", charge, reconcile=find)

        async with AsyncConnectionPool(database_url, min_size=1, max_size=6) as pool:

            async def finish(cx, reply):
                await cx.connection.execute("INSERT INTO charge (key, cents) VALUES (%s, %s)", [cx.key, 7])

            async def done(key):
                async with pool.connection() as connection:
                    found = await connection.execute("SELECT count(*)::int FROM charge WHERE key = %s", [key])
                    return made.count(f"{key}:pay"), (await found.fetchone())[0]

            inbox = oncebox.Inbox(pool, scope="test", lease=5.0)
            await inbox.register()
            wrong = await testing.crashes(inbox, oncebox.LeasedHandler(handle, finish=finish), lambda key: {"cents": 7}, done)
            assert looked, "some crash was between the call and its record"
            return wrong, len(made)

    wrong, count = asyncio.run(test())
    if is_bad:
        assert any(text.startswith("crash-") and "begin_effect" in text for text in wrong), wrong
    else:
        # Before and after the claim, two statements and the call of the effect, and COMMIT; and one run to the end.
        assert wrong == [] and count == 4 + 11, (wrong, count)


if __name__ == "__main__":
    raise SystemExit(pytest.main([str(Path(__file__)), "-q", "-p", "no:cacheprovider"]))
