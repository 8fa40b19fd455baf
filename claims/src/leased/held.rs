//! A claim as it is held by the process that runs the handler.

use std::{sync::Arc, time::Duration};

use oncebox_schema::Transaction;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::{debug, warn};

use super::{
    lease::{AGAIN, Lease},
    store::{LeasedClaims, Name, Pending},
};
use crate::{
    Claim, Error, TransactionId,
    database::{Kind, Mode, failed},
    failure::text,
    life::Arrival,
    metrics::{ClaimCounters, add},
    stored::Status,
};

/// How long the last statements of a claim may take, which nothing else waits for.
pub const END_MAX: Duration = Duration::from_secs(10);

/// A claim that was won, as its owner has it; the handler sees its [`Lease`] only.
#[derive(Debug)]
pub struct HeldClaim(Lease);

/// Why a lease can no longer be relied on.
#[derive(Debug)]
pub enum Lost {
    /// The claim has another owner, or has ended.
    TakenOver,
    /// It could not be renewed in time; another process may take over.
    Unconfirmed(Error),
}

impl LeasedClaims {
    /// Claims a key, or finds out why not; the claim is committed.
    pub async fn acquire(
        self: &Arc<Self>,
        name: &Name,
        fingerprint: &[u8; 32],
        message_id: Option<i64>,
        (kind, counters): (Kind, &Arc<ClaimCounters>),
        is_alone: bool,
    ) -> Result<Claim<HeldClaim>, Error> {
        let asked = Instant::now();
        self.database().register(&name.scope, kind, Mode::Lease).await?;
        let found = self.look(name, fingerprint).await?;
        let claim = match found.arrival {
            Arrival::ClaimAlone if !is_alone => return Ok(Claim::Alone),
            Arrival::Claim | Arrival::Replace | Arrival::ClaimAlone => {
                self.claim(name, fingerprint, message_id).await?
            }
            arrival => Claim::refused(arrival, found.stored),
        };
        counters.claim_time.observe(asked, 1);
        Ok(match claim {
            Claim::Copy(stored) if stored.status == Status::Dead && !self.is_dead(name).await? => {
                Claim::InFlight
            }
            claim => claim.map(|won| HeldClaim(Lease::new(self, won, counters))),
        })
    }
}

