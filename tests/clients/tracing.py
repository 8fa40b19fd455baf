"""Handles messages in spans, and prints these: see tests/it/clients/tracing.rs."""

import asyncio
import os

import nats
import oncebox
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from psycopg_pool import AsyncConnectionPool

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def handle(cx: oncebox.Context, what: str):
    await oncebox.enqueue(cx.connection, oncebox.step_key(cx.key, "next"), "a.next", {})
    match what:
        case "dead":
            raise oncebox.Dead("no use")
        case "retry":
            raise oncebox.RetryAfter(0)
        case "slow":
            await asyncio.sleep(60)
        case "fails":
            raise ValueError("as it was told")


async def nothing(cx: oncebox.Context, what: str): ...


async def handle_sets(inbox: oncebox.Inbox):
    """Handles the messages of the stream as sets, of which the first fails."""
    stop, seen, has_failed = asyncio.Event(), set(), False

    async def handle_set(connection, entries):
        nonlocal has_failed
        if len(entries) > 1 and not has_failed:
            has_failed = True
            raise ValueError("as it was told")
        seen.update(entry.key for entry in entries)
        if len(seen) == int(os.environ["MESSAGES"]):
            stop.set()

    client = await nats.connect(os.environ["NATS_URL"])
    consumer = oncebox.Consumer(client.jetstream(), os.environ["STREAM"], "tracing", batch=16, concurrency=1)
    await consumer.run(inbox, oncebox.SetHandler(handle_set), stop)
    await client.close()


class Throws(SpanProcessor):
    def on_start(self, span, parent_context=None):
        raise RuntimeError("a processor that fails")

    def on_end(self, span):
        raise RuntimeError("a processor that fails")


def linked(span) -> str:
    return ",".join({f"{link.context.trace_id:032x}:{link.context.span_id:016x}" for link in span.links})


async def main():
    spans = InMemorySpanExporter()
    trace.set_tracer_provider(TracerProvider())
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(spans))
    async with AsyncConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=2) as pool:
        inbox = oncebox.Inbox(pool, scope="tracing", handler_timeout=2.0)
        for what in ("done", "dead", "retry", "slow", "fails"):
            headers = {"idempotency-key": what, "traceparent": PARENT}
            await inbox.run(handle, oncebox.Message("a.b", f'"{what}"'.encode(), headers))
        await handle_sets(inbox)
        trace.get_tracer_provider().add_span_processor(Throws())
        answer = await inbox.run(nothing, oncebox.Message("a.b", b'"done"', {"idempotency-key": "throws"}))
        assert answer.name == "handled", answer
    finished = spans.get_finished_spans()
    for span in finished[:5] + tuple(span for span in finished if span.name == "handle_set"):
        attributes = [f"{name}={value}" for name, value in sorted(span.attributes.items()) if name != "error.type"]
        context = f"{span.context.trace_id:032x} {span.parent.span_id:016x}" if span.parent else f"{len(span.links)} {linked(span)}"
        context += f" {span.context.span_id:016x}"
        print(span.name, span.kind.name, context, *attributes, span.attributes.get("error.type", "-"))


asyncio.run(main())
