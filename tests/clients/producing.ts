// Enqueues messages now, later and in the past, and prints the answers:
// tests/it/clients/producing.rs.
import { cancelDelayed, enqueue } from "oncebox";
import { Client } from "pg";

const [client, hour, now] = [new Client(process.env.DATABASE_URL), 3_600_000, Date.now()];
const order = { order: 'Zoë "q" \\t\n', cents: 1999 };
const send = (key: string, payload: unknown, inMs?: number) =>
  enqueue(client, { key, subject: "orders.placed", payload, ...(inMs === undefined ? {} : { notBefore: new Date(now + inMs) }) });
const capital = (value: unknown) => String(value).replace(/^./, (letter) => letter.toUpperCase());

await client.connect();
await client.query("BEGIN");
const said = [typeof (await send("now", order)), typeof (await send("later", order, hour))];
console.log(said.every((type) => type === "bigint") ? "enqueued" : said);
console.log((await send("past", order, -hour)) === null ? "lost" : "past");
console.log("again", (await send("later", order, 2 * hour)) ?? "None");
await send("text", '{"a":"\\t"}');
await send("bytes", Buffer.from([...Buffer.from('{"a":"\\t"}'), 255]), hour);
await send("cancelled", order, hour);
console.log("cancelled", capital(await cancelDelayed(client, "cancelled")), capital(await cancelDelayed(client, "cancelled")));
for (const payload of [Number.NaN, { at: new Map() }, undefined]) {
  console.log(await send("odd", payload).then((id) => `sent ${id}`, (error) => (error instanceof TypeError ? "refused" : error)));
}
await client.query("COMMIT");
await client.end();
