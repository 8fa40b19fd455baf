// Handles messages in spans, and prints these: see tests/it/clients/tracing.rs.
import { SpanKind } from "@opentelemetry/api";
import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-node";
import { type Context, Dead, enqueue, Inbox, RetryAfter, stepKey } from "oncebox";
import { Pool } from "pg";

async function handle(cx: Context, what: string) {
  await enqueue(cx.client, { key: stepKey(cx.key, "next"), subject: "a.next", payload: {} });
  switch (what) {
    case "dead":
      throw new Dead("no use");
    case "retry":
      throw new RetryAfter(0);
    case "slow":
      await new Promise(() => {});
      break;
    case "fails":
      throw new RangeError("as it was told");
  }
}

const spans = new InMemorySpanExporter();
new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] }).register();
const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 2 });
const inbox = new Inbox<string>(pool, "tracing", { handlerTimeoutMs: 2_000 });
for (const what of ["done", "dead", "retry", "slow", "fails"]) {
  const headers = { "idempotency-key": what, traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" };
  await inbox.run(handle, { subject: "a.b", payload: Buffer.from(JSON.stringify(what)), headers });
}
for (const span of spans.getFinishedSpans()) {
  const { name, kind, parentSpanContext, attributes } = span;
  const { "error.type": cause = "-", ...others } = attributes;
  const parts = Object.entries(others).sort().map(([attribute, value]) => `${attribute}=${value}`);
  const { traceId, spanId } = span.spanContext();
  console.log(name, SpanKind[kind], traceId, parentSpanContext?.spanId, spanId, ...parts, cause);
}
await pool.end();
