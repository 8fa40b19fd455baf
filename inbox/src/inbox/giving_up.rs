//! After a rollback: again later, or never again.

use std::{error::Error as StdError, time::Duration};

use deadpool_postgres::Transaction;
use tracing::warn;

use super::{Inbox, breaks::Blame, ending::Failure};
use crate::{
    Error, Received, Verdict,
    counts::Counters,
    failure::{bounded, text},
    identity::Identity,
    store::{Borrowed, Claim, Expect, Status, failed},
};

impl Inbox {
    /// The pause before the next attempt, after this many.
    pub(crate) fn pause(&self, attempts: u64) -> Duration {
        self.settings.limits.backoff.after(attempts)
    }

    pub(super) async fn fail<R: serde::de::DeserializeOwned>(
        &self,
        identity: &Identity,
        received: &Received,
        failure: Failure,
    ) -> Result<Verdict<R>, Error> {
        let limits = &self.settings.limits;
        let failure = match failure {
            Failure::Broken(what, source) => {
                let reason = broken(&*source);
                match self.blame(identity).await {
                    Blame::Nobody => return Err(Error::Unavailable(what, source)),
                    Blame::Unclear => Failure::Parked(self.pause(1), reason),
                    Blame::Message => Failure::Failed(reason),
                }
            }
            other => other,
        };
        let attempt = match &failure {
            Failure::Dead(_) | Failure::Parked(..) => 0,
            _ => self.failed(identity, received).await?,
        };
        let (after, reason) = match failure {
            Failure::Dead(reason) => return self.bury(Some(identity), received, reason).await,
            Failure::Parked(after, reason) => {
                return match self.park(identity, received, after, &reason).await? {
                    Ok(after) => Ok(Verdict::Retry { after, reason: format!("parked: {reason}") }),
                    Err(reason) => self.bury(Some(identity), received, reason).await,
                };
            }
            Failure::Asked(after) => (after.min(limits.backoff.max), "the handler asked for it".to_owned()),
            Failure::Conflict(reason) | Failure::Failed(reason) | Failure::Abandoned { reason, .. } => {
                (self.pause(attempt), reason)
            }
            Failure::Broken(..) => unreachable!("it was judged above"),
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
    pub(super) async fn bury<R: serde::de::DeserializeOwned>(
        &self,
        identity: Option<&Identity>,
        received: &Received,
        reason: String,
    ) -> Result<Verdict<R>, Error> {
        let mut borrowed = Borrowed::new(self.store.connect().await?);
        let transaction = self.store.begin(borrowed.object()).await?;
        let burying = Box::pin(self.bury_in(&transaction, identity, received, bounded(&reason)));
        let verdict = self.store.answered("record a dead letter", burying).await??;
        drop(transaction);
        borrowed.give_back();
        Ok(verdict)
    }

    async fn bury_in<R: serde::de::DeserializeOwned>(
        &self,
        transaction: &Transaction<'_>,
        identity: Option<&Identity>,
        received: &Received,
        reason: String,
    ) -> Result<Verdict<R>, Error> {
        let scope = &self.settings.scope;
        if let Some(identity) = identity {
            let dead = (Status::Dead, Some(reason.as_bytes()));
            let (id, expect) = (received.id(), Expect::Either);
            let known = match self.store.claim(transaction, scope, identity, id, expect, dead).await? {
                Some(Claim::Won) => None,
                Some(Claim::InFlight) | None => Some(Verdict::InFlight),
                Some(Claim::Stored(stored)) => {
                    Some(self.replay(transaction, identity, received, stored).await?.verdict)
                }
            };
            if let Some(verdict) = known {
                self.store.commit(transaction).await.map_err(failed("commit"))?;
                self.count(&verdict, received, identity);
                return Ok(verdict);
            }
        }
        if let Some(identity) = identity {
            self.store.unpark(transaction, scope, identity).await?;
            self.store.forget_attempts(transaction, scope, identity).await?;
        }
        let key = identity.map(|identity| identity.key.as_str());
        let tenant = identity.map_or("", |identity| identity.tenant.as_str());
        self.store.dead_letter(transaction, scope, (tenant, key), received, &reason).await?;
        self.store.commit(transaction).await.map_err(failed("commit a dead letter"))?;
        Counters::add(&self.counters.dead);
        warn!(scope, key, subject = received.subject(), "dead letter: {reason}");
        Ok(Verdict::Dead { reason })
    }

    /// Records a message as a dead letter, past the delivery limit, when even its key cannot be
    /// dealt with; before that, how many attempts have failed.
    pub(crate) async fn give_up(&self, received: &Received, reason: &str) -> Result<Option<u64>, Error> {
        let attempt = match self.identify(received) {
            Ok(identity) => self.failed(&identity, received).await?,
            Err(_) => received.delivery_count(),
        };
        if attempt < self.settings.limits.deliveries_max {
            return Ok(Some(attempt));
        }
        let scope = &self.settings.scope;
        let reason = bounded(reason);
        let mut borrowed = Borrowed::new(self.store.connect().await?);
        let transaction = self.store.begin(borrowed.object()).await?;
        let burying = async {
            self.store.dead_letter(&transaction, scope, ("", None), received, &reason).await?;
            self.store.commit(&transaction).await.map_err(failed("commit a dead letter"))
        };
        self.store.answered("record a dead letter", burying).await??;
        drop(transaction);
        borrowed.give_back();
        Counters::add(&self.counters.dead);
        warn!(scope, subject = received.subject(), "dead letter: {reason}");
        Ok(None)
    }
}

/// Why a run that broke its connection is not taken for an outage.
pub(crate) fn broken(source: &(dyn StdError + 'static)) -> String {
    format!("the run lost its connection, or one of its own, while PostgreSQL was there: {}", text(source))
}
