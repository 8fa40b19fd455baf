//! How a run that failed gives up its claim: it releases it for another run, or ends it as a dead
//! letter.

use std::time::Duration;

use oncebox_claims::{
    backoff::Backoff,
    database::failed,
    failure::{Class, bounded, text},
    leased::{END_MAX, Lost, Meaning},
    metrics::add,
    records::FailedAttempt,
    stored::Status,
};
use tokio::time::timeout;
use tracing::{info, warn};

use super::Run;
use crate::{
    Error, HandlerError, Verdict,
    recording::{Ended, Ending},
    runner::{Decision, Failure, RUN_HANDLER, Snoozed},
};

/// How long it may take to release a claim when PostgreSQL was away a moment ago.
const RELEASE_MAX: Duration = Duration::from_secs(1);

/// The verdict of a run whose lease is lost: it has written nothing, and calls no effect any more.
pub(super) fn lost<R>(lost: Lost) -> Result<Verdict<R>, Error> {
    match lost {
        Lost::TakenOver => Ok(Verdict::InFlight),
        Lost::Unconfirmed(error) => Err(error),
    }
}

impl Run<'_> {
    pub(super) fn record_ending(&self, ending: Ending<'_>) {
        let ending = Ending { epoch: Some(self.claim.epoch()), ..ending };
        self.leased.inbox.shared.record_ending(self.received, Some(&self.identity), ending);
    }

    pub(super) fn record_ended(&self, ended: Ended) {
        self.leased.inbox.shared.record_ended(self.received, Some(&self.identity), ended);
    }

    /// Ends a run whose handler failed, by the class of its error.
    pub(super) async fn handler_failed<R>(&self, error: HandlerError) -> Result<Verdict<R>, Error> {
        let failure = match Meaning::of(error.source()) {
            Some(Meaning::LeaseLost) => return lost(self.claim.lost()),
            Some(Meaning::Rejected) => Failure::Dead(error.to_string()),
            // PostgreSQL did not take one of our own statements.
            Some(Meaning::Unavailable) => {
                self.release_soon(&error.to_string()).await;
                return Err(Error::Unavailable(RUN_HANDLER, error.into_source()));
            }
            Some(Meaning::Settling(left)) => return self.settling(left, &error.to_string()).await,
            None if error.class() == Class::Unavailable => Failure::Broken(RUN_HANDLER, error.into_source()),
            Some(Meaning::Other) | None => Failure::Failed(error.to_string()),
        };
        self.fail(failure).await
    }

    /// An earlier call may still arrive: the run was a wait, and no attempt.
    async fn settling<R>(&self, left: Duration, reason: &str) -> Result<Verdict<R>, Error> {
        let inbox = &self.leased.inbox;
        let after = left.min(inbox.shared.settings.retries.backoff.max);
        if !self.claim.snooze(after, reason).await? {
            return lost(self.claim.lost());
        }
        let (scope, key, after_seconds) = (inbox.scope(), self.identity.key.as_str(), after.as_secs_f64());
        let reason = self.claim.explained(reason);
        info!(scope, key, after_seconds, "will ask again, which is no attempt: {reason}");
        inbox.shared.record_release(self.received, &self.identity, self.claim.epoch());
        let verdict = Verdict::Retry { after, reason };
        inbox.count(&verdict, self.received, &self.identity);
        Ok(verdict)
    }

    /// Decides whether the message is run again later or becomes a dead letter, and writes that
    /// down.
    pub(super) async fn fail<R>(&self, failure: Failure) -> Result<Verdict<R>, Error> {
        let inbox = &self.leased.inbox;
        inbox.shared.record_failure(self.received, &self.identity, &failure);
        let failure = match inbox.judge(&self.identity, failure).await {
            Ok(failure) => failure,
            Err(error) => {
                self.release_soon(&text(&error)).await;
                return Err(error);
            }
        };
        let attempt = if failure.run().is_attempt() { self.claim.lease().attempts() } else { 0 };
        let retries = &inbox.shared.settings.retries;
        let pauses = retries.pauses(&failure);
        let (after, reason) = match retries.decide(failure, attempt, pauses) {
            Decision::Retry { after, reason } => (after, self.claim.explained(&reason)),
            Decision::Snooze { after, reason } => return self.snooze(after, reason).await,
            Decision::DeadLetter { reason, .. } => return self.dead_letter(reason).await,
        };
        if !self.claim.release(after, &reason).await? {
            return lost(self.claim.lost());
        }
        inbox.shared.record_release(self.received, &self.identity, self.claim.epoch());
        self.record_failure(attempt, after, &reason).await;
        let (scope, key, after_seconds) = (inbox.scope(), self.identity.key.as_str(), after.as_secs_f64());
        warn!(scope, key, attempt, after_seconds, "attempt failed, will retry: {reason}");
        let verdict = Verdict::Retry { after, reason };
        inbox.count(&verdict, self.received, &self.identity);
        Ok(verdict)
    }

    /// Shows operators that the message fails; the claim itself counts the attempts. The claim is
    /// released before, so that no process records a failure whose lease was lost.
    async fn record_failure(&self, attempt: u64, after: Duration, reason: &str) {
        let (inbox, pauses) = (&self.leased.inbox, Backoff { first: after, max: after });
        let failed = FailedAttempt { reason, pauses, count: Some(attempt) };
        let recorded =
            inbox.records.attempt_failed(inbox.scope(), &self.identity, self.received.record(), failed);
        if let Err(error) = recorded.await {
            warn!(
                scope = inbox.scope(),
                error = text(&error),
                "a failed attempt is not recorded for operators"
            );
        }
    }

    /// Releases the claim if PostgreSQL is back already, so that the next run need not wait for the
    /// end of the lease. This run does not count as an attempt.
    async fn release_soon(&self, reason: &str) {
        let pause = self.leased.inbox.shared.pause(1);
        let _ = timeout(RELEASE_MAX, self.claim.snooze(pause, reason)).await;
    }

    /// Snoozes the claim. This run does not count as an attempt.
    async fn snooze<R>(&self, after: Duration, reason: String) -> Result<Verdict<R>, Error> {
        let after = match self.leased.inbox.snooze(&self.identity, self.received, after, &reason).await? {
            Snoozed::Until { after } => after,
            Snoozed::TooLong { reason } => return self.dead_letter(reason).await,
        };
        let reason = format!("snoozed: {reason}");
        if !self.claim.snooze(after, &reason).await? {
            return lost(self.claim.lost());
        }
        Ok(Verdict::Retry { after, reason })
    }

    /// Gives the key up: ends its claim as dead and records the dead letter, in one transaction.
    /// The reason names the effects outside the database that may have happened; their records
    /// stay.
    pub(super) async fn dead_letter<R>(&self, reason: String) -> Result<Verdict<R>, Error> {
        let reason = bounded(&self.claim.explained_in_full(&reason).await?);
        let inbox = &self.leased.inbox;
        let (database, records) = (&inbox.database, &inbox.records);
        let mut transaction = database.begin().await?;
        let owner = (self.identity.tenant.as_str(), Some(self.identity.key.as_str()));
        self.record_ending(Ending { status: Status::Dead.as_str(), reply: None, xact: None, epoch: None });
        let writing = async {
            let scope = inbox.scope();
            records
                .record_dead_letter(&mut transaction, scope, owner, self.received.record(), &reason)
                .await?;
            records.forget_tries(&mut transaction, scope, &self.identity).await?;
            let ended = self.claim.end_in(&transaction, Status::Dead, Some(reason.as_bytes())).await;
            if !ended.map_err(failed("end a claim"))? {
                return Ok(false);
            }
            database.commit(&mut transaction).await.map_err(failed("commit a dead letter"))?;
            Ok(true)
        };
        let written = timeout(END_MAX, writing).await;
        self.record_ended(match &written {
            Ok(Ok(true)) => Ended::Committed,
            Ok(Ok(false)) => Ended::Fenced,
            Ok(Err(_)) | Err(_) => Ended::Lost,
        });
        if !written.unwrap_or_else(|elapsed| Err(Error::Unavailable("end a claim", elapsed.into())))? {
            return lost(self.claim.lost());
        }
        inbox.shared.lines.note_dead();
        add(&inbox.shared.counters.dead);
        let (scope, key) = (inbox.scope(), self.identity.key.as_str());
        warn!(scope, key, subject = self.received.subject(), "dead letter: {reason}");
        Ok(Verdict::Dead { reason })
    }
}
