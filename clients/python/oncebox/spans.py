"""The span that a handler runs in, where the package opentelemetry-api is installed: that of docs/metrics.md."""

import contextlib
from typing import Any, Callable, ContextManager, Iterator, Mapping, Sequence

from .message import Dead, Message, RetryAfter, Snooze
from .metrics import running

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    trace = None


def handling(scope: str, key: str, message: Message) -> ContextManager[None]:
    """A child of the span that the message's `traceparent` names; an error says why the handler left no effect."""
    of_message = {
        "messaging.destination.name": message.subject,
        "messaging.message.id": key,
        "oncebox.delivery": message.deliveries,
    }
    return _run("handle", scope, of_message, lambda: {"context": _parent(message)})


def handling_set(scope: str, messages: Sequence[Message]) -> ContextManager[None]:
    """Linked with the spans that the messages' `traceparent`s name: it cannot be a child of all."""

    def place() -> dict[str, Any]:
        parents = (trace.get_current_span(_parent(message)).get_span_context() for message in messages)
        return {"context": Context(), "links": [trace.Link(parent) for parent in parents if parent.is_valid]}

    return _run("handle_set", scope, {"messaging.batch.message_count": len(messages)}, place)


@contextlib.contextmanager
def _run(name: str, scope: str, more: dict[str, Any], place: Callable[[], dict[str, Any]]) -> Iterator[None]:
    if trace is None:
        with running(scope):
            yield
        return
    attributes = {
        "messaging.system": "nats",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": scope,
        "oncebox.scope": scope,
        **more,
    }
    try:
        span = trace.get_tracer("oncebox").start_span(name, kind=trace.SpanKind.CONSUMER, attributes=attributes, **place())
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


def _parent(message: Message) -> "Context":
    return TraceContextTextMapPropagator().extract(message.headers)


def with_context(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The headers of a message that is enqueued in a span: the span goes with it, unless they name one."""
    given = dict(headers or {})
    if trace is not None and not any(name.lower() == "traceparent" for name in given):
        TraceContextTextMapPropagator().inject(given)
    return given


def _cause(error: BaseException) -> str:
    words = {Dead: "dead", RetryAfter: "retry", TimeoutError: "timeout"}
    return next((word for kind, word in words.items() if isinstance(error, kind)), type(error).__name__)
