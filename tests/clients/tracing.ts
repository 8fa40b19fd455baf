// Handles messages in spans, and prints these: see tests/it/clients/tracing.rs.
import { SpanKind } from "@opentelemetry/api";
import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-node";
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { Consumer, type Context, Dead, enqueue, type Entry, Inbox, RetryAfter, stepKey } from "oncebox";
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

// The messages of the stream as sets, of which the first fails.
const [stop, seen] = [new AbortController(), new Set<string>()];
let hasFailed = false;
async function handleSet(_: unknown, entries: Entry<string>[]) {
  if (entries.length > 1 && !hasFailed) {
    hasFailed = true;
    throw new RangeError("as it was told");
  }
  entries.forEach(({ key }) => seen.add(key));
  seen.size === Number(process.env.MESSAGES) && stop.abort();
}
const connection = await connect({ servers: process.env.NATS_URL! });
const consumer = new Consumer(jetstream(connection), process.env.STREAM!, "tracing", { batch: 16, concurrency: 1 });
await consumer.runSet(inbox, handleSet, stop.signal);
await connection.close();

const finished = spans.getFinishedSpans();
for (const span of [...finished.slice(0, 5), ...finished.filter(({ name }) => name === "handle_set")]) {
  const { name, kind, parentSpanContext, attributes, links } = span;
  const { "error.type": cause = "-", ...others } = attributes;
  const parts = Object.entries(others).sort().map(([attribute, value]) => `${attribute}=${value}`);
  const { traceId, spanId } = span.spanContext();
  const linked = new Set(links.map(({ context }) => `${context.traceId}:${context.spanId}`));
  const place = parentSpanContext === undefined ? [links.length, ...linked] : [traceId, parentSpanContext.spanId];
  console.log(name, SpanKind[kind], ...place, spanId, ...parts, cause);
}
await pool.end();
