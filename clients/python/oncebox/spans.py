"""The span that a handler runs in, where the package opentelemetry-api is installed: that of docs/metrics.md."""

import contextlib
from typing import Any, Iterator, Mapping

from .message import Dead, Message, RetryAfter, Snooze
from .metrics import running

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    trace = None


@contextlib.contextmanager
def handling(scope: str, key: str, message: Message) -> Iterator[None]:
    """A child of the span that the message's `traceparent` names; an error says why the handler left no effect."""
    if trace is None:
        with running(scope):
            yield
        return
    attributes: dict[str, Any] = {
        "messaging.system": "nats",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": scope,
        "messaging.destination.name": message.subject,
        "messaging.message.id": key,
        "oncebox.scope": scope,
        "oncebox.delivery": message.deliveries,
    }
    try:
        parent = TraceContextTextMapPropagator().extract(message.headers)
        span = trace.get_tracer("oncebox").start_span("handle", parent, trace.SpanKind.CONSUMER, attributes)
    except Exception:
        # A processor or an exporter that fails costs no attempt.
        span = trace.INVALID_SPAN
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False), running(scope):
            yield
    except BaseException as error:
        if not isinstance(error, Snooze):
            # The text of an error may quote the payload.
            span.set_status(trace.StatusCode.ERROR)
            span.set_attribute("error.type", _cause(error))
        raise
    finally:
        with contextlib.suppress(Exception):
            span.end()


def with_context(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The headers of a message that is enqueued in a span: the span goes with it, unless they name one."""
    given = dict(headers or {})
    if trace is not None and not any(name.lower() == "traceparent" for name in given):
        TraceContextTextMapPropagator().inject(given)
    return given


def _cause(error: BaseException) -> str:
    words = {Dead: "dead", RetryAfter: "retry", TimeoutError: "timeout"}
    return next((word for kind, word in words.items() if isinstance(error, kind)), type(error).__name__)
