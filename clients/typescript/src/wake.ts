/**
 * Waking relays that sleep beside a database that is suspended when it has no client: see
 * docs/operations.md.
 */

/**
 * Sends a hint to the relays of this database, over a connection of nats.js. Call it after COMMIT.
 *
 * It is never needed: without it a relay that sleeps sends the message when it wakes by itself. It
 * neither waits nor throws: a hint that NATS does not take is dropped.
 */
export function wake(connection: { publish(subject: string): void }, database: string, schema = "oncebox"): void {
  try {
    connection.publish(`_ONCEBOX.wake.${token(database)}.${token(schema)}`);
  } catch {
    // The connection is closed, and the relay wakes by itself.
  }
}

function token(name: string): string {
  return encodeURIComponent(name).replace(/[.!~*'()]/g, (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`);
}
