//! Carries out the decision of [`oncebox_claims::life`] about a run that failed.

use std::{error::Error as StdError, time::Duration};

use oncebox_claims::{
    backoff::Backoff, failure::text, identity::Identity, life::Next, transactional::TransactionId,
};

use super::failure::Failure;
use crate::{Error, Inbox, inbox::Blame, settings::RetryPolicy};
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

impl RetryPolicy {
    /// The pauses after this failure: those of the settings, or the one that the handler asks for.
    pub(crate) fn pauses(&self, failure: &Failure) -> Backoff {
        match failure {
            Failure::RetryAfter(after) => Backoff { first: *after, max: (*after).min(self.backoff.max) },
            _ => self.backoff.drawn(),
        }
    }

    /// Decides after this number of attempts, this one included if it is one.
    pub(crate) fn decide(&self, failure: Failure, attempts: u64, pauses: Backoff) -> Decision {
        let run = failure.run();
        let reason = failure.reason().into_owned();
        match (run.next(attempts, self.attempts_max), failure) {
            (Next::Snooze, Failure::Snoozed(after, _)) => Decision::Snooze { after, reason },
            (Next::Bury, Failure::Committed(id, _)) => Decision::DeadLetter { reason, committed: Some(id) },
            (Next::Bury, _) if run.is_attempt() => {
                let reason = format!("delivery limit of {} reached: {reason}", self.attempts_max);
                Decision::DeadLetter { reason, committed: None }
            }
            (Next::Bury, _) => Decision::DeadLetter { reason, committed: None },
            _ => Decision::Retry { after: pauses.exactly(attempts), reason },
        }
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
    use super::*;

    #[test]
    fn each_decision_has_its_reason_and_its_pause() {
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
            let pauses = policy.pauses(&failure);
            assert_eq!(reason(policy.decide(failure, attempts, pauses)), expected);
        }
        let asked = Failure::RetryAfter(second * 9);
        let pauses = policy.pauses(&asked);
        let asked = policy.decide(asked, 1, pauses);
        assert!(matches!(asked, Decision::Retry { after, .. } if after == second), "{asked:?}");
    }
}
