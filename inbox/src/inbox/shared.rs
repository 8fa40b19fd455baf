//! The state that the clones of an inbox share, over any driver.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use oncebox_claims::{
    database::Mode,
    failure::text,
    identity::{Identity, fingerprint, lock},
};
use oncebox_schema::{Key, SchemaName};
use tracing::{debug, info, warn};

use super::lines::Lines;
use crate::{Error, Received, Verdict, counts::Counters, identity, settings::Settings};

/// Why a message of a known key is not answered.
pub(crate) const MISMATCH: &str = "the key was used before with another payload";

/// Who an inbox is, how it tells messages apart and tries them again, and its counts.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Arc<Settings>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) lines: Arc<Lines>,
    /// Whether PostgreSQL was away when last heard of, so that it is logged once.
    away: Arc<AtomicBool>,
    /// Whether it was said that messages come again although they were handled.
    come_again: Arc<AtomicBool>,
}

impl Shared {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings: Arc::new(settings),
            counters: Arc::default(),
            lines: Arc::default(),
            away: Arc::default(),
            come_again: Arc::default(),
        }
    }

    pub(crate) fn scope(&self) -> &str {
        &self.settings.scope
    }

    /// The identity of a message among the keys of this schema; the reason when it has no valid key
    /// or tenant.
    pub(crate) fn identify(&self, schema: &SchemaName, received: &Received) -> Result<Identity, String> {
        let tenant = identity::tenant(&self.settings.tenant, received)?;
        let key = identity::key(&self.settings.keys, received)?;
        let lock = lock(schema.as_str(), self.scope(), &tenant, &key);
        Ok(Identity { tenant, key, fingerprint: fingerprint(received.payload()), lock })
    }

    /// The pause before the next attempt, after a number of them.
    pub(crate) fn pause(&self, attempts: u64) -> Duration {
        self.settings.retries.backoff.after(attempts)
    }

    /// Logs once that PostgreSQL went away, and once that it is back.
    pub(crate) fn note_availability(&self, error: Option<&Error>) {
        let scope = self.scope();
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

    /// Counts a message that is committed, or was found committed or in flight.
    pub(crate) fn count<R>(
        &self,
        verdict: &Verdict<R>,
        received: &Received,
        key: &Key,
        retention: Option<Duration>,
    ) {
        self.counters.count(verdict, received);
        self.count_late(verdict, received, key, retention);
        if matches!(verdict, Verdict::Dead { .. } | Verdict::Mismatch) {
            self.lines.note_dead();
        }
        let (scope, key) = (self.scope(), key.as_str());
        match verdict {
            Verdict::Mismatch => {
                warn!(scope, key, subject = received.subject(), "dead letter: {MISMATCH}");
            }
            Verdict::InFlight => debug!(scope, key, "duplicate of a message that is in flight"),
            // A crash costs a delivery or two; under a lease a copy may have waited for long. NATS
            // tells the client of a right that is missing, and the client does not tell us.
            Verdict::Replayed(_)
                if received.delivery_count() > 2
                    && self.settings.mode == Mode::Transaction
                    && !self.come_again.swap(true, Ordering::Relaxed) =>
            {
                warn!(
                    scope,
                    key,
                    deliveries = received.delivery_count(),
                    "a message that was handled comes again: may this user publish to $JS.ACK.>? (logged once)"
                );
            }
            Verdict::Replayed(_) | Verdict::Dead { .. } => {
                debug!(scope, key, "duplicate, answered from the stored outcome");
            }
            Verdict::Handled(_) | Verdict::Retry { .. } | Verdict::Behind | Verdict::InLine => {}
        }
    }

    /// Counts a message that was handled when its key may have been forgotten already; logs the
    /// first.
    fn count_late<R>(
        &self,
        verdict: &Verdict<R>,
        received: &Received,
        key: &Key,
        retention: Option<Duration>,
    ) {
        let Some(retention) = retention else { return };
        let enqueued = received.time().and_then(|text| humantime::parse_rfc3339(text).ok());
        let age = enqueued.and_then(|enqueued| SystemTime::now().duration_since(enqueued).ok());
        if !matches!(verdict, Verdict::Handled(_)) || age.is_none_or(|age| age <= retention) {
            return;
        }
        let (scope, key) = (self.scope(), key.as_str());
        let is_first = self.counters.late.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first {
            warn!(
                scope,
                key,
                "handled a message that is older than the retention of {retention:?}; a duplicate of it would not \
                 have been detected: increase the retention, see `oncebox doctor` (logged once)"
            );
        }
    }
}
