//! Chooses the reaction to a failure; no other place does.

use std::{error::Error as StdError, time::Duration};

use oncebox_claims::{failure::text, identity::Identity, transactional::TransactionId};

use super::failure::{ASKED_FOR_RETRY, CLAIM_AGAIN, Failure};
use crate::{
    Error, Inbox,
    inbox::{Blame, RetryPolicy},
};
use oncebox_schema::Driver;

/// The decision about a message after a failed attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is run again after a pause.
    Retry { after: Duration, reason: String },
    /// It is run again after a pause, and this was no attempt.
    Snooze { after: Duration, reason: String },
    /// It is given up; the claim that its handler has `committed` by itself is taken back.
    DeadLetter { reason: String, committed: Option<TransactionId> },
}

impl Failure {
    /// Whether it counts against the delivery limit.
    pub(crate) fn is_attempt(&self) -> bool {
        !matches!(
            self,
            Self::Ours(_) | Self::ClaimAgain | Self::Dead(_) | Self::Snoozed(..) | Self::Committed(..)
        )
    }
}

impl RetryPolicy {
    /// Decides after so many attempts, this one included.
    pub(crate) fn decide(&self, failure: Failure, attempts: u64) -> Decision {
        let pause = self.backoff.after(attempts);
        let (after, reason) = match failure {
            Failure::Dead(reason) => return Decision::DeadLetter { reason, committed: None },
            Failure::Committed(id, reason) => return Decision::DeadLetter { reason, committed: Some(id) },
            Failure::Snoozed(after, reason) => return Decision::Snooze { after, reason },
            Failure::RetryAfter(after) => (after.min(self.backoff.max), ASKED_FOR_RETRY.to_owned()),
            Failure::ClaimAgain => (pause, CLAIM_AGAIN.to_owned()),
            Failure::Ours(error) => (pause, text(&error)),
            Failure::Conflict(reason) | Failure::Failed(reason) | Failure::Abandoned { reason, .. } => {
                (pause, reason)
            }
            Failure::Broken(_, source) => (pause, broken_run(&*source)),
        };
        if attempts >= self.attempts_max {
            let reason = format!("delivery limit of {} reached: {reason}", self.attempts_max);
            return Decision::DeadLetter { reason, committed: None };
        }
        Decision::Retry { after, reason }
    }
}

impl<D: Driver> Inbox<D> {
    /// Finds out whose fault a broken run is. An error means that it may be an outage.
    pub(crate) async fn judge(&self, identity: &Identity, failure: Failure) -> Result<Failure, Error> {
        let (what, source) = match failure {
            Failure::Ours(error) => return Err(error),
            Failure::Broken(what, source) => (what, source),
            failure => return Ok(failure),
        };
        match self.blame(identity).await {
            Blame::Nobody => Err(Error::Unavailable(what, source)),
            Blame::Unclear => Ok(Failure::Snoozed(self.shared.pause(1), broken_run(&*source))),
            Blame::Message => Ok(Failure::Failed(broken_run(&*source))),
        }
    }
}

/// Why a run that broke its connection is not taken for an outage.
fn broken_run(source: &(dyn StdError + 'static)) -> String {
    let reason = text(source);
    format!("the run lost its connection, or one of its own, while PostgreSQL was there: {reason}")
}

#[cfg(test)]
mod tests {
    use oncebox_claims::backoff::Backoff;

    use super::*;

    #[test]
    fn the_limit_ends_what_failed_and_nothing_else() {
        let second = Duration::from_secs(1);
        let policy = RetryPolicy {
            attempts_max: 3,
            backoff: Backoff { first: second, max: second },
            snooze_max: second,
        };
        let reason = |decision| match decision {
            Decision::Retry { reason, .. } => format!("retry: {reason}"),
            Decision::Snooze { reason, .. } => format!("snooze: {reason}"),
            Decision::DeadLetter { reason, .. } => format!("dead letter: {reason}"),
        };
        for (failure, attempts, expected) in [
            (Failure::Failed("x".to_owned()), 2, "retry: x"),
            (Failure::Failed("x".to_owned()), 3, "dead letter: delivery limit of 3 reached: x"),
            (Failure::Conflict("x".to_owned()), 3, "dead letter: delivery limit of 3 reached: x"),
            (Failure::Snoozed(second, "x".to_owned()), 9, "snooze: x"),
            (Failure::Dead("x".to_owned()), 0, "dead letter: x"),
            (Failure::RetryAfter(second * 9), 1, "retry: the handler asked for a retry"),
        ] {
            assert_eq!(reason(policy.decide(failure, attempts)), expected);
        }
        let asked = policy.decide(Failure::RetryAfter(second * 9), 1);
        assert!(matches!(asked, Decision::Retry { after, .. } if after == second), "{asked:?}");
    }
}
