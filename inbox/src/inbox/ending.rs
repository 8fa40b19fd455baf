//! How a transaction ended, other than by an error of ours.

use std::{
    any::Any,
    error::Error as StdError,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use oncebox_claims::{
    failure::{Class, classify, text},
    reply::panic_text,
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;

use crate::Verdict;

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Ended<R> {
    /// Committed, or found committed or in flight.
    Verdict(Verdict<R>),
    /// Rolled back.
    Failure(Failure),
    /// Rolled back: the key was handled before, and the claim was one for new keys.
    Known,
}

/// Why an attempt was rolled back.
#[derive(Debug)]
pub(super) enum Failure {
    /// Lost a race against another transaction.
    Conflict(String),
    /// The handler asked to run again after this time.
    Asked(Duration),
    /// The handler cannot deal with it for now, for a reason that is not the message's.
    Parked(Duration, String),
    /// The handler gave up.
    Dead(String),
    /// The handler failed.
    Failed(String),
    /// The connection broke, or PostgreSQL refused what it refuses in an outage; what was done, and
    /// the error. When it was the commit, its effect may be there: the next run finds out.
    Broken(&'static str, Box<dyn StdError + Send + Sync>),
    /// The handler panicked or took too long: a statement of it may still run.
    Abandoned {
        reason: String,
        /// The key's lock is this run's at least since then; `None` where it is another's, in
        /// shadow mode.
        locked_since: Option<Instant>,
    },
}

impl Failure {
    pub(super) fn panicked(panic: &(dyn Any + Send), locked_since: Option<Instant>) -> Self {
        Self::Abandoned { reason: format!("the handler panicked: {}", panic_text(panic)), locked_since }
    }

    pub(super) fn timed_out(limit: Duration, locked_since: Option<Instant>) -> Self {
        Self::Abandoned { reason: format!("the handler took longer than {limit:?}"), locked_since }
    }
}

/// Decodes a payload. Code of the user's runs here, while the transaction of an earlier message may be open: its panic
/// must not end that one too.
pub(crate) fn decode<M: DeserializeOwned>(payload: &[u8]) -> Result<M, String> {
    match catch_unwind(AssertUnwindSafe(|| serde_json::from_slice(payload))) {
        Ok(decoded) => decoded.map_err(|problem| undecodable(&problem)),
        Err(panic) => Err(format!("decoding the payload panicked: {}", panic_text(&*panic))),
    }
}

/// The payload must not reach a log, so of serde's error only the place is told.
fn undecodable(problem: &serde_json::Error) -> String {
    let kind = match problem.classify() {
        serde_json::error::Category::Data => "is not what the handler decodes",
        _ => "is no JSON",
    };
    format!("the payload {kind}, line {} column {}", problem.line(), problem.column())
}

/// What a failed commit means.
pub(super) fn of_commit(error: tokio_postgres::Error) -> Failure {
    match (classify(&error), error.code()) {
        (Class::Unavailable, _) => Failure::Broken("commit", error.into()),
        (Class::Conflict, _) => Failure::Conflict(text(&error)),
        (Class::Failed, Some(&SqlState::IN_FAILED_SQL_TRANSACTION)) => Failure::Failed(
            "the handler went on after a statement had failed; the transaction was aborted".to_owned(),
        ),
        (Class::Failed, Some(&SqlState::NO_ACTIVE_SQL_TRANSACTION)) => {
            Failure::Failed("the handler ended the transaction by itself; only the inbox may".to_owned())
        }
        (Class::Failed, _) => Failure::Failed(text(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_stays_out_of_the_reason() {
        let problem = serde_json::from_slice::<u8>(b"\"my card number\"").unwrap_err();
        assert_eq!(undecodable(&problem), "the payload is not what the handler decodes, line 1 column 16");
    }
}
