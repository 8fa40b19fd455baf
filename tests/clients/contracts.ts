// Reads the contracts of each folder, and checks its messages; prints a line of JSON for each
// folder: the mistakes, or the rule that each message breaks. See tests/it/clients/contracts.rs.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Breach, Contracts, Mistakes } from "oncebox/contracts";

function broken(contracts: Contracts, [subject, payload]: [string, string]): string | null {
  try {
    contracts.check(subject, Buffer.from(payload, "hex"));
    return null;
  } catch (error) {
    if (error instanceof Breach) {
      return error.message;
    }
    throw error;
  }
}

for (const folder of process.argv.slice(2)) {
  const said = await Contracts.read(join(folder, "contracts.json")).then(
    (contracts) => JSON.parse(readFileSync(join(folder, "messages"), "utf8")).map((message: [string, string]) => broken(contracts, message)),
    (error) => (error instanceof Mistakes ? error.message.split("\n") : Promise.reject(error)),
  );
  console.log(JSON.stringify(said));
}
