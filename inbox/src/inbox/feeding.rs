//! What a consumer, or a handler's context, needs of an inbox beyond running messages.

use std::{
    sync::atomic::Ordering,
    time::{Duration, SystemTime},
};

use oncebox_claims::{EntityLocks, database::Database, failure::text, identity::Identity};
use tokio::time::Instant;
use tracing::{info, warn};

use super::Inbox;
use crate::{Error, Received, Verdict, records::Records};

impl Inbox {
    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    /// What a handler's entity locks depend on, when it begins now and may take so long.
    pub(crate) fn entity_locks(&self, limit: Duration) -> EntityLocks<'_> {
        let lock_timeout = self.database.limits().lock_timeout;
        EntityLocks { schema: self.database.schema(), lock_timeout, until: Instant::now() + limit }
    }

    /// Counts a message that was handled when its key may have been forgotten already, and says so once.
    pub(super) fn note_late<R>(&self, verdict: &Verdict<R>, received: &Received, identity: &Identity) {
        let Some(retention) = self.database.limits().retention else { return };
        let enqueued = received.time().and_then(|text| humantime::parse_rfc3339(text).ok());
        let age = enqueued.and_then(|enqueued| SystemTime::now().duration_since(enqueued).ok());
        let is_late = age.is_some_and(|age| age > retention);
        if matches!(verdict, Verdict::Handled(_)) && is_late {
            let earlier = self.counters.late.fetch_add(1, Ordering::Relaxed);
            if earlier == 0 {
                let (scope, key) = (&self.settings.scope, identity.key.as_str());
                warn!(
                    scope,
                    key,
                    "handled a message that is older than the retention of {retention:?}: were it a copy, nobody would know; \
                     keep keys longer, see `oncebox doctor` (said once)"
                );
            }
        }
    }

    /// Logs PostgreSQL's going and coming once.
    pub(crate) fn note_availability(&self, error: Option<&Error>) {
        let scope = &self.settings.scope;
        match error {
            Some(error @ Error::Unavailable(..)) => {
                if !self.away.swap(true, Ordering::Relaxed) {
                    warn!(scope, "messages wait: {}", text(error));
                }
            }
            _ => {
                if self.away.swap(false, Ordering::Relaxed) {
                    info!(scope, "PostgreSQL is back");
                }
            }
        }
    }
}
