//! Why an attempt was rolled back.

use std::{borrow::Cow, error::Error as StdError, time::Duration};

use oncebox_claims::{
    failure::{CommitError, text},
    life::Run,
    transactional::TransactionId,
};
use tokio::time::Instant;

use crate::Error;

/// Why an attempt has no verdict; it is rolled back.
#[derive(Debug)]
pub(crate) enum Failure {
    /// PostgreSQL is away or refused a statement of ours.
    Ours(Error),
    /// The key is to be claimed again, in another transaction: it was handled before, and the claim
    /// expected a new one, or had an older snapshot.
    ClaimAgain,
    /// It lost a race against another transaction.
    Conflict(String),
    /// The handler asked to run again after this time.
    RetryAfter(Duration),
    /// The handler cannot deal with the message for now, for a reason that is not the message's.
    Snoozed(Duration, String),
    /// The handler gave the message up.
    Dead(String),
    /// The handler failed.
    Failed(String),
    /// The handler failed, but has committed its claim by itself, with a part of its writes.
    /// Another run would make them twice, and a copy would be answered as handled: the message is
    /// given up.
    Committed(TransactionId, String),
    /// The connection broke, or PostgreSQL refused with an error that it reports in an outage. The
    /// step, and the error. When it was the commit, its effect may be there: the next run finds
    /// out.
    Broken(&'static str, Box<dyn StdError + Send + Sync>),
    /// The handler panicked or took too long: a statement of it may still run.
    Abandoned {
        reason: String,
        /// Since when this run has had the key's lock at least; `None` where another run has it, in
        /// shadow mode.
        locked_since: Option<Instant>,
    },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl Failure {
    pub(crate) fn panicked(panic: &str, locked_since: Option<Instant>) -> Self {
        Self::Abandoned { reason: format!("the handler panicked: {panic}"), locked_since }
    }

    /// Why, for people.
    pub(crate) fn reason(&self) -> Cow<'_, str> {
        match self {
            Self::Conflict(reason)
            | Self::Dead(reason)
            | Self::Failed(reason)
            | Self::Committed(_, reason)
            | Self::Snoozed(_, reason)
            | Self::Abandoned { reason, .. } => reason.into(),
            Self::RetryAfter(_) => "the handler asked for a retry".into(),
            Self::ClaimAgain => "the key was claimed meanwhile".into(),
            Self::Ours(error) => text(error).into(),
            Self::Broken(what, source) => format!("{what}: {}", text(&**source)).into(),
        }
    }

    /// The end of the run, as the life of its key knows it.
    pub(crate) fn run(&self) -> Run {
        match self {
            Self::Ours(_) | Self::Broken(..) => Run::Unanswered,
            Self::ClaimAgain => Run::ClaimAgain,
            Self::Conflict(_) => Run::Conflict,
            Self::RetryAfter(_) | Self::Failed(_) | Self::Abandoned { .. } => Run::Failed,
            Self::Snoozed(..) => Run::Snoozed,
            Self::Dead(_) => Run::GivenUp,
            Self::Committed(..) => Run::HalfCommitted,
        }
    }

    /// For recordings.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ours(_) => "unavailable",
            Self::ClaimAgain => "again",
            Self::Conflict(_) => "conflict",
            Self::RetryAfter(_) => "retry",
            Self::Snoozed(..) => "snoozed",
            Self::Dead(_) => "dead",
            Self::Failed(_) => "failed",
            Self::Committed(..) => "committed",
            Self::Broken(..) => "broken",
            Self::Abandoned { .. } => "abandoned",
        }
    }

    /// The same failure of a handler that has committed its claim by itself.
    pub(crate) fn committed(self, claimed: TransactionId) -> Self {
        let reason = self.reason();
        Self::Committed(
            claimed,
            format!("the handler sent COMMIT by itself, which stays, and then failed: {reason}"),
        )
    }

    pub(crate) fn timed_out(limit: Duration, locked_since: Option<Instant>) -> Self {
        Self::Abandoned { reason: format!("the handler took longer than {limit:?}"), locked_since }
    }

    /// The classification of a failed commit.
    pub(super) fn of_commit(error: CommitError) -> Self {
        match error {
            CommitError::Lost(error) => Self::Broken("commit", error),
            CommitError::Conflict(reason) => Self::Conflict(reason),
            CommitError::Refused(reason) => Self::Failed(reason),
        }
    }
}
