//! After a rollback: the message is run again later, or becomes a dead letter.

use std::time::Duration;

use oncebox_claims::{
    Claim,
    database::failed_through,
    failure::bounded,
    identity::Identity,
    metrics::add,
    stored::{Settlement, Status},
    transactional::{Expect, Next, TransactionId},
};
use oncebox_schema::Driver;
use tracing::warn;

use super::{
    attempt::{Uncommitted, Write},
    failure::Failure,
    retry::Decision,
    snooze::Snoozed,
};
use crate::{
    Error, Inbox, Received, Verdict,
    recording::{Ended, Ending},
};

impl<D: Driver> Inbox<D> {
    /// Deals with a message whose attempt was rolled back.
    pub(super) async fn fail<R>(
        &self,
        identity: &Identity,
        received: &Received,
        failure: Failure,
    ) -> Result<Verdict<R>, Error> {
        let failure = self.judge(identity, failure).await?;
        let retries = &self.shared.settings.retries;
        let pauses = retries.pauses(&failure);
        let attempt = match failure.run().is_attempt() {
            true => self.count_failed(identity, received, &failure.reason(), pauses).await?,
            false => 0,
        };
        let (after, reason) = match retries.decide(failure, attempt, pauses) {
            Decision::Retry { after, reason } => (after, reason),
            Decision::Snooze { after, reason } => {
                return match self.snooze(identity, received, after, &reason).await? {
                    Snoozed::Until { after } => {
                        Ok(Verdict::Retry { after, reason: format!("snoozed: {reason}") })
                    }
                    Snoozed::TooLong { reason } => {
                        self.dead_letter(Some(identity), received, reason, None).await
                    }
                };
            }
            Decision::DeadLetter { reason, committed } => {
                return self.dead_letter(Some(identity), received, reason, committed).await;
            }
        };
        add(&self.shared.counters.retried);
        let (scope, key) = (&self.shared.settings.scope, identity.key.as_str());
        let after_seconds = after.as_secs_f64();
        warn!(scope, key, attempt, after_seconds, "attempt failed, will retry: {reason}");
        Ok(Verdict::Retry { after, reason })
    }

    /// Gives a message up: its key, when it has one, and its dead letter in one transaction of
    /// their own. A claim that its handler has `committed` by itself is taken back in the same.
    pub(crate) async fn dead_letter<R>(
        &self,
        identity: Option<&Identity>,
        received: &Received,
        reason: String,
        committed: Option<TransactionId>,
    ) -> Result<Verdict<R>, Error> {
        let mut transaction = self.database.begin().await?;
        let writing = async {
            if let Some((identity, claimed)) = identity.zip(committed) {
                self.claims.disown(&mut transaction, &self.shared.settings.scope, identity, claimed).await?;
            }
            self.write_dead_letter(&mut transaction, identity, received, bounded(&reason)).await
        };
        let writing = Box::pin(writing);
        let verdict = self.database.answered("record a dead letter", writing).await.flatten()?;
        D::release(transaction).await;
        Ok(verdict)
    }

    async fn write_dead_letter<R>(
        &self,
        transaction: &mut D::Transaction,
        identity: Option<&Identity>,
        received: &Received,
        reason: String,
    ) -> Result<Verdict<R>, Error> {
        let scope = &self.shared.settings.scope;
        let mut ending = Ending::ASIDE;
        if let Some(identity) = identity {
            let dead = Settlement { status: Status::Dead, outcome: Some(reason.as_bytes()) };
            let next = Next { identity, message_id: received.id(), expect: Expect::Either };
            let claim = self.claims.claim(transaction, scope, next, dead).await?;
            self.shared.record_claim(received, identity, claim.as_ref());
            let claimed = match claim.unwrap_or(Claim::InFlight) {
                Claim::Won(id) => id,
                known => {
                    let Uncommitted { verdict, write } =
                        self.replay(transaction, identity, received, known).await?;
                    self.commit(transaction, Some(identity), received, write.ending(None)).await?;
                    self.count(&verdict, received, identity);
                    return Ok(verdict);
                }
            };
            ending = Ending { status: Status::Dead.as_str(), xact: Some(claimed), ..ending };
            self.records.forget_tries(transaction, scope, identity).await?;
        }
        let key = identity.map(|identity| identity.key.as_str());
        let tenant = identity.map_or("", |identity| identity.tenant.as_str());
        self.records
            .record_dead_letter(transaction, scope, (tenant, key), received.record(), &reason)
            .await?;
        self.commit(transaction, identity, received, Some(ending)).await?;
        self.shared.lines.note_dead();
        add(&self.shared.counters.dead);
        warn!(scope, key, subject = received.subject(), "dead letter: {reason}");
        Ok(Verdict::Dead { reason })
    }

    /// Commits a dead letter, and the end of its key if this transaction has claimed it; nothing
    /// ends where another one has the key.
    async fn commit(
        &self,
        transaction: &mut D::Transaction,
        identity: Option<&Identity>,
        received: &Received,
        ending: Option<Ending<'_>>,
    ) -> Result<(), Error> {
        let is_recorded = ending.is_some();
        if let Some(ending) = ending {
            self.shared.record_ending(received, identity, ending);
        }
        let committed = self.database.commit(transaction).await;
        if is_recorded {
            let ended = if committed.is_ok() { Ended::Committed } else { Ended::Lost };
            self.shared.record_ended(received, identity, ended);
        }
        committed.map_err(failed_through::<D>("commit a dead letter"))
    }

    /// Deals with a message that our own tables refuse: at the delivery limit it becomes a dead
    /// letter without a key, and this returns `None`; before that, the pause until it is run again.
    pub(crate) async fn dead_letter_refused(
        &self,
        received: &Received,
        reason: &str,
    ) -> Result<Option<Duration>, Error> {
        let pauses = self.shared.settings.retries.backoff.drawn();
        let attempt = match self.identify(received) {
            Ok(identity) => self.count_failed(&identity, received, reason, pauses).await?,
            Err(_) => received.delivery_count(),
        };
        if attempt < self.shared.settings.retries.attempts_max {
            return Ok(Some(pauses.exactly(attempt)));
        }
        let scope = &self.shared.settings.scope;
        let reason = bounded(reason);
        let mut transaction = self.database.begin().await?;
        let writing = async {
            self.records
                .record_dead_letter(&mut transaction, scope, ("", None), received.record(), &reason)
                .await?;
            self.commit(&mut transaction, None, received, Some(Ending::ASIDE)).await
        };
        self.database.answered("record a dead letter", writing).await.flatten()?;
        D::release(transaction).await;
        self.shared.lines.note_dead();
        add(&self.shared.counters.dead);
        warn!(scope, subject = received.subject(), "dead letter: {reason}");
        Ok(None)
    }

    /// Answers a message whose key was not won under a lease.
    pub(crate) async fn answer_known<R, W>(
        &self,
        identity: &Identity,
        received: &Received,
        claim: Claim<W>,
    ) -> Result<Verdict<R>, Error> {
        let mut transaction = self.database.begin().await?;
        let answering = async {
            let Uncommitted { verdict, write } =
                self.replay(&mut transaction, identity, received, claim).await?;
            if !matches!(write, Write::Nothing) {
                self.commit(&mut transaction, Some(identity), received, write.ending(None)).await?;
            }
            Ok(verdict)
        };
        let verdict = self.database.answered("answer a duplicate", answering).await.flatten()?;
        D::release(transaction).await;
        self.count(&verdict, received, identity);
        Ok(verdict)
    }
}
