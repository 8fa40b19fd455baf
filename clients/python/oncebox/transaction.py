"""The transaction that a handler writes through: its connection, its end, and what it leaves behind."""

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import AsyncIterator

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from .deadline import Deadline
from .wire import SESSION, Parameters, execute_all

ENDED = "the handler ended the transaction by itself"
# Raises an error in another transaction than that of the claim.
_CHECK = (
    f"SELECT CASE WHEN pg_current_xact_id_if_assigned()::text = '{{xid}}' THEN {SESSION}"
    f" ELSE concat('{ENDED}', pg_current_xact_id_if_assigned())::int::text END; "
)


class Run:
    """Of the run of a handler that is under way: the id of the transaction that has claimed its key."""

    xid: str | None = None
    # As it was when the handler began.
    session: str | None = None
    # Whether COMMIT has been sent.
    is_ending: bool = False


class Unattempted(Exception):
    """No connection was to be had, so nothing was attempted; the cause says why."""


@asynccontextmanager
async def connected(pool: AsyncConnectionPool, step_timeout: float) -> AsyncIterator[tuple[AsyncConnection, Deadline]]:
    """A connection, and the deadline of the steps on it; the first has begun, and the last is COMMIT or ROLLBACK."""
    with Deadline(step_timeout) as deadline:
        try:
            # The pool keeps to its own limit, except while it checks a connection.
            async with asyncio.timeout(step_timeout + 1):
                connection = await pool.getconn(step_timeout)
        except TimeoutError:
            raise Unattempted from PoolTimeout("the pool's check of a connection got no answer")
        except (PoolTimeout, psycopg.OperationalError) as error:
            raise Unattempted from error
        deadline.begin(connection)
        # Otherwise each statement would be committed by itself.
        is_autocommit = connection.autocommit
        try:
            if is_autocommit:
                await connection.set_autocommit(False)
            async with connection:
                yield connection, deadline
        finally:
            if is_autocommit:
                with suppress(psycopg.Error):  # of a broken connection
                    await connection.set_autocommit(True)
            await pool.putconn(connection)


async def commit(connection: AsyncConnection, run: Run, settle: str = "", parameters: Parameters = ()) -> str:
    """Settles and commits in one round trip, if this still is the transaction that made the claim.

    Returns the session's settings just before the COMMIT."""
    check_open(connection)
    run.is_ending = True
    try:
        # The id is a number of PostgreSQL's. In the text it costs less than as a parameter.
        text = f"{_CHECK.replace('{xid}', run.xid)}{settle}COMMIT"
        (session,), *_ = await execute_all(connection, text, parameters)
    except psycopg.errors.InvalidTextRepresentation as refused:
        raise (RuntimeError(ENDED) if ENDED in str(refused) else refused) from None
    return session


def check_open(connection: AsyncConnection) -> None:
    """Fails unless a transaction is open, without an error and without a statement under way."""
    match connection.info.transaction_status:
        case TransactionStatus.IDLE:
            raise RuntimeError(ENDED)
        case TransactionStatus.INERROR:
            raise RuntimeError("the handler caught an error that has aborted the transaction")
        case TransactionStatus.ACTIVE:
            raise RuntimeError("the handler has ended, and a statement that it did not await goes on")


async def check_session(connection: AsyncConnection, run: Run) -> None:
    """Rolls back what is open, and closes a connection that the handler has changed for all behind it."""
    try:
        ((session,),) = await execute_all(connection, f"ROLLBACK; SELECT {SESSION}")
    except psycopg.Error:
        session = None
    if session != run.session:
        connection.pgconn.finish()


async def limited(running, seconds: float):
    """Waits for a handler. A cancellation that is not the consumer's, as of a task that the handler waits
    for, is an error like any other; else it would end the consumer without one."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await running
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():
            raise
        raise RuntimeError("the handler was cancelled from within") from None
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"the handler takes longer than {seconds:g} s") from None
        raise
