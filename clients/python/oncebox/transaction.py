"""The transaction that a handler writes through: its connection, its end, and what it leaves behind."""

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, AsyncIterator, Iterator

import psycopg
from psycopg import AsyncPipeline
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg_pool import PoolTimeout

from .causes import is_useless
from .deadline import Deadline
from .message import PipelinedHandler
from .ports import Port, as_psycopg, port_of
from .wire import SESSION, Handle, Parameters, close, execute_all, send

log = logging.getLogger("oncebox")

# A wait for a connection is logged after this number of seconds.
SLOW_POOL = 10.0
ENDED = "the handler ended the transaction by itself"


class Run:
    """Of the run of a handler that is under way: the id of the transaction that has claimed its key."""

    xid: str | None = None
    # As it was when the handler began.
    session: str | None = None
    # Whether COMMIT has been sent.
    is_ending: bool = False

    def check(self, answer: str = "NULL") -> str:
        """A statement that answers this, and fails in another transaction than that of the claim."""
        # The id is a number of PostgreSQL's. In the text it costs less than as a parameter.
        ended = f"concat('{ENDED}', pg_current_xact_id_if_assigned())::int::text"
        return f"SELECT CASE WHEN pg_current_xact_id_if_assigned()::text = '{self.xid}' THEN {answer} ELSE {ended} END"


class Unattempted(Exception):
    """No connection was to be had, so nothing was attempted; the cause says why."""

    # It was had, was of no use, and is closed.
    is_closed = False


@contextmanager
def before_handler(connection: Any) -> Iterator[None]:
    """What a broken connection costs before the handler is called is no attempt."""
    try:
        yield
    except psycopg.Error as error:
        if not is_useless(error) and (error.sqlstate or not isinstance(error, psycopg.OperationalError)):
            raise
        close(connection)
        unattempted = Unattempted()
        unattempted.is_closed = True
        raise unattempted from error


def check_handler(source: Any, handler: Any) -> None:
    """Fails unless a handler waits exactly if its library does not block."""
    port = port_of(source)
    if isinstance(handler, PipelinedHandler):
        handler = handler.handle
        if port is not None:
            raise TypeError("a PipelinedHandler needs an AsyncConnectionPool of psycopg's, which has pipelines")
    is_blocking, is_async = port is not None and port.is_blocking, iscoroutinefunction(handler)
    if is_blocking == (is_async or iscoroutinefunction(getattr(handler, "__call__", None))):
        kind = "def, since its library blocks; a SetHandler needs one that does not" if is_blocking else "async def"
        raise TypeError(f"this inbox needs a handler that is {kind}")


def check_blocking(source: Any) -> None:
    port = port_of(source)
    if port is not None and port.is_blocking:
        raise TypeError("the idempotency layer needs a library that does not block: AsyncConnectionPool, AsyncEngine, or asyncpg's pool")


@asynccontextmanager
async def connected(
    pool: Any, step_timeout: float, wait: float | None = None, autocommit: bool = False
) -> AsyncIterator[tuple[Any, Deadline]]:
    """A connection, and the deadline of the steps on it; the first has begun, and the last is COMMIT or ROLLBACK.

    `wait` is for how many seconds to wait for one, if not as long as for a step. With `autocommit` a statement is a
    transaction, in one round trip instead of three; libraries behind a port have transactions of their own."""
    if (port := port_of(pool)) is not None:
        async with _through(port, step_timeout, wait or step_timeout) as through:
            yield through
        return
    with Deadline(step_timeout) as deadline:
        try:
            # The pool keeps to its own limit, except while it checks a connection.
            with _slow_pool_is_told():
                async with asyncio.timeout((wait or step_timeout) + 1):
                    connection = await pool.getconn(wait or step_timeout)
        except TimeoutError:
            raise Unattempted from PoolTimeout("the pool's check of a connection got no answer")
        except psycopg.OperationalError as error:
            raise Unattempted from error
        deadline.begin(connection)
        # As the pool has it, each statement might be committed by itself, or none.
        before = connection.autocommit
        try:
            if before != autocommit:
                await connection.set_autocommit(autocommit)
            async with connection:
                try:
                    yield connection, deadline
                except Exception as error:
                    if is_useless(error):
                        close(connection)
                    raise
        finally:
            if before != autocommit:
                with suppress(psycopg.Error):  # of a broken connection
                    await connection.set_autocommit(before)
            await pool.putconn(connection)


