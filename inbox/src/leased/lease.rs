//! The right to work on a key, for a time.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use oncebox_schema::Key;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, warn};

use super::{
    ledger::Ledger,
    store::{Holder, LeaseStore, Looked, Name, Pending, Won},
};
use crate::{
    Effect, Error,
    counts::{Counters, LeaseCounters},
    failure::{Backoff, text},
    store::{Kind, Mode, Status, Stored},
};

/// Between attempts at a statement while PostgreSQL is away, and the lease lasts.
const AGAIN: Backoff = Backoff { first: Duration::from_millis(20), max: Duration::from_secs(1) };

/// The right to work on a key, for a time that is renewed meanwhile. Cheap to clone.
///
/// A copy that outlives its run is of no harm: what it begins or writes is refused.
#[derive(Clone, Debug)]
pub struct Lease {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    store: Arc<LeaseStore>,
    counters: Arc<Counters>,
    holder: Holder,
    attempts: u64,
    taken_over: bool,
    /// Not later than the end of the lease in the database: each renewal counts from when it was sent.
    until: Mutex<Instant>,
    ledger: Arc<Ledger>,
}

/// What a claim with a lease found.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The key is ours while the lease lasts.
    Won(Lease),
    /// Another process has the lease, or the pause after a failure is not over.
    InFlight,
    /// The key has ended.
    Stored(Stored),
    /// The key was, or is, used with another payload.
    Mismatch,
    /// It can be taken over, but only alone: it may have ended the processes that had it.
    Suspect,
}

/// Why a lease can no longer be relied on.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The claim has another owner, or has ended.
    TakenOver,
    /// It could not be renewed in time; somebody may take over.
    Unconfirmed(Error),
}

impl LeaseStore {
    /// Claims a key, or finds out why not; the claim is committed.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        name: &Name,
        fingerprint: &[u8; 32],
        message_id: Option<i64>,
        (kind, counters): (Kind, &Arc<Counters>),
        is_alone: bool,
    ) -> Result<Claimed, Error> {
        let asked = Instant::now();
        self.inner.enter(&name.scope, kind, Mode::Lease).await?;
        let looked = match self.look(name, fingerprint).await? {
            Looked::Suspect if !is_alone => return Ok(Claimed::Suspect),
            Looked::Free | Looked::Suspect => self.claim(name, fingerprint, message_id).await?,
            other => other,
        };
        counters.claim_time.observe(asked, 1);
        Ok(match looked {
            Looked::Won(won) => Claimed::Won(Lease::new(self, won, counters)),
            Looked::InFlight | Looked::Free | Looked::Suspect => Claimed::InFlight,
            Looked::Stored(stored) if stored.status == Status::Dead && !self.is_dead(name).await? => {
                Claimed::InFlight
            }
            Looked::Stored(stored) => Claimed::Stored(stored),
            Looked::Mismatch => Claimed::Mismatch,
        })
    }
}

impl Lease {
    fn new(store: &Arc<LeaseStore>, won: Won, counters: &Arc<Counters>) -> Self {
        let Won { holder, attempts, taken_over, since } = won;
        if taken_over {
            Counters::add(&counters.leases.taken_over);
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

    /// How many times the key has been claimed, this time included.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.held.attempts
    }

    /// Whether the claim was taken over from an owner whose lease had ended: its process died, or hung.
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        self.held.taken_over
    }

    /// An effect outside the database, which happens once per key. `step` becomes part of the derived key, so each effect
    /// of a handler has a step of its own, the same in every run.
    pub fn effect<'a>(&'a self, step: &'a str) -> Effect<'a> {
        Effect::new(self, step)
    }

    pub(crate) fn holder(&self) -> &Holder {
        &self.held.holder
    }

    pub(crate) fn store(&self) -> &LeaseStore {
        &self.held.store
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.held.ledger
    }

    pub(super) fn counters(&self) -> &LeaseCounters {
        &self.held.counters.leases
    }

