"""The right to consume in strict order: a transaction of its own connection, which stays open."""

import asyncio
import logging

import psycopg

from .inbox import Inbox
from .ports import check_size
from .transaction import connected
from .wire import close, execute

log = logging.getLogger("oncebox")
# Seconds between two questions; seconds within which an answer must come.
STANDBY, LOOK, ANSWER_WITHIN = 0.5, 1.0, 3.0


class Leader:
    """Asks for the right to consume until it has it, and again when it is lost."""

    def __init__(self, inbox: Inbox, stream: str, durable: str):
        check_size(inbox.pool, 2, 'order="strict", which keeps one for itself,')
        self.inbox, self.stream, self.durable = inbox, stream, durable
        # Set while this process may consume.
        self.leads = asyncio.Event()
        self.lost = asyncio.Event()
        self._task: asyncio.Task | None = None

    def __enter__(self) -> "Leader":
        self._task = asyncio.create_task(self._stay())
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()

    async def _stay(self) -> None:
        while True:
            try:
                await self._lead()
            except (psycopg.Error, TimeoutError, OSError) as error:
                if self.leads.is_set():
                    log.warning("consumer %s has lost the right to consume: %s", self.durable, error or type(error).__name__)
            finally:
                self.leads.clear()
                self.lost.set()
            await asyncio.sleep(STANDBY)

    async def _lead(self) -> None:
        """Returns when the right is lost, or raises."""
        inbox, standing_by = self.inbox, False
        statement = inbox.database.sql("SELECT {schema}.lead_consumer(%s, %s, %s)::text")
        async with connected(inbox.pool, inbox.step_timeout) as (connection, deadline):
            try:
                while True:
                    deadline.begin(connection, ANSWER_WITHIN - inbox.step_timeout)
                    answer = await execute(connection, statement, [inbox.scope, self.stream, self.durable])
                    if answer == ("true",):
                        break
                    if not standing_by:
                        log.info("consumer %s stands by while another process consumes, in strict order", self.durable)
                        standing_by = True
                    deadline.pause()
                    await asyncio.sleep(STANDBY)
                log.info("consumer %s: this process consumes, in strict order", self.durable)
                self.lost.clear()
                self.leads.set()
                while True:
                    deadline.begin(connection, ANSWER_WITHIN - inbox.step_timeout)
                    await execute(connection, "SELECT")
                    deadline.pause()
                    await asyncio.sleep(LOOK)
            finally:
                # No other user of the pool may get it with the transaction open.
                close(connection)
