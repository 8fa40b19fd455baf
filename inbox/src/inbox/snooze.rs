//! Not now, says the handler, and it is not the message's fault.
//!
//! ```text
//! handler ──park──▶ ROLLBACK ─▶ record it in `inbox_park` ─┬─▶ again after the pause
//!                                                                └─ parked for too long ─▶ dead letter
//! ```
//!
//! The row is committed before JetStream hears of anything. A process that dies in between leaves a
//! run that is known to be no attempt. A message that is handled at its first delivery pays
//! nothing.

use std::time::Duration;

use oncebox_claims::{identity::Identity, metrics::add};
use tracing::{debug, info};

use super::Inbox;
use crate::{Error, Received};

/// The shortest pause, so that nothing spins.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest, so that what is back is noticed.
const LONGEST: Duration = Duration::from_secs(3600);

impl Inbox {
    /// Parks a message: the pause, or why it is to be given up instead.
    pub(crate) async fn park(
        &self,
        identity: &Identity,
        received: &Received,
        after: Duration,
        reason: &str,
    ) -> Result<Result<Duration, String>, Error> {
        let (scope, key) = (&self.settings.scope, identity.key.as_str());
        let after = after.clamp(SHORTEST, LONGEST);
        let (parks, since) = self
            .records
            .snooze(scope, identity, received, after, self.settings.retries.park_max, reason)
            .await?;
        received.begun.set(false);
        if since >= self.settings.retries.park_max {
            return Ok(Err(format!("parked for too long, {parks} times in {since:?}: {reason}")));
        }
        add(&self.counters.parked);
        let after_seconds = after.as_secs_f64();
        if parks == 1 {
            info!(scope, key, after_seconds, "parked: {reason}");
        } else {
            debug!(scope, key, after_seconds, parks, "parked again: {reason}");
        }
        Ok(Ok(after))
    }
}