    /// Until when nobody else can have taken over.
    pub(super) fn until(&self) -> Instant {
        *self.held.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database gave a lease to a statement that was sent then.
    pub(super) fn renewed(&self, sent: Instant) {
        let mut until = self.held.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = (*until).max(sent + self.held.store.lease);
    }

    /// Does the work, renewing the lease at a third of its time meanwhile. The work is dropped, wherever it waits, when
    /// the lease is lost or may be: then it has called and written nothing since, and will not.
    pub(crate) async fn keep<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            lost = self.renew_until_lost() => {
                Counters::add(&self.counters().lost);
                let (scope, key) = (&self.holder().name.scope, self.key().as_str());
                match &lost {
                    Lost::TakenOver => warn!(scope, key, "the lease is lost: the key has another owner, or has ended"),
                    Lost::Unconfirmed(error) => {
                        let reason = text(error);
                        warn!(scope, key, "the lease is given up, since it could not be renewed in time: {reason}");
                    }
                }
                Err(lost)
            }
        }
    }

    async fn renew_until_lost(&self) -> Lost {
        let third = self.held.store.lease / 3;
        let mut failures = 0;
        let mut last = None;
        loop {
            let until = self.until();
            // A renewal that is due since the work blocked the thread goes out at once.
            let due = if failures == 0 {
                until - third * 2
            } else {
                Instant::now() + third.min(AGAIN.after(failures))
            };
            sleep_until(due.min(until)).await;
            if self.until() > until {
                // An effect that began has renewed it.
                continue;
            }
            let sent = Instant::now();
            // After a pause of the process it is asked once more: perhaps nobody has taken over.
            let limit = until.max(sent + third);
            match timeout_at(limit, self.store().renew(self.holder())).await {
                Ok(Ok(true)) => {
                    self.renewed(sent);
                    failures = 0;
                }
                Ok(Ok(false)) => return Lost::TakenOver,
                Ok(Err(error)) => {
                    debug!(error = text(&error), "a lease is not renewed yet");
                    failures += 1;
                    last = Some(error);
                }
                Err(elapsed) => last = last.or(Some(Error::Unavailable("renew a lease", elapsed.into()))),
            }
            if Instant::now() >= self.until() {
                let never = || Error::Unavailable("renew a lease", "the process was held up".into());
                return Lost::Unconfirmed(last.unwrap_or_else(never));
            }
        }
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

    /// Gives the claim up for whoever comes after the pause; false when the lease was lost before. `reason` says why
    /// there is no end yet; an effect that may have happened is added to it.
    pub(crate) async fn release(&self, pause: Duration, reason: &str) -> Result<bool, Error> {
        self.rest(pause, reason, true).await
    }

    /// The same, and it was no attempt.
    pub(super) async fn park(&self, pause: Duration, reason: &str) -> Result<bool, Error> {
        self.rest(pause, reason, false).await
    }

    async fn rest(&self, pause: Duration, reason: &str, is_attempt: bool) -> Result<bool, Error> {
        let open = self.held.ledger.open();
        let pending = if open.is_some() { Pending::Unknown } else { Pending::Failed };
        if open.is_some() {
            Counters::add(&self.counters().unknown);
        }
        let reason = self.explained(reason);
        self.patiently(|| self.store().release(self.holder(), pause, pending, &reason, is_attempt)).await
    }

    /// The reason, and which effects may have happened.
    pub(crate) fn explained(&self, reason: &str) -> String {
        match self.held.ledger.open() {
            Some(open) if reason.contains(&format!("effect {open} is unknown")) => reason.to_owned(),
            Some(open) => format!("{reason}; the outcome of effect {open} is unknown"),
            None => reason.to_owned(),
        }
    }

    /// The effects of this run that may have happened and are not settled.
    pub(crate) fn open_effects(&self) -> Option<String> {
        self.held.ledger.open()
    }
}