impl HeldClaim {
    /// The lease, as the handler gets it.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.0
    }

    /// How many owners the claim has had, this one included: the token of the fence.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.0.holder().epoch
    }

    /// Where the claim is stored.
    #[must_use]
    pub fn claims(&self) -> &LeasedClaims {
        self.0.store()
    }

    /// The lease was found lost by a statement of the owner's: counts and logs it.
    pub fn lost(&self) -> Lost {
        add(&self.0.counters().lost);
        let (scope, key) = (&self.0.holder().name.scope, self.0.key().as_str());
        warn!(scope, key, "the lease is lost: the key has another owner, or has ended; nothing was written");
        Lost::TakenOver
    }

    /// Opens a transaction of the owner's; `None` when the lease is lost.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn open(
        &self,
        transaction: &Transaction,
        limit: Duration,
    ) -> Result<Option<TransactionId>, Error> {
        self.0.store().open(transaction, self.0.holder(), limit).await
    }

    /// Whether the code that has used a transaction has committed it by itself.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn has_committed(&self, opened: TransactionId) -> Result<bool, Error> {
        self.0.store().has_committed(opened).await
    }

    /// Replaces the claim by how it ended, as the last writes of a transaction; false when the
    /// lease is lost.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn end_in(
        &self,
        transaction: &Transaction,
        status: Status,
        outcome: Option<&[u8]>,
    ) -> Result<bool, tokio_postgres::Error> {
        self.0.store().end(transaction, self.0.holder(), status, outcome).await
    }

    /// Replaces the claim by how it ended, in a transaction of its own; false when the lease is
    /// lost.
    pub async fn end(&self, status: Status, outcome: &[u8]) -> Result<bool, Error> {
        let (store, database) = (self.0.store(), self.0.store().database());
        let mut transaction = database.begin().await?;
        let ending = async {
            if store.end(&transaction, self.0.holder(), status, Some(outcome)).await? {
                database.commit(&mut transaction).await.map(|()| true)
            } else {
                Ok(false)
            }
        };
        let ended = match timeout(END_MAX, ending).await {
            Ok(ended) => ended.map_err(failed("end a claim"))?,
            Err(elapsed) => return Err(Error::Unavailable("end a claim", elapsed.into())),
        };
        transaction.release();
        Ok(ended)
    }

    /// Does the work, renewing the lease at a third of its time meanwhile. The work is dropped,
    /// wherever it waits, when the lease is lost or may be: then it has called and written nothing
    /// since, and will not.
    pub async fn keep<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            lost = self.renew_until_lost() => {
                add(&self.0.counters().lost);
                let (scope, key) = (&self.0.holder().name.scope, self.0.key().as_str());
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
        let third = self.0.time() / 3;
        let mut failures = 0;
        let mut last = None;
        loop {
            let until = self.0.until();
            // A renewal that is due since the work blocked the thread goes out at once.
            let due = if failures == 0 {
                until - third * 2
            } else {
                Instant::now() + third.min(AGAIN.after(failures))
            };
            sleep_until(due.min(until)).await;
            if self.0.until() > until {
                // An effect that began has renewed it.
                continue;
            }
            let sent = Instant::now();
            // After a pause of the process it is asked once more: perhaps no other process has
            // taken over.
            let limit = until.max(sent + third);
            match timeout_at(limit, self.0.store().renew(self.0.holder())).await {
                Ok(Ok(true)) => {
                    self.0.renewed(sent);
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
            if Instant::now() >= self.0.until() {
                let never = || Error::Unavailable("renew a lease", "the process was held up".into());
                return Lost::Unconfirmed(last.unwrap_or_else(never));
            }
        }
    }

    /// Releases the claim: another run may take it after the pause. False when the lease was lost
    /// before. `reason` says why there is no end yet; an effect that may have happened is added to
    /// it.
    pub async fn release(&self, pause: Duration, reason: &str) -> Result<bool, Error> {
        self.rest(pause, reason, true).await
    }

    /// Releases the claim for a run after the pause, and does not count this run as an attempt;
    /// false when the lease was lost before.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn snooze(&self, pause: Duration, reason: &str) -> Result<bool, Error> {
        self.rest(pause, reason, false).await
    }

    async fn rest(&self, pause: Duration, reason: &str, is_attempt: bool) -> Result<bool, Error> {
        let open = self.0.ledger().open();
        let pending = if open.is_some() { Pending::Unknown } else { Pending::Failed };
        if open.is_some() {
            add(&self.0.counters().unknown);
        }
        let reason = self.explained(reason);
        self.0
            .patiently(|| self.0.store().release(self.0.holder(), pause, pending, &reason, is_attempt))
            .await
    }

    /// The reason, and which effects may have happened.
    pub fn explained(&self, reason: &str) -> String {
        with_open(reason, self.0.ledger().open())
    }

    /// The reason for which a key is given up, and which effects may have happened, in earlier runs
    /// too: an operator has to find out about them.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn explained_in_full(&self, reason: &str) -> Result<String, Error> {
        let open = self.0.store().open_effects(&self.0.holder().name).await?;
        Ok(with_open(reason, open))
    }

    /// The effects of this run that may have happened and are not settled.
    pub fn open_effects(&self) -> Option<String> {
        self.0.ledger().open()
    }
}

fn with_open(reason: &str, open: Option<String>) -> String {
    match open {
        Some(open) if !reason.contains(&format!("effect {open} is unknown")) => {
            format!("{reason}; the outcome of effect {open} is unknown")
        }
        _ => reason.to_owned(),
    }
}
