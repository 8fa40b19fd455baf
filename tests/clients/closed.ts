// Consumers whose NATS client is closed for good, at work and before they begin: prints how each ends.
import { setTimeout as sleep } from "node:timers/promises";
import { jetstream } from "@nats-io/jetstream";
import { connect, headers } from "@nats-io/transport-node";
import { Consumer, Inbox } from "oncebox";
import { Pool } from "pg";

const log = { info() {}, warn() {} };

async function consume(pool: Pool, isAtWork: boolean): Promise<string> {
  const connection = await connect({ servers: process.env.NATS_URL! });
  const client = jetstream(connection);
  const handled = Promise.withResolvers<void>();
  const key = headers();
  key.set("Idempotency-Key", `work-${isAtWork}`);
  await client.publish(process.env.SUBJECT!, "null", { headers: key });
  if (!isAtWork) {
    await connection.close();
  }
  const consumer = new Consumer(client, process.env.STREAM!, "closed", { concurrency: 2 });
  const running = consumer.run(
    new Inbox<null>(pool, "closed:test", { log }),
    async () => handled.resolve(),
    new AbortController().signal,
  );
  const ended = running.then(() => "ends without an error", (error) => `${error.name}: ${error.message}`);
  if (isAtWork) {
    await handled.promise;
    await connection.close();
  }
  return await Promise.race([ended, sleep(20_000, "goes on without a connection")]);
}

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 2, pipeline: true });
console.log("at work:", await consume(pool, true));
console.log("at start:", await consume(pool, false));
process.exit();
