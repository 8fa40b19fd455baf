/** The span that a handler runs in, where the package @opentelemetry/api is installed: that of docs/metrics.md. */
import { createRequire } from "node:module";

import { Dead, type Message, RetryAfter } from "./message.ts";
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
      span.setStatus({ code: api.SpanStatusCode.ERROR }).setAttribute("error.type", cause(error));
      throw error;
    } finally {
      span.end();
    }
  });
}

/** The headers of a message that is enqueued in a span: the span goes with it, unless they name one. */
export function withContext(headers: Record<string, string>): Record<string, string> {
  const given = { ...headers };
  if (api !== undefined && !Object.keys(given).some((name) => name.toLowerCase() === "traceparent")) {
    api.propagation.inject(api.context.active(), given);
  }
  return given;
}

function cause(error: unknown): string {
  const isTold = error instanceof Dead ? "dead" : error instanceof RetryAfter ? "retry" : error instanceof TimedOut ? "timeout" : null;
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
