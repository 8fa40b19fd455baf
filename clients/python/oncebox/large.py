"""Payloads that lie in a bucket of the NATS Object Store: fetched and checked before the inbox sees the message."""

import json
import re
from base64 import urlsafe_b64encode
from dataclasses import replace
from hashlib import sha256

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from .message import Message


class Wrong(Exception):
    """The object is missing, or is not the one that the message names: a failed attempt."""


def is_elsewhere(message: Message) -> bool:
    """Whether the payload lies in a bucket."""
    return not message.payload and "oncebox-object" in message.headers


async def whole(jetstream: JetStreamContext, message: Message, bytes_max: int) -> Message:
    """The message with its payload. Any other error than `Wrong` says that NATS does not answer now."""
    if not is_elsewhere(message):
        return message
    place, size, digest = (message.headers.get(f"oncebox-object{part}", "") for part in ("", "-bytes", "-digest"))
    bucket, _, name = place.partition("/")
    if not (re.fullmatch(r"[A-Za-z0-9_-]+", bucket) and name and re.fullmatch(r"[0-9]{1,18}", size) and digest):
        raise Wrong("the headers that name the object of the payload are incomplete")
    if int(size) > bytes_max:
        raise Wrong(f"object {place} has {size} bytes, and object_bytes_max allows {bytes_max}")
    try:
        payload = await _read(jetstream, bucket, name, int(size))
    except NotFoundError as error:
        raise Wrong(f"object {place} is not there: {error.description}") from error
    if len(payload) != int(size) or f"SHA-256={urlsafe_b64encode(sha256(payload).digest()).decode()}" != digest:
        raise Wrong(f"object {place} is not the one that the message names")
    return replace(message, payload=bytes(payload))


async def _read(jetstream: JetStreamContext, bucket: str, name: str, size: int) -> bytearray:
    """Chunk by chunk, and so each answer is small, and one that is missing is known at once."""
    subject = f"$O.{bucket}.M.{urlsafe_b64encode(name.encode()).decode()}"
    described = await jetstream.get_last_msg(f"OBJ_{bucket}", subject)
    try:
        nuid = json.loads(described.data or b"")["nuid"]
    except (ValueError, LookupError, TypeError) as error:
        raise Wrong(f"object {bucket}/{name} has no readable description") from error
    payload, sequence = bytearray(), 1
    while len(payload) < size:
        chunk = await jetstream.get_msg(f"OBJ_{bucket}", sequence, f"$O.{bucket}.C.{nuid}", next=True)
        if not chunk.data:
            break
        payload += chunk.data
        sequence = chunk.seq + 1
    return payload
