/** The span that a handler runs in, where the package @opentelemetry/api is installed: that of docs/metrics.md. */
import { createRequire } from "node:module";

import { found } from "./errors.ts";
import type { Message } from "./message.ts";
import { TimedOut } from "./transaction.ts";

const api = installed();

/** Runs a handler in a child of the span that the message's `traceparent` names; an error says why it left no effect. */
export async function handling<R>(scope: string, key: string, message: Message, run: () => Promise<R>): Promise<R> {
  if (api === undefined) {
    return await run();
  }
  const attributes = {
    ...{ "messaging.system": "nats", "messaging.operation.name": "process", "messaging.operation.type": "process" },
    ...{ "messaging.consumer.group.name": scope, "messaging.destination.name": message.subject, "messaging.message.id": key },
    ...{ "oncebox.scope": scope, "oncebox.delivery": message.deliveries ?? 1 },
  };
  const parent = api.propagation.extract(api.ROOT_CONTEXT, message.headers);
  const tracer = api.trace.getTracer("oncebox");
  return await tracer.startActiveSpan("handle", { kind: api.SpanKind.CONSUMER, attributes }, parent, async (span) => {
    try {
      return await run();
    } catch (error) {
      // The text of an error may quote the payload.
      quietly(() => span.setStatus({ code: api.SpanStatusCode.ERROR }).setAttribute("error.type", cause(error)));
      throw error;
    } finally {
      quietly(() => span.end());
    }
  });
}

/** The headers of a message that is enqueued in a span: the span goes with it, unless they name one. */
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
  const isTold = found(error, "Dead") ? "dead" : found(error, "RetryAfter") ? "retry" : error instanceof TimedOut ? "timeout" : null;
  return isTold ?? (error instanceof Error ? error.name : typeof error);
}

/** Without an `await` at the top of the module, which would keep programs from `require("oncebox")`. */
function installed(): typeof import("@opentelemetry/api") | undefined {
  try {
    return createRequire(import.meta.url)("@opentelemetry/api");
  } catch {
    return undefined;
  }
}
