/**
 * Spans and metrics of handlers, where the package @opentelemetry/api is installed: those of
 * docs/metrics.md.
 */
import { createRequire } from "node:module";
import type { Attributes, Counter, Histogram, MeterProvider, Span, UpDownCounter } from "@opentelemetry/api";

import { found } from "./errors.ts";
import type { Message } from "./message.ts";
import { TimedOut } from "./database.ts";

const api = installed();

/**
 * Runs a handler; if it rejects its message with an error, that is its result. It is a child of the
 * span that the message's `traceparent` names; an error says why it left no effect.
 */
export function handling<R>(scope: string, key: string, message: Message, handle: () => Promise<R>): Promise<R> {
  const run = () => handle().catch((error: unknown) => found<R>(error, "Reject") ?? Promise.reject(error));
  const attributes = { "messaging.destination.name": message.subject, "messaging.message.id": key, "oncebox.delivery": message.deliveries ?? 1 };
  return observed("handle", scope, attributes, [message], run);
}

/** Runs a handler of a set, whose span is linked with those of its messages: it cannot be a child of all. */
export function handlingSet<R>(scope: string, messages: Message[], handle: () => Promise<R>): Promise<R> {
  return observed("handle_set", scope, { "messaging.batch.message_count": messages.length }, messages, handle);
}

async function observed<R>(name: "handle" | "handle_set", scope: string, more: Attributes, messages: Message[], run: () => Promise<R>): Promise<R> {
  if (api === undefined) {
    return await run();
  }
  const [measures, began] = [instruments(), performance.now()];
  quietly(() => measures?.running.add(1, { scope }));
  const attributes = {
    ...{ "messaging.system": "nats", "messaging.operation.name": "process", "messaging.operation.type": "process" },
    ...{ "messaging.consumer.group.name": scope, "oncebox.scope": scope, ...more },
  };
  let [within, span] = [api.context.active(), undefined as Span | undefined];
  quietly(() => {
    const parents = messages.map(({ headers }) => api.propagation.extract(api.ROOT_CONTEXT, headers));
    const parent = name === "handle" ? parents[0]! : api.ROOT_CONTEXT;
    const contexts = name === "handle" ? [] : parents.map((of) => api.trace.getSpanContext(of));
    const links = contexts.flatMap((context) => (context === undefined ? [] : [{ context }]));
    span = api.trace.getTracer("oncebox").startSpan(name, { kind: api.SpanKind.CONSUMER, attributes, links }, parent);
    within = api.trace.setSpan(parent, span);
  });
  try {
    return await api.context.with(within, run);
  } catch (error) {
    if (found(error, "Snooze") === undefined) {
      // The text of an error may quote the payload.
      quietly(() => span?.setStatus({ code: api.SpanStatusCode.ERROR }).setAttribute("error.type", cause(error)));
    }
    throw error;
  } finally {
    quietly(() => span?.end());
    quietly(() => measures?.running.add(-1, { scope }));
    quietly(() => measures?.seconds.record((performance.now() - began) / 1000, { scope }));
  }
}

/** Counts how a run of a message has ended. */
export function count(scope: string, outcome: string): void {
  quietly(() => instruments()?.messages.add(1, { scope, outcome }));
}

/** Those of the provider of now: one that is registered later replaces none that is kept. */
function instruments() {
  const provider = api?.metrics.getMeterProvider();
  if (provider !== undefined && provider !== known?.provider) {
    const meter = provider.getMeter("oncebox");
    const messages = meter.createCounter("oncebox_inbox_messages", { description: "How messages ended, by outcome" });
    const seconds = meter.createHistogram("oncebox_inbox_run_seconds", { description: "How long runs of the handler took", unit: "s" });
    const running = meter.createUpDownCounter("oncebox_inbox_running", { description: "Runs of the handler under way" });
    known = { provider, messages, seconds, running };
  }
  return known;
}
let known: { provider: MeterProvider; messages: Counter; seconds: Histogram; running: UpDownCounter } | undefined;

/**
 * The headers of a message that is enqueued in a span: the span goes with it, unless they name one.
 */
export function withContext(headers: Record<string, string>): Record<string, string> {
  const given = { ...headers };
  if (api !== undefined && !Object.keys(given).some((name) => name.toLowerCase() === "traceparent")) {
    const carried: Record<string, string> = {};
    api.propagation.inject(api.context.active(), carried);
    // And no baggage, which is meant for services, not for the log.
    ["traceparent", "tracestate"].filter((name) => carried[name] !== undefined).forEach((name) => (given[name] = carried[name]!));
  }
  return given;
}

/** A processor of spans that throws costs no attempt. */
function quietly(work: () => unknown): void {
  try {
    work();
  } catch (error) {
    api?.diag.warn(`oncebox: a span is lost: ${error}`);
  }
}

function cause(error: unknown): string {
  const isTold = found(error, "Dead") ? "dead" : found(error, "RetryAfter") ? "retry" : found(error, "LeaseLost") ? "lease-lost"
    : error instanceof TimedOut ? "timeout" : null;
  return isTold ?? (error instanceof Error ? error.name : typeof error);
}

/**
 * Without an `await` at the top of the module, which would keep programs from `require("oncebox")`.
 */
function installed(): typeof import("@opentelemetry/api") | undefined {
  try {
    return createRequire(import.meta.url)("@opentelemetry/api");
  } catch {
    return undefined;
  }
}
