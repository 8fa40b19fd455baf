"""What a handler returns, as it is stored."""

import json
from typing import Any

from .causes import first_line
from .message import Dead, Reject

# The most bytes of a stored reply.
REPLY_MAX = 1 << 20


def ended(reply: Any) -> tuple[str, Any, str]:
    """The status of a key whose handler has returned this, the reply, and its JSON. A reply that has none, or is
    too long, would be so at each attempt: the message is given up."""
    status, stored = ("rejected", reply.reply) if isinstance(reply, Reject) else ("completed", reply)
    try:
        text = json.dumps(stored, allow_nan=False)
    except Exception as error:
        raise Dead(f"the handler's reply has no JSON: {first_line(error)}") from error
    if len(text) > REPLY_MAX:
        raise Dead(f"the handler's reply is {len(text)} bytes of JSON; the limit is {REPLY_MAX} bytes (1 MiB)")
    return status, stored, text
