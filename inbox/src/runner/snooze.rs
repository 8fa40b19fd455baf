//! The handler cannot deal with a message now, and it is not the message's fault.
//!
//! ```text
//! handler ──snooze──▶ ROLLBACK ─▶ recorded in `inbox_park` ─┬─▶ run again after the pause
//!                                                           └─ snoozed for too long ─▶ dead letter
//! ```
//!
//! The row is committed before JetStream hears of anything. A process that dies in between leaves a
//! run that is known to be no attempt. A message that is handled at its first delivery pays
//! nothing.

use std::time::Duration;

use oncebox_claims::{identity::Identity, metrics::add};
use tracing::{debug, info};

use crate::{Error, Inbox, Received, records::SnoozeRecord};

/// The shortest pause, so that nothing spins.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest pause, so that what is back is noticed.
const LONGEST: Duration = Duration::from_secs(3600);

/// The result of a snooze.
#[derive(Debug)]
pub(crate) enum Snoozed {
    /// It is recorded, and run again after this pause.
    Until { after: Duration },
    /// It has been snoozed for longer than allowed, and is to be given up.
    TooLong { reason: String },
}

impl Inbox {
    /// Records that a message is snoozed.
    pub(crate) async fn snooze(
        &self,
        identity: &Identity,
        received: &Received,
        after: Duration,
        reason: &str,
    ) -> Result<Snoozed, Error> {
        let (scope, key) = (&self.settings.scope, identity.key.as_str());
        let (after, limit) = (after.clamp(SHORTEST, LONGEST), self.settings.retries.snooze_max);
        let SnoozeRecord { count, since } =
            self.records.snooze(scope, identity, received, after, limit, reason).await?;
        received.begun.set(false);
        if since >= limit {
            let reason = format!("snoozed for too long, {count} times in {since:?}: {reason}");
            return Ok(Snoozed::TooLong { reason });
        }
        add(&self.counters.snoozed);
        let after_seconds = after.as_secs_f64();
        if count == 1 {
            info!(scope, key, after_seconds, "snoozed: {reason}");
        } else {
            debug!(scope, key, after_seconds, count, "snoozed again: {reason}");
        }
        Ok(Snoozed::Until { after })
    }
}
