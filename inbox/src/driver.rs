//! Handlers that write through another client library than tokio-postgres: sqlx, `SeaORM`, diesel.
//!
//! The crates `oncebox-sqlx`, `oncebox-sea-orm` and `oncebox-diesel` each bring a [`Driver`], which
//! is all that differs; this module is the same for all of them. A new key is claimed by the
//! statement of the [inbox](crate::Inbox) over tokio-postgres, in the transaction that the handler
//! gets. Of a key that is not new, the SQL function `claim` says what is known. So consumers of
//! every driver and language may share a scope. A `Consumer` feeds an inbox like this from
//! JetStream.
//!
//! ```text
//! identify ──no key, no tenant──▶ bury
//!     ▼
//! BEGIN, claim ──lost──▶ what is known of it? ─▶ ROLLBACK, answered; of another payload: bury
//!     ▼ won                 ▼ nothing
//! decode, handler ──error, panic, timeout──▶ ROLLBACK ─▶ conflict? again, else attempt_failed, or bury
//!     ▼ outcome
//! settle, COMMIT AND CHAIN ──answer lost──▶ error "unavailable": the next run finds out
//!     ╰─▶ the claim of the next message, when one waits
//! ```
//!
//! Each step is a round trip of its own, since other drivers send nothing ahead; a message that has
//! no reply needs no `settle`. What needs more is the inbox's over tokio-postgres alone: batches,
//! entity locks, leases, strict order, dead letters on a subject, and that a message which ends its
//! process is found and given up. Old keys are deleted by `oncebox inbox prune`.

mod attempt;
mod calls;
mod handler;
mod measured;

use std::{fmt, sync::Arc, time::Duration};

use oncebox_claims::{InvalidSettings, identity::Identity, limits::Limits, transactional::TransactionId};
pub use oncebox_schema::{Cause, Driver, Value};
use tokio::{
    sync::OnceCell,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

pub use handler::{Context, Handler};

use crate::{
    Builder, Counts, Error, Received, Source, Verdict,
    inbox::{DuplicateHint, MISMATCH, Shared},
    runner::{CONFLICT_PAUSE, CONFLICT_ROUNDS, Decision, Failure},
};
use calls::{Calls, ROLLBACK_MAX};

/// Runs handlers once per key, in transactions of a driver. Cheap to clone; clones share the
/// connections and the counts.
#[derive(Clone)]
pub struct Inbox<D> {
    driver: D,
    shared: Shared,
    calls: Arc<Calls>,
    limits: Limits,
    duplicate_hint: Arc<DuplicateHint>,
    /// The scope, before the first claim.
    registered: Arc<OnceCell<()>>,
}

impl<D: Driver> fmt::Debug for Inbox<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("driver", &D::NAME).field("scope", &self.shared.scope()).finish()
    }
}

/// The connections of a driver, as a [`Builder`] has them.
#[derive(Clone, Debug)]
pub struct Over<D>(D);

impl<D: Driver> Builder<Over<D>> {
    /// The inbox, when every value can work.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn build(self) -> Result<Inbox<D>, InvalidSettings> {
        let (Over(driver), parts) = self.checked(Vec::new())?;
        Ok(Inbox {
            driver,
            shared: Shared::new(parts.settings),
            calls: Arc::new(Calls::new(&parts.schema, &parts.limits, parts.is_pooled)),
            limits: parts.limits,
            duplicate_hint: Arc::default(),
            registered: Arc::default(),
        })
    }
}

impl<D: Driver> Inbox<D> {
    /// Sets up an inbox on connections of this driver. The handler's tables are in the same
    /// database.
    pub fn builder(driver: D) -> Builder<Over<D>> {
        Builder::over(Over(driver))
    }

    /// How messages ended so far, in this inbox and its clones;
    /// [`metrics_text`](crate::metrics_text) shows the same to Prometheus.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.snapshot()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Says that this consumer exists, which checks that PostgreSQL can be reached, that Oncebox is
    /// installed, and that the scope is not in use in leased mode.
    ///
    /// # Errors
    /// PostgreSQL cannot be reached, Oncebox is not installed there, or the scope is in leased
    /// mode.
    pub async fn check(&self) -> Result<(), Error> {
        self.register().await
    }

    /// Deals with one message: runs the handler, or answers from what is stored. The verdict is
    /// committed.
    ///
    /// Dropping the future rolls back, unless the commit is under way already; running the message
    /// again is always right.
    ///
    /// # Errors
    /// PostgreSQL is away or refuses our own statements. Run the message again later.
    pub async fn run<H: Handler<Transaction = D::Transaction>>(
        &self,
        handler: &H,
        received: &Received,
    ) -> Result<Verdict<H::Reply>, Error> {
        let mut open = None;
        let result = self.run_in(&mut open, handler, received).await;
        release::<D>(&mut open).await;
        result
    }

    /// Deals with one message, in the transaction that is `open` behind the one before.
    async fn run_in<H: Handler<Transaction = D::Transaction>>(
        &self,
        open: &mut Option<D::Transaction>,
        handler: &H,
        received: &Received,
    ) -> Result<Verdict<H::Reply>, Error> {
        self.registered.get_or_try_init(|| self.register()).await?;
        let identity = match self.identify(received) {
            Ok(identity) => identity,
            Err(reason) => {
                // What follows takes a connection of its own.
                release::<D>(open).await;
                return self.give_up(None, received, reason).await;
            }
        };
        let mut round = 1;
        let failure = loop {
            match self.attempt(open, handler, received, &identity).await {
                Ok(Verdict::Mismatch) => {
                    return self.give_up(Some(&identity), received, MISMATCH.to_owned()).await;
                }
                Ok(verdict) => {
                    self.shared.count(&verdict, received, &identity.key, self.limits.retention);
                    return Ok(verdict);
                }
                Err(Failure::Conflict(_)) if round < CONFLICT_ROUNDS => {
                    let (scope, key) = (self.shared.scope(), identity.key.as_str());
                    debug!(scope, key, "conflict with another transaction; the message is run again at once");
                    sleep(CONFLICT_PAUSE.after(round)).await;
                    round += 1;
                }
                Err(Failure::Ours(error)) => return Err(error),
                Err(failure) => break failure,
            }
        };
        self.fail(&identity, received, failure).await
    }

