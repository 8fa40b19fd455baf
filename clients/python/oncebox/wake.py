"""Waking relays that sleep beside a database that is suspended when nobody uses it: see docs/operations.md."""

import asyncio
import logging
from typing import Any
from urllib.parse import quote

log = logging.getLogger("oncebox")
_WITHIN = 0.1


async def wake(client: Any, database: str, *, schema: str = "oncebox") -> None:
    """Sends a hint to the relays of this database, over a connection of nats-py. Call it after COMMIT.

    It is never needed: without it a relay that sleeps sends the message when it wakes by itself. It does not
    fail, and waits for a tenth of a second at most: a hint that NATS does not take is dropped.
    """
    try:
        async with asyncio.timeout(_WITHIN):
            await client.publish(f"_ONCEBOX.wake.{_token(database)}.{_token(schema)}", b"")
    except Exception as error:
        log.debug("no hint for the relays of %s: %r", database, error)


def _token(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
