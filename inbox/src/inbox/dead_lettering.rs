//! After a rollback: again later, or never again.

use std::{error::Error as StdError, time::Duration};

use deadpool_postgres::Transaction;
use oncebox_claims::{
    database::{Borrowed, failed},
    failure::{bounded, text},
    identity::Identity,
    metrics::add,
    stored::Status,
    transactional::{Claim, Expect},
};
use tracing::warn;

use super::{Inbox, breaks::Blame, ending::Failure};
use crate::{Error, Received, Verdict};

impl Inbox {
    /// The pause before the next attempt, after this many.
    pub(crate) fn pause(&self, attempts: u64) -> Duration {
        self.settings.retries.backoff.after(attempts)
    }

    pub(super) async fn fail<R: serde::de::DeserializeOwned>(
        &self,
        identity: &Identity,
        received: &Received,
        failure: Failure,
    ) -> Result<Verdict<R>, Error> {
        let retries = &self.settings.retries;
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
            Failure::Asked(after) => (after.min(retries.backoff.max), "the handler asked for it".to_owned()),
            Failure::Conflict(reason) | Failure::Failed(reason) | Failure::Abandoned { reason, .. } => {
                (self.pause(attempt), reason)
            }
            Failure::Broken(..) => unreachable!("it was judged above"),
        };
        if attempt >= retries.deliveries_max {
            let reason = format!("delivery limit of {} reached: {reason}", retries.deliveries_max);
            return self.bury(Some(identity), received, reason).await;
        }
        add(&self.counters.retried);
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
        let mut borrowed = Borrowed::new(self.database.connect().await?);
        let transaction = self.database.begin(borrowed.object()).await?;
        let burying = Box::pin(self.bury_in(&transaction, identity, received, bounded(&reason)));
        let verdict = self.database.answered("record a dead letter", burying).await??;
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
            let known = match self.claims.claim(transaction, scope, identity, id, expect, dead).await? {
                Some(Claim::Won) => None,
                Some(Claim::InFlight) | None => Some(Verdict::InFlight),
                Some(Claim::Stored(stored)) => {
                    Some(self.replay(transaction, identity, received, stored).await?.verdict)
                }
            };
            if let Some(verdict) = known {
                self.database.commit(transaction).await.map_err(failed("commit"))?;
                self.count(&verdict, received, identity);
                return Ok(verdict);
            }
        }
        if let Some(identity) = identity {
            self.records.forget_snoozes(transaction, scope, identity).await?;
            self.records.forget_attempts(transaction, scope, identity).await?;
        }
        let key = identity.map(|identity| identity.key.as_str());
        let tenant = identity.map_or("", |identity| identity.tenant.as_str());
        self.records.dead_letter(transaction, scope, (tenant, key), received, &reason).await?;
        self.database.commit(transaction).await.map_err(failed("commit a dead letter"))?;
        add(&self.counters.dead);
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
        if attempt < self.settings.retries.deliveries_max {
            return Ok(Some(attempt));
        }
        let scope = &self.settings.scope;
        let reason = bounded(reason);
        let mut borrowed = Borrowed::new(self.database.connect().await?);
        let transaction = self.database.begin(borrowed.object()).await?;
        let burying = async {
            self.records.dead_letter(&transaction, scope, ("", None), received, &reason).await?;
            self.database.commit(&transaction).await.map_err(failed("commit a dead letter"))
        };
        self.database.answered("record a dead letter", burying).await??;
        drop(transaction);
        borrowed.give_back();
        add(&self.counters.dead);
        warn!(scope, subject = received.subject(), "dead letter: {reason}");
        Ok(None)
    }
}

/// Why a run that broke its connection is not taken for an outage.
pub(crate) fn broken(source: &(dyn StdError + 'static)) -> String {
    format!("the run lost its connection, or one of its own, while PostgreSQL was there: {}", text(source))
}