@contextmanager
def _slow_pool_is_told() -> Iterator[None]:
    text = "no connection of the pool has been free for %g s: it needs one for each worker (concurrency), one more in strict order"
    timer = asyncio.get_running_loop().call_later(SLOW_POOL, log.warning, text + " or under a lease, and those of your own code", SLOW_POOL)
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def _through(port: Port, step_timeout: float, wait: float) -> AsyncIterator[tuple[Port, Deadline]]:
    with Deadline(step_timeout) as deadline:
        try:
            with _slow_pool_is_told():
                async with asyncio.timeout(wait + 1):
                    await port.open(wait)
        except Exception as error:
            raise Unattempted from (error if isinstance(error, psycopg.Error) else as_psycopg(error))
        deadline.begin(port)
        try:
            yield port, deadline
            await port.commit()
        except BaseException as error:
            port.is_spoiled |= is_useless(error)
            with suppress(psycopg.Error):
                await port.rollback()
            raise
        finally:
            await port.release()


async def commit(connection: Any, run: Run, settle: str = "", parameters: Parameters = ()) -> None:
    """Settles and commits in one round trip, if this still is the transaction that made the claim."""
    check_open(connection)
    run.is_ending = True
    with _end_is_told():
        (session,), *_ = await execute_all(connection, f"{run.check(SESSION)}; {settle}COMMIT", parameters)
    if session != run.session:
        await check_session(connection, run)


@contextmanager
def _end_is_told() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InvalidTextRepresentation as refused:
        raise (RuntimeError(ENDED) if ENDED in str(refused) else refused) from None


def check_open(connection: Any) -> None:
    """Fails unless a transaction is open, without an error and without a statement under way."""
    if isinstance(connection, Port):
        if not connection.is_open:
            raise RuntimeError(ENDED)
        return
    match connection.info.transaction_status:
        case TransactionStatus.IDLE:
            raise RuntimeError(ENDED)
        case TransactionStatus.INERROR:
            raise RuntimeError("the handler caught an error that has aborted the transaction")
        case TransactionStatus.ACTIVE:
            raise RuntimeError("the handler has ended, and a statement that it did not await goes on")


@asynccontextmanager
async def undone(connection: Any, run: Run) -> AsyncIterator[None]:
    """What fails here is rolled back."""
    try:
        yield
    except Exception:
        await check_session(connection, run)
        raise


@contextmanager
def lent(connection: Any, run: Run) -> Iterator[Handle]:
    """The connection as a handler has it, until the end."""
    handle = Handle(connection)
    own = {} if isinstance(connection, Port) else vars(handle.connection)
    own["pipeline"] = partial(pipelined, handle.connection, run)
    try:
        yield handle
    finally:
        handle.revoke()
        # It refers to the connection that has it, and only the collector ends such circles.
        del own["pipeline"]


@asynccontextmanager
async def pipelined(connection: Any, run: Run) -> AsyncIterator[AsyncPipeline]:
    """A pipeline of psycopg's. The end of each, nested ones included, commits what was sent behind a ROLLBACK
    of the handler's, unless an error comes before."""
    await _check_sent(connection, run)
    with _end_is_told():
        async with type(connection).pipeline(connection) as pipeline:
            try:
                yield pipeline
                await _check_sent(connection, run)
            except BaseException:
                # Each time it takes in at least one answer. Else psycopg would warn of those that follow from the error.
                while not connection.closed:
                    with suppress(psycopg.Error):
                        await pipeline.sync()
                        break
                raise


async def answered(pipeline: AsyncPipeline, connection: Any, run: Run) -> None:
    """Waits until all that was sent is done, in the transaction that made the claim."""
    await _check_sent(connection, run)
    await pipeline.sync()
    check_open(connection)


async def _check_sent(connection: Any, run: Run) -> None:
    """Has what was sent fail with a statement behind it, unless it is in the transaction that made the claim."""
    if connection.info.pipeline_status != PipelineStatus.OFF and connection.info.transaction_status == TransactionStatus.ACTIVE:
        await send(connection, run.check())


async def check_session(connection: Any, run: Run) -> None:
    """Rolls back what is open, and closes a connection that the handler has changed for all behind it."""
    try:
        ((session,),) = await execute_all(connection, f"ROLLBACK; SELECT {SESSION}")
    except psycopg.Error:
        session = None
    if session != run.session:
        close(connection)


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