    /// Deals with messages one after another until none waits, like [`Inbox::run`] for each, but on
    /// one connection, which commits a message and begins the next one's transaction in one round
    /// trip.
    pub async fn run_each<H, S>(&self, handler: &H, source: &mut S)
    where
        H: Handler<Transaction = D::Transaction>,
        S: Source<H::Reply>,
    {
        let mut open = None;
        while let Some(received) = source.next() {
            let result = self.run_in(&mut open, handler, &received).await;
            source.ended(received, result);
        }
        release::<D>(&mut open).await;
    }

    fn identify(&self, received: &Received) -> Result<Identity, String> {
        self.shared.identify(&self.calls.schema, received)
    }

    /// Deals with a message whose attempt was rolled back.
    async fn fail<R>(
        &self,
        identity: &Identity,
        received: &Received,
        failure: Failure,
    ) -> Result<Verdict<R>, Error> {
        let attempt = match failure.is_attempt() {
            true => self.attempt_failed(identity, received).await?,
            false => 0,
        };
        let (after, reason) = match self.shared.settings.retries.decide(failure, attempt) {
            Decision::Retry { after, reason } => (after, reason),
            Decision::Snooze { after, reason } => {
                return self.snooze(identity, received, after, &reason).await;
            }
            Decision::DeadLetter { reason, committed } => {
                return self.give_up_claimed(Some(identity), received, reason, committed).await;
            }
        };
        oncebox_claims::metrics::add(&self.shared.counters.retried);
        let (scope, key, after_seconds) = (self.shared.scope(), identity.key.as_str(), after.as_secs_f64());
        warn!(scope, key, attempt, after_seconds, "attempt failed, will retry: {reason}");
        Ok(Verdict::Retry { after, reason })
    }

    async fn snooze<R>(
        &self,
        identity: &Identity,
        received: &Received,
        after: Duration,
        reason: &str,
    ) -> Result<Verdict<R>, Error> {
        use crate::runner::Snoozed;
        let after = Snoozed::pause(after);
        let record = self.record_snooze(identity, received, after, reason).await?;
        match self.shared.snoozed(&record, &identity.key, after, reason) {
            Snoozed::Until { after } => Ok(Verdict::Retry { after, reason: format!("snoozed: {reason}") }),
            Snoozed::TooLong { reason } => self.give_up(Some(identity), received, reason).await,
        }
    }

    /// Records a message that cannot be told apart from others as a dead letter.
    pub(crate) async fn record_dead(&self, received: &Received, reason: String) -> Result<(), Error> {
        self.give_up::<()>(None, received, reason).await.map(drop)
    }

    /// Deals with a message that our own tables refuse: at the delivery limit it becomes a dead
    /// letter without a key, and this returns `None`; before that, how many attempts have failed.
    pub(crate) async fn give_up_refused(
        &self,
        received: &Received,
        reason: &str,
    ) -> Result<Option<u64>, Error> {
        let attempt = match self.identify(received) {
            Ok(identity) => self.attempt_failed(&identity, received).await?,
            Err(_) => received.delivery_count(),
        };
        if attempt < self.shared.settings.retries.attempts_max {
            return Ok(Some(attempt));
        }
        self.give_up::<()>(None, received, reason.to_owned()).await?;
        Ok(None)
    }

    async fn give_up<R>(
        &self,
        identity: Option<&Identity>,
        received: &Received,
        reason: String,
    ) -> Result<Verdict<R>, Error> {
        self.give_up_claimed(identity, received, reason, None).await
    }

    /// Gives a message up, and takes back the claim that its handler has `committed` by itself. A
    /// copy that was committed meanwhile decides instead: the message is to be run again, and will
    /// be answered from that.
    async fn give_up_claimed<R>(
        &self,
        identity: Option<&Identity>,
        received: &Received,
        reason: String,
        committed: Option<TransactionId>,
    ) -> Result<Verdict<R>, Error> {
        let (scope, key) = (self.shared.scope(), identity.map(|identity| identity.key.as_str()));
        let answer = self.bury(identity, received, &reason, committed).await?;
        if answer == "dead" {
            oncebox_claims::metrics::add(&self.shared.counters.dead);
            warn!(scope, key, subject = received.subject(), "dead letter: {reason}");
            return Ok(Verdict::Dead { reason });
        }
        let verdict = if answer == "mismatch" { Verdict::Mismatch } else { Verdict::InFlight };
        if let Some(identity) = identity {
            self.shared.count(&verdict, received, &identity.key, self.limits.retention);
        }
        Ok(verdict)
    }
}

/// Gives the connection of an empty transaction back.
async fn release<D: Driver>(open: &mut Option<D::Transaction>) {
    if let Some(transaction) = open.take() {
        // One that does not answer is closed by its pool.
        let _ = timeout(ROLLBACK_MAX, D::release(transaction)).await;
    }
}
