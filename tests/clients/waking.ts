// Wakes the relays of a database, and prints the longest hint in milliseconds: see tests/it/clients/waking.rs. A second
// argument is how many hints it sends; a third has its connection closed before.
import { createInterface } from "node:readline";
import { connect } from "@nats-io/transport-node";
import { wake } from "oncebox";

const [database, hints = "1", closed] = process.argv.slice(2) as [string, string?, string?];
const connection = await connect({ servers: process.env.NATS_URL!, maxReconnectAttempts: -1 });
if (closed !== undefined) {
  await connection.close();
}
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
console.log("connected");
await lines.next();
let longest = 0;
for (let hint = 0; hint < Number(hints); hint++) {
  const begun = performance.now();
  wake(connection, database);
  longest = Math.max(longest, performance.now() - begun);
}
console.log(longest);
await lines.next();
process.exit();
