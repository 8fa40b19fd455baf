// The metrics of an inbox in OpenTelemetry, as a test: with DATABASE_URL of a migrated database.
import assert from "node:assert/strict";
import { test } from "node:test";
import { metrics } from "@opentelemetry/api";
import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";
import pg from "pg";
import { Dead, Inbox, Reject } from "../dist/index.js";

test("runs, durations, outcomes and runs under way are measured", async () => {
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const provider = new MeterProvider({ readers: [new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 60_000 })] });
  metrics.setGlobalMeterProvider(provider);
  const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 2 });
  const inbox = new Inbox(pool, "measured", { log: { info() {}, warn() {} } });
  await inbox.register();
  const handler = async (_: unknown, what: string) => {
    if (what === "dead") {
      throw new Dead("no use");
    }
    return what === "reject" ? new Reject("no") : undefined;
  };
  for (const what of ["done", "done", "reject", "dead"]) {
    await inbox.run(handler, { subject: "s", payload: Buffer.from(JSON.stringify(what)), headers: { "idempotency-key": what } });
  }
  await provider.forceFlush();
  const measured = exporter.getMetrics().flatMap(({ scopeMetrics }) => scopeMetrics).flatMap((scope) => scope.metrics);
  const points = (name: string) => measured.find(({ descriptor }) => descriptor.name === name)!.dataPoints as { attributes: Record<string, unknown>; value: any }[];
  const outcomes = Object.fromEntries(points("oncebox_inbox_messages").map(({ attributes, value }) => [attributes.outcome, value]));
  assert.deepEqual(outcomes, { handled: 1, replayed: 1, rejected: 1, dead: 1 });
  assert.equal(points("oncebox_inbox_run_seconds")[0]!.value.count, 3);
  assert.equal(points("oncebox_inbox_running")[0]!.value, 0);
  await provider.shutdown();
  await pool.end();
});
