//! The handler cannot deal with a message now, and it is not the message's fault.
//!
//! ```text
//! handler ──snooze──▶ ROLLBACK ─▶ recorded in `inbox_snooze` ─┬─▶ run again after the pause
//!                                                           └─ snoozed for too long ─▶ dead letter
//! ```
//!
//! The row is committed before JetStream hears of anything. A process that dies in between leaves a
//! run that is known to be no attempt. A message that is handled at its first delivery pays
//! nothing.

use std::time::Duration;

use oncebox_claims::{identity::Identity, metrics::add, records::SnoozeRecord};
use oncebox_schema::{Driver, Key};
use tracing::{debug, info};

use crate::{Error, Inbox, Received, inbox::Shared};

/// The shortest pause, so that nothing spins.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest pause, so that the handler notices a system that is back.
const LONGEST: Duration = Duration::from_secs(3600);

/// The result of a snooze.
#[derive(Debug)]
pub(crate) enum Snoozed {
    /// It is recorded, and run again after this pause.
    Until { after: Duration },
    /// It has been snoozed for longer than allowed, and is to be given up.
    TooLong { reason: String },
}

impl<D: Driver> Inbox<D> {
    /// Records that a message is snoozed.
    pub(crate) async fn snooze(
        &self,
        identity: &Identity,
        received: &Received,
        after: Duration,
        reason: &str,
    ) -> Result<Snoozed, Error> {
        let (scope, limit) = (self.scope(), self.shared.settings.retries.snooze_max);
        let after = Snoozed::pause(after);
        let record = self.records.snooze(scope, identity, received.record(), after, limit, reason).await?;
        received.begun.set(false);
        Ok(self.shared.snoozed(&record, &identity.key, after, reason))
    }
}

impl Snoozed {
    /// The pause that a handler asks for, within bounds.
    pub(crate) fn pause(after: Duration) -> Duration {
        after.clamp(SHORTEST, LONGEST)
    }
}

impl Shared {
    /// The result of a snooze that is recorded.
    pub(crate) fn snoozed(&self, record: &SnoozeRecord, key: &Key, after: Duration, reason: &str) -> Snoozed {
        let SnoozeRecord { count, since } = *record;
        if since >= self.settings.retries.snooze_max {
            let reason = format!("snoozed for too long, {count} times in {since:?}: {reason}");
            return Snoozed::TooLong { reason };
        }
        add(&self.counters.snoozed);
        let (scope, key, after_seconds) = (self.scope(), key.as_str(), after.as_secs_f64());
        if count == 1 {
            info!(scope, key, after_seconds, "snoozed: {reason}");
        } else {
            debug!(scope, key, after_seconds, count, "snoozed again: {reason}");
        }
        Snoozed::Until { after }
    }
}
