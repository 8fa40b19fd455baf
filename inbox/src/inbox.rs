//! One message, from claim to commit.
//!
//! ```text
//! who is it? ──no key, no tenant──────────────────────────────────▶ dead letter
//!     │
//!     ▼            ┌─ row exists ─▶ same payload? ─▶ replay, else mismatch ─▶ dead letter
//! begin, claim ────┼─ locked ─────▶ in flight
//!     │            └─ PostgreSQL away ─▶ error "unavailable"
//!     ▼ won
//! handler ──error, panic, timeout──▶ ROLLBACK ─▶ conflict? again, else retry, else (at the limit) dead letter
//!     ▼ outcome
//! store outcome, SAVEPOINT, COMMIT ──answer lost──▶ error "unavailable": the next run finds out
//! ```
//!
//! A failure that is for good is recorded after the rollback, in a transaction of its own that claims the key as well:
//! so it neither vanishes with the rollback, nor overwrites what a concurrent copy committed.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use deadpool_postgres::{Pool, Transaction};
use futures_util::FutureExt;
use oncebox_schema::SchemaName;
use tracing::{debug, warn};

use crate::{
    Answer, Builder, Context, Counts, Error, Handler, HandlerError, KeySource, Outcome, Received, Verdict,
    counts::Counters,
    failure::{Backoff, Class, bounded},
    identity::{self, Identity, TenantSource},
    store::{Claim, Status, Store, Stored, discard},
};

mod ending;
mod feeding;

use ending::{Ended, Failure};

const CONFLICT_ROUNDS: u64 = 5;
const CONFLICT_PAUSE: Backoff = Backoff { first: Duration::from_millis(5), max: Duration::from_millis(100) };

/// Runs handlers once per key. Cheap to clone; clones share the connections and the counts.
#[derive(Clone, Debug)]
pub struct Inbox {
    store: Arc<Store>,
    settings: Arc<Settings>,
    counters: Arc<Counters>,
    /// Whether PostgreSQL was away when last heard of, so that it is logged once.
    away: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) schema: SchemaName,
    pub(crate) scope: String,
    pub(crate) tenant: TenantSource,
    pub(crate) keys: Vec<KeySource>,
    pub(crate) limits: Limits,
}

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) deliveries_max: u64,
    pub(crate) backoff: Backoff,
    pub(crate) handler_timeout: Duration,
    pub(crate) statement_timeout: Duration,
    pub(crate) lock_timeout: Duration,
    pub(crate) acquire_timeout: Duration,
}

impl Inbox {
    /// Sets up an inbox on connections of this pool. The handler's tables are in the same database.
    pub fn builder(pool: Pool) -> Builder {
        Builder::new(pool)
    }

    pub(crate) fn new(store: Arc<Store>, settings: Arc<Settings>) -> Self {
        Self { store, settings, counters: Arc::default(), away: Arc::default() }
    }

