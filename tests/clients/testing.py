"""The helpers for users' tests, in their own test: see tests/it/clients/testing.rs."""

import asyncio
import os
import subprocess
import uuid
from pathlib import Path

import nats
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


SAGA = """
name = "order"
version = 1
[data]
"/order" = "integer"
[[step]]
name = "reserve"
subject = "{0}.do.reserve"
scope = "reserve"
no_compensation = true
payload = {{ from = "/data" }}
"""


def test_a_flow_until_all_is_done_and_what_is_left(database_url, tmp_path):
    async def test():
        program, nats_url, name = os.environ["ONCEBOX"], os.environ["NATS_URL"], f"flow{uuid.uuid4().hex[:8]}"
        client = await nats.connect(nats_url)
        replier, done = oncebox.Replier(f"{name}.replies"), []

        async def charge(cx, order):
            done.append(cx.key)
            if order.get("order") == 13:
                raise oncebox.Dead("a bad number")
            if cx.message.subject.endswith(".placed"):
                await oncebox.enqueue(cx.connection, oncebox.step_key(cx.key, "ship"), f"{name}.do.shipped", {})
            await replier.reply(cx)

        def flow(pool):
            consumer = oncebox.Consumer(client.jetstream(), name, "charge", filter_subject=f"{name}.do.>", concurrency=2)
            inbox = oncebox.Inbox(pool, scope="reserve")
            flow = testing.Flow(database_url, nats_url, streams=[f"{name}={name}.>"], program=program)
            return flow.consumer(f"{name}/charge", lambda stop: consumer.run(inbox, charge, stop))

        file = tmp_path / "order.toml"
        file.write_text(SAGA.format(name))
        leads = [program, "saga", "run", str(file), "--reply-to", f"{name}.replies"]
        apply = [program, "saga", "apply", str(file), "--reply-to", f"{name}.replies", "--database-url", database_url]
        subprocess.run(apply, check=True, stdout=subprocess.DEVNULL)
        async with AsyncConnectionPool(database_url, min_size=1, max_size=4) as pool:
            async with pool.connection() as connection:
                await oncebox.enqueue(connection, "k", f"{name}.do.placed", {})
                await oncebox.start_saga(connection, "order", "4711", {"order": 1})
            await flow(pool).consumer(f"{name}/oncebox-saga-replies", leads).run_until_quiet(30)
            assert {"k", "k:ship", "4711:order:reserve"} <= set(done), done
            async with pool.connection() as connection:
                assert await (await connection.execute("SELECT state FROM oncebox.saga")).fetchall() == [("completed",)]
                await oncebox.enqueue(connection, "bad", f"{name}.do.placed", {"order": 13})
            with pytest.raises(testing.FlowError, match="bad.*a bad number"):
                await flow(pool).run_until_quiet(30)
            with pytest.raises(testing.FlowError, match="the consumer .*/lame has ended .1.: .*is needed"):
                await flow(pool).consumer(f"{name}/lame", ["sh", "-c", "echo its stream is needed >&2; exit 1"]).run_until_quiet(30)
        await client.close()

    asyncio.run(test())


if __name__ == "__main__":
    raise SystemExit(pytest.main([str(Path(__file__)), "-q", "-p", "no:cacheprovider"]))
