"""Outbox and inbox for PostgreSQL and NATS JetStream, with psycopg 3 and nats-py.

`enqueue` writes a message in the caller's transaction; a relay publishes it after the COMMIT. A
`Consumer` runs a handler once for each key, in one transaction with the handler's own writes.
"""

from .batch import Entry, SetHandler
from .consumer import Consumer
from .effect import Absent, Happened, LeaseLost, NotSent, OutcomeUnknown, Rejected, Unknown
from .inbox import Inbox
from .keys import part_key, root_key, step_key, undo_key
from .leased import LeasedContext, LeasedHandler
from .message import Context, Dead, Message, Origin, PipelinedHandler, Reject, RetryAfter, Snooze, Verdict
from .outbox import Outgoing, cancel_delayed, enqueue, enqueue_all
from .saga import Action, Barrier, Compensation, Replier, SagaRefused, Started, start_saga
from .wake import wake

__all__ = [
    *("Action", "Barrier", "Compensation", "Replier", "SagaRefused", "Started", "start_saga"),
    *("Consumer", "Context", "Dead", "Entry", "Inbox", "Message", "Origin", "Outgoing", "Reject", "RetryAfter"),
    *("Absent", "Happened", "LeaseLost", "LeasedContext", "LeasedHandler", "NotSent", "OutcomeUnknown", "Rejected", "Unknown"),
    *("PipelinedHandler", "SetHandler", "Snooze", "Verdict"),
    *("cancel_delayed", "enqueue", "enqueue_all", "part_key", "root_key", "step_key", "undo_key", "wake"),
]
