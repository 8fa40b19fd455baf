//! The right to work on a key, for a time.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use oncebox_schema::Key;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{
    ledger::Ledger,
    store::{Holder, LeasedClaims, Won},
};
use crate::{
    Error,
    backoff::Backoff,
    metrics::{ClaimCounters, LeaseCounters, add},
};

/// Between attempts at a statement while PostgreSQL is away, and the lease lasts.
pub(super) const AGAIN: Backoff = Backoff { first: Duration::from_millis(20), max: Duration::from_secs(1) };

/// The right to work on a key, for a time that is renewed meanwhile. Cheap to clone.
///
/// A copy that outlives its run does no harm: its effects and writes are refused.
#[derive(Clone, Debug)]
pub struct Lease {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    store: Arc<LeasedClaims>,
    counters: Arc<ClaimCounters>,
    holder: Holder,
    attempts: u64,
    taken_over: bool,
    /// Not later than the end of the lease in the database: each renewal counts from when it was
    /// sent.
    until: Mutex<Instant>,
    ledger: Arc<Ledger>,
}

impl Lease {
    pub(super) fn new(store: &Arc<LeasedClaims>, won: Won, counters: &Arc<ClaimCounters>) -> Self {
        let Won { holder, attempts, taken_over, since } = won;
        if taken_over {
            add(&counters.leases.taken_over);
            let (scope, key) = (&holder.name.scope, holder.name.key.as_str());
            warn!(scope, key, attempts, "taken over from a process whose lease ended");
        }
        let until = Mutex::new(since + store.lease);
        let (store, counters) = (Arc::clone(store), Arc::clone(counters));
        let held = Held { store, counters, holder, attempts, taken_over, until, ledger: Arc::default() };
        Self { held: Arc::new(held) }
    }

    /// The key that is worked on. Derive the keys of messages from it: `lease.key().step("ship")`.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.held.holder.name.key
    }

    /// The scope that the key is claimed in.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.held.holder.name.scope
    }

    /// How many times the key has been claimed, this time included.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.held.attempts
    }

    /// Whether the claim was taken over from an owner whose lease had ended: its process died, or
    /// hung.
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        self.held.taken_over
    }

    pub(super) fn holder(&self) -> &Holder {
        &self.held.holder
    }

    pub(super) fn store(&self) -> &LeasedClaims {
        &self.held.store
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.held.ledger
    }

    pub(super) fn counters(&self) -> &LeaseCounters {
        &self.held.counters.leases
    }

    /// How long a claim holds without being renewed.
    pub(super) fn time(&self) -> Duration {
        self.held.store.lease
    }

    /// The time until which no other process can have taken the claim over.
    pub(super) fn until(&self) -> Instant {
        *self.held.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database gave a lease to a statement that was sent then.
    pub(super) fn renewed(&self, sent: Instant) {
        let mut until = self.held.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = (*until).max(sent + self.held.store.lease);
    }

    /// Repeats a statement that may be repeated while PostgreSQL is away and the lease lasts.
    pub(super) async fn patiently<T, F: Future<Output = Result<T, Error>>>(
        &self,
        mut statement: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let mut failures = 0;
        loop {
            match statement().await {
                Err(Error::Unavailable(..)) if Instant::now() < self.until() => {
                    failures += 1;
                    sleep(AGAIN.after(failures)).await;
                }
                result => return result,
            }
        }
    }
}
