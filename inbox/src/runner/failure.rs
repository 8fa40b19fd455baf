//! How an attempt ended, and why it was rolled back.

use std::{error::Error as StdError, time::Duration};

use oncebox_claims::{
    failure::{CommitError, text},
    transactional::TransactionId,
};
use tokio::time::Instant;

use crate::{Error, Verdict};

/// How an attempt ended; its transaction is over, or is to be rolled back.
#[derive(Debug)]
pub(super) enum AttemptResult<R> {
    /// Committed, or found committed or in flight.
    Verdict(Verdict<R>),
    /// Rolled back: the key is to be claimed again, in another transaction. It was handled before,
    /// and the claim expected a new one, or had an older snapshot.
    ClaimAgain,
    /// Rolled back.
    Failed(Failure),
    /// PostgreSQL is away or refused a statement of ours.
    Error(Error),
}

/// Why an attempt has nothing to commit.
#[derive(Debug)]
pub(super) enum AttemptError {
    /// It is to be rolled back.
    Failed(Failure),
    /// PostgreSQL is away or refused a statement of ours.
    Error(Error),
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<Failure> for AttemptError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl<R> From<AttemptError> for AttemptResult<R> {
    fn from(error: AttemptError) -> Self {
        match error {
            AttemptError::Failed(failure) => Self::Failed(failure),
            AttemptError::Error(error) => Self::Error(error),
        }
    }
}

/// Why an attempt was rolled back.
#[derive(Debug)]
pub(crate) enum Failure {
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
    /// The connection broke, or PostgreSQL refused what it refuses in an outage. What was done, and
    /// the error. When it was the commit, its effect may be there: the next run finds out.
    Broken(&'static str, Box<dyn StdError + Send + Sync>),
    /// The handler panicked or took too long: a statement of it may still run.
    Abandoned {
        reason: String,
        /// Since when this run has had the key's lock at least; `None` where another run has it, in
        /// shadow mode.
        locked_since: Option<Instant>,
    },
}

impl Failure {
    pub(crate) fn panicked(panic: &str, locked_since: Option<Instant>) -> Self {
        Self::Abandoned { reason: format!("the handler panicked: {panic}"), locked_since }
    }

    /// The same failure of a handler that has committed its claim by itself.
    pub(crate) fn committed(self, claimed: TransactionId) -> Self {
        let reason = match self {
            Self::Conflict(reason)
            | Self::Dead(reason)
            | Self::Failed(reason)
            | Self::Committed(_, reason)
            | Self::Snoozed(_, reason)
            | Self::Abandoned { reason, .. } => reason,
            Self::RetryAfter(_) => "the handler asked for a retry".to_owned(),
            Self::Broken(what, source) => format!("{what}: {}", text(&*source)),
        };
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
            CommitError::Lost(error) => Self::Broken("commit", error.into()),
            CommitError::Conflict(reason) => Self::Conflict(reason),
            CommitError::Refused(reason) => Self::Failed(reason),
        }
    }
}
