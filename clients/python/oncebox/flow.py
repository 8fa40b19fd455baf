"""A relay and consumers, until all messages of a test are done."""

import asyncio
import contextlib
import os
from collections import deque
from typing import Any, AsyncIterator, Awaitable, Callable, Sequence

from .causes import reason_of

# In the log of a relay that has made its streams, and how many lines of a log an error shows.
RUNNING, LOG_LINES = "relay is running", 10
# How many seconds consumers have to finish.
STOP_MAX = 10.0

Running = Callable[[asyncio.Event], Awaitable[Any]] | Sequence[str]


class FlowError(Exception):
    """Not all messages are done: the text names each that is left or was given up, with its reason; or the relay,
    or a consumer, has ended."""


class Flow:
    """Runs a relay and your consumers until all messages are done: those that your test has enqueued, those that
    handlers enqueue, and so on. The relay is the program `oncebox`, on your PostgreSQL and nats-server.

    `streams` are made if they are missing, in the words of the relay's option: `ORDERS=orders.>,payments.>`.
    """

    def __init__(self, database_url: str, nats_url: str, *, streams: Sequence[str] = (), program: str = "oncebox"):
        self.program, self.streams = program, streams
        self._consumers: list[tuple[str, Running]] = []
        own = {"DATABASE_URL": database_url, "NATS_URL": nats_url, "ONCEBOX_HTTP_LISTEN": "off", "ONCEBOX_LOG": "info"}
        self._environment = {**os.environ, **own}

    def consumer(self, name: str, running: Running) -> "Flow":
        """A consumer, by the names of stream and durable consumer, `ORDERS/payment`. `running` gets the event to stop
        by, for `Consumer.run(inbox, handler, stop)`; or it is a program and its arguments, such as
        `["oncebox", "saga", "run", "order.toml"]` for `SAGAS/oncebox-saga-replies`, which gets DATABASE_URL and NATS_URL."""
        self._consumers.append((name, running))
        return self

    async def run_until_quiet(self, within: float = 20.0) -> None:
        """Runs them until no message is due, parked or at a consumer; one that is delayed for later is not waited for.
        A FlowError says which messages are left after so many seconds, an hour at most, or were given up."""
        begun, stop = asyncio.Event(), asyncio.Event()
        streams = ["--stream", ";".join(self.streams)] if self.streams else []
        relay = asyncio.create_task(self._program("the relay", [self.program, "relay", *streams], stop, begun))
        consumers = [asyncio.create_task(self._consume(name, running, begun, stop)) for name, running in self._consumers]
        waiting = asyncio.create_task(self._quiet(within))
        tasks = [waiting, relay, *consumers]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            next(iter(done & {waiting} or done)).result()
        finally:
            stop.set()
            await asyncio.wait(tasks[1:], timeout=STOP_MAX)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _consume(self, name: str, running: Running, begun: asyncio.Event, stop: asyncio.Event) -> None:
        # It would find no stream before.
        await begun.wait()
        if not callable(running):
            return await self._program(f"the consumer {name}", running, stop)
        try:
            await running(stop)
        except Exception as error:
            raise FlowError(f"the consumer {name} has ended: {reason_of(error)}") from error
        if not stop.is_set():
            raise FlowError(f"the consumer {name} has ended without an error")

    async def _program(self, what: str, command: Sequence[str], stop: asyncio.Event, begun: asyncio.Event | None = None) -> None:
        """Runs a program until it is told to stop; fails if it ends before."""
        last: deque[str] = deque(maxlen=LOG_LINES)
        async with self._started(command, stderr=asyncio.subprocess.PIPE) as process:
            stopping = asyncio.create_task(_terminate(process, stop))
            try:
                async for line in process.stderr:
                    last.append(line.decode(errors="replace").rstrip())
                    if begun is not None and RUNNING in last[-1]:
                        begun.set()
                status = await process.wait()
            finally:
                stopping.cancel()
        if not stop.is_set():
            raise FlowError(f"{what} has ended ({status}): " + "\n".join(last))

    async def _quiet(self, within: float) -> None:
        command = [self.program, "status", "--until-quiet", str(round(min(max(within, 1), 3600)))]
        command += [word for name, _ in self._consumers for word in ("--consumer", name)]
        async with self._started(command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT) as process:
            said, _ = await process.communicate()
        if process.returncode != 0:
            raise FlowError(said.decode(errors="replace"))

    @contextlib.asynccontextmanager
    async def _started(self, command: Sequence[str], **pipes: Any) -> AsyncIterator[asyncio.subprocess.Process]:
        nowhere = asyncio.subprocess.DEVNULL
        given = {"stdin": nowhere, "stdout": nowhere, **pipes}
        process = await asyncio.create_subprocess_exec(*command, env=self._environment, limit=1 << 20, **given)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _terminate(process: asyncio.subprocess.Process, stop: asyncio.Event) -> None:
    await stop.wait()
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
