//! Waking relays that sleep.

use std::time::Duration;

use oncebox_schema::wake_subject;
use tokio::time::timeout;
use tracing::debug;

const WITHIN: Duration = Duration::from_millis(100);

/// Sends a hint to the relays of this database that sleep, since it is suspended when it has no
/// client: see `docs/operations.md`. Call it after COMMIT; the schema is `oncebox`, unless you
/// chose another.
///
/// It is never needed: without it a relay that sleeps sends the message when it wakes by itself. It
/// does not fail, and waits for a tenth of a second at most: a hint that NATS does not take is
/// dropped.
pub async fn wake(client: &async_nats::Client, database: &str, schema: &str) {
    match timeout(WITHIN, client.publish(wake_subject(database, schema), "".into())).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(database, %error, "no hint for the relays"),
        Err(_) => debug!(database, "no hint for the relays: NATS takes no message"),
    }
}