    /// How messages ended so far, in this inbox and its clones.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.snapshot()
    }

    /// Checks that PostgreSQL can be reached and has the schema version that this crate works with.
    ///
    /// # Errors
    /// It cannot, or it has not. [`Inbox::run`] reports the same, for the first message.
    pub async fn check(&self) -> Result<(), Error> {
        self.store.connect().await.map(drop)
    }

    /// Deals with one message: runs the handler, or answers from what is stored. The verdict is committed.
    ///
    /// Dropping the future rolls back, unless the commit is under way already; running the message again is always
    /// right.
    ///
    /// # Errors
    /// PostgreSQL is away or refuses our own statements, or a stored row cannot be read. Run the message again later.
    pub async fn run<H: Handler>(
        &self,
        handler: &H,
        received: &Received,
    ) -> Result<Verdict<H::Reply>, Error> {
        let identity = match self.identify(received) {
            Ok(identity) => identity,
            Err(reason) => return self.bury(None, received, reason).await,
        };
        if received.delivery_count() > self.settings.limits.deliveries_max {
            let reason =
                "delivery limit reached, and the last delivery left no trace: did it end the process?";
            return self.bury(Some(&identity), received, reason.to_owned()).await;
        }
        let mut round = 1;
        loop {
            let failure = match self.attempt(handler, received, &identity).await? {
                Ended::Verdict(verdict) => return Ok(verdict),
                Ended::Failure(failure) => failure,
            };
            if matches!(failure, Failure::Conflict(_)) && round < CONFLICT_ROUNDS {
                debug!(scope = self.settings.scope, key = %identity.key, "conflict with another transaction, again");
                tokio::time::sleep(CONFLICT_PAUSE.after(round)).await;
                round += 1;
                continue;
            }
            return self.fail(&identity, received, failure).await;
        }
    }

    fn identify(&self, received: &Received) -> Result<Identity, String> {
        let tenant = identity::tenant(&self.settings.tenant, received)?;
        let key = identity::key(&self.settings.keys, received)?;
        let lock = identity::lock(self.settings.schema.as_str(), &self.settings.scope, &tenant, &key);
        Ok(Identity { tenant, key, fingerprint: identity::fingerprint(received.payload()), lock })
    }

    /// One transaction, committed or rolled back when this returns.
    async fn attempt<H: Handler>(
        &self,
        handler: &H,
        received: &Received,
        identity: &Identity,
    ) -> Result<Ended<H::Reply>, Error> {
        let message = match serde_json::from_slice(received.payload()) {
            Ok(message) => message,
            Err(problem) => return Ok(Ended::Failure(Failure::undecodable(&problem))),
        };
        let mut object = self.store.connect().await?;
        let ended = {
            let transaction = self.store.begin(&mut object).await?;
            self.claim_and_handle(&transaction, handler, message, received, identity).await
        };
        if matches!(ended, Ok(Ended::Failure(Failure::Abandoned(_)))) {
            // A statement of the handler may still run: that connection is of no use to the next message.
            discard(object);
        }
        ended
    }

    async fn claim_and_handle<H: Handler>(
        &self,
        transaction: &Transaction<'_>,
        handler: &H,
        message: H::Message,
        received: &Received,
        identity: &Identity,
    ) -> Result<Ended<H::Reply>, Error> {
        let scope = &self.settings.scope;
        let fresh = (Status::Completed, None);
        match self.store.claim(transaction, scope, identity, received.id(), fresh).await? {
            Claim::Won => {}
            Claim::InFlight => return Ok(Ended::Verdict(self.in_flight(identity))),
            Claim::Stored(stored) => {
                return self.replay(transaction, identity, received, stored).await.map(Ended::Verdict);
            }
        }
        let cx = Context { transaction, key: &identity.key, tenant: &identity.tenant, received };
        let call = AssertUnwindSafe(async { handler.handle(&cx, message).await }).catch_unwind();
        let returned = match tokio::time::timeout(self.settings.limits.handler_timeout, call).await {
            Ok(Ok(returned)) => returned,
            Ok(Err(panic)) => return Ok(Ended::Failure(Failure::panicked(&*panic))),
            Err(_) => return Ok(Ended::Failure(Failure::timed_out(self.settings.limits.handler_timeout))),
        };
        let (status, answer) = match returned {
            Ok(Outcome::Done(reply)) => (Status::Completed, Answer::Done(reply)),
            Ok(Outcome::Reject(reply)) => (Status::Rejected, Answer::Rejected(reply)),
            Ok(Outcome::Retry(after)) => return Ok(Ended::Failure(Failure::Asked(after))),
            Ok(Outcome::Dead(reason)) => return Ok(Ended::Failure(Failure::Dead(reason))),
            Err(error) => return handler_error(error),
        };
        self.settle(transaction, identity, status, answer).await
    }

    /// Stores the outcome and commits, in one round trip.
    async fn settle<R: serde::Serialize>(
        &self,
        transaction: &Transaction<'_>,
        identity: &Identity,
        status: Status,
        answer: Answer<R>,
    ) -> Result<Ended<R>, Error> {
        let (Answer::Done(reply) | Answer::Rejected(reply)) = &answer;
        let outcome = match ending::encode(reply) {
            Ok(outcome) => outcome,
            Err(reason) => return Ok(Ended::Failure(Failure::Failed(reason))),
        };
        // The claim has stored "completed" without a reply already.
        let committed = if status == Status::Completed && outcome.is_none() {
            self.store.commit(transaction).await
        } else {
            self.store
                .settle_and_commit(transaction, &self.settings.scope, identity, status, outcome.as_deref())
                .await
        };
        if let Err(error) = committed {
            return ending::of_commit(error).map(Ended::Failure);
        }
        Counters::add(&self.counters.handled);
        if status == Status::Rejected {
            Counters::add(&self.counters.rejected);
        }
        Ok(Ended::Verdict(Verdict::Handled(answer)))
    }

    /// Answers a duplicate from the stored row, after its fingerprint.
    async fn replay<R: serde::de::DeserializeOwned>(
        &self,
        transaction: &Transaction<'_>,
        identity: &Identity,
        received: &Received,
        stored: Stored,
    ) -> Result<Verdict<R>, Error> {
        let (scope, key) = (&self.settings.scope, identity.key.as_str());
        if stored.fingerprint != identity.fingerprint {
            let reason = "the key was used before with another payload";
            let owner = (identity.tenant.as_str(), Some(key));
            self.store.dead_letter(transaction, scope, owner, received, reason).await?;
            self.store.commit(transaction).await.map_err(crate::store::failed("commit a dead letter"))?;
            Counters::add(&self.counters.mismatched);
            warn!(scope, key, subject = received.subject(), "dead letter: {reason}");
            return Ok(Verdict::Mismatch);
        }
        let outcome = stored.outcome.as_deref();
        let reply = |outcome: Option<&[u8]>| {
            serde_json::from_slice(outcome.unwrap_or(b"null"))
                .map_err(|source| Error::StoredReply { key: key.to_owned(), source })
        };
        let verdict = match stored.status {
            Status::Completed => Verdict::Replayed(Answer::Done(reply(outcome)?)),
            Status::Rejected => Verdict::Replayed(Answer::Rejected(reply(outcome)?)),
            Status::Dead => {
                Verdict::Dead { reason: String::from_utf8_lossy(outcome.unwrap_or_default()).into_owned() }
            }
        };
        Counters::add(&self.counters.replayed);
        debug!(scope, key, status = stored.status.as_str(), "duplicate, answered from the stored outcome");
        Ok(verdict)
    }

    fn in_flight<R>(&self, identity: &Identity) -> Verdict<R> {
        Counters::add(&self.counters.in_flight);
        debug!(scope = self.settings.scope, key = %identity.key, "duplicate of a message that is in flight");
        Verdict::InFlight
    }

    /// After the rollback: again later, or never again.
    async fn fail<R: serde::de::DeserializeOwned>(
        &self,
        identity: &Identity,
        received: &Received,
        failure: Failure,
    ) -> Result<Verdict<R>, Error> {
        let limits = &self.settings.limits;
        let attempt = received.delivery_count();
        let (after, reason) = match failure {
            Failure::Dead(reason) => return self.bury(Some(identity), received, reason).await,
            Failure::Asked(after) => (after.min(limits.backoff.max), "the handler asked for it".to_owned()),
            Failure::Conflict(reason) | Failure::Failed(reason) | Failure::Abandoned(reason) => {
                (limits.backoff.after(attempt), reason)
            }
        };
        if attempt >= limits.deliveries_max {
            let reason = format!("delivery limit of {} reached: {reason}", limits.deliveries_max);
            return self.bury(Some(identity), received, reason).await;
        }
        Counters::add(&self.counters.retried);
        let (scope, key) = (&self.settings.scope, identity.key.as_str());
        warn!(
            scope,
            key,
            attempt,
            after_seconds = after.as_secs_f64(),
            "no effect, to be repeated: {reason}"
        );
        Ok(Verdict::Retry { after, reason })
    }

    /// Gives a message up: its key, when it has one, and its dead letter in one transaction of their own.
    async fn bury<R: serde::de::DeserializeOwned>(
        &self,
        identity: Option<&Identity>,
        received: &Received,
        reason: String,
    ) -> Result<Verdict<R>, Error> {
        let reason = bounded(&reason);
        let scope = &self.settings.scope;
        let mut object = self.store.connect().await?;
        let transaction = self.store.begin(&mut object).await?;
        if let Some(identity) = identity {
            let dead = (Status::Dead, Some(reason.as_bytes()));
            match self.store.claim(&transaction, scope, identity, received.id(), dead).await? {
                Claim::Won => {}
                Claim::InFlight => return Ok(self.in_flight(identity)),
                Claim::Stored(stored) => return self.replay(&transaction, identity, received, stored).await,
            }
        }
        let key = identity.map(|identity| identity.key.as_str());
        let tenant = identity.map_or("", |identity| identity.tenant.as_str());
        self.store.dead_letter(&transaction, scope, (tenant, key), received, &reason).await?;
        self.store.commit(&transaction).await.map_err(crate::store::failed("commit a dead letter"))?;
        Counters::add(&self.counters.dead);
        warn!(scope, key, subject = received.subject(), "dead letter: {reason}");
        Ok(Verdict::Dead { reason })
    }
}

fn handler_error<R>(error: HandlerError) -> Result<Ended<R>, Error> {
    match error.class() {
        Class::Conflict => Ok(Ended::Failure(Failure::Conflict(error.to_string()))),
        Class::Failed => Ok(Ended::Failure(Failure::Failed(error.to_string()))),
        Class::Unavailable => Err(Error::Unavailable("run the handler", error.into_source())),
    }
}
