// A participant of sagas, whose steps each have an entry in `stock`: see tests/it/clients/taking.rs.
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { Barrier, Consumer, Inbox, Reject, Replier, type Context } from "oncebox";
import { Pool } from "pg";

interface Command {
  cents: number;
}

const [barrier, replier] = [new Barrier("stock:step"), new Replier(["sagas.replies", "odd.*.replies"])];
const note = (cx: Context, change: number) => cx.client.query("INSERT INTO stock (key, change) VALUES ($1, $2)", [cx.key, change]);

async function act(cx: Context, { cents }: Command) {
  const decision = await barrier.action(cx);
  if (decision === "refused") {
    return new Reject("too late");
  }
  if (decision === "act" && cents > 1000 && cx.key.includes("ship")) {
    await barrier.hadNoEffect(cx);
    return new Reject("no such address");
  }
  if (decision === "act") {
    await note(cx, 1);
  }
  return 77;
}

async function undo(cx: Context, { cents }: Command) {
  if ((await barrier.compensation(cx)) === "undo") {
    if (cents === 13 && !cx.key.includes("#")) {
      await barrier.hasUndoneNothing(cx);
      return new Reject("not now");
    }
    await note(cx, -1);
  }
  return 77;
}

async function handle(cx: Context, command: Command) {
  const result = await (cx.key.endsWith(":undo") ? undo : act)(cx, command);
  await replier.reply(cx, result);
  return result;
}

const connection = await connect({ servers: process.env.NATS_URL!, maxReconnectAttempts: -1 });
const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 3 });
const inbox = new Inbox<Command>(pool, "Bücher & Co: the cash desk", { attemptsMax: 2, backoffMs: [100, 100] });
await new Consumer(jetstream(connection), process.env.STREAM!, "taking", { concurrency: 3 }).run(inbox, handle);
await connection.drain();
await pool.end();
