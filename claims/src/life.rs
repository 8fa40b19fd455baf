//! The life of a key: the state that an arrival finds, the end of a run, and when a key is given
//! up.
//!
//! Pure: no SQL, no clock. Every mode asks here (in a transaction, in a batch, under a lease, over
//! HTTP), and so does the specification in `model`, which tries every order of events with these
//! decisions and with wrong ones.
//!
//! ```text
//! arrival ─┬─ free, expired, left ▶ claim ─▶ run ─┬─ done, rejected ────────▶ ended
//!          ├─ held ───────────────▶ in flight     ├─ conflict ──────────────▶ run again, at once
//!          └─ ended ──────────────▶ copy,         ├─ failed, attempts left ─▶ run again, later
//!                                   mismatch      ├─ failed, none left ─────▶ ended: dead
//!                                                 └─ commit not answered ───▶ arrival, once more
//! ```

use std::time::Duration;

/// How often a run that lost a race is repeated at once, the first run included.
const ROUNDS_MAX: u64 = 5;
/// How often a message may end its process while it runs alone. Each time takes all consumers of
/// the process along, so it is less than the attempts that a failing handler has. The SQL function
/// `begin_attempt` has the same limit.
const CRASHES_MAX: u64 = 3;

/// How a key ended, as its row has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The effect is complete.
    Completed,
    /// The handler said no.
    Rejected,
    /// It was given up, and recorded as a dead letter.
    Dead,
}

impl Status {
    pub(crate) const ALL: [Self; 3] = [Self::Completed, Self::Rejected, Self::Dead];

    /// The status as the column has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Rejected => "rejected",
            Self::Dead => "dead",
        }
    }
}

/// The row of a key that has ended, as an arrival sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ended {
    /// It ended with the payload that arrives.
    pub is_same: bool,
    /// It is older than the retention, and counts for nothing.
    pub is_expired: bool,
}

/// A claim that has not ended, as an arrival sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// It was made with the payload that arrives.
    pub is_same: bool,
    /// Its lease, or its pause after a failure, is over.
    pub is_over: bool,
    /// Its message may have ended the processes that held it.
    pub is_suspect: bool,
}

impl Held {
    /// By a transaction that has not ended. Its row is not visible yet.
    pub const BY_TRANSACTION: Self = Self { is_same: true, is_over: false, is_suspect: false };
}

/// The decision about a message, or a request, that asks for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// The key is free, or left: claim it.
    Claim,
    /// Claim it in place of a row that is older than the retention.
    Replace,
    /// Take it over, but run nothing else of its kind meanwhile.
    ClaimAlone,
    /// Another one works on it: ask again later.
    InFlight,
    /// It has ended: answer with the stored outcome.
    Copy,
    /// The key belongs to another payload.
    Mismatch,
}

/// Decides about an arrival, by the committed rows of its key. A key ends in the transaction that
/// takes its claim away, so a statement sees one of the two at least.
#[must_use]
pub fn arrive(ended: Option<Ended>, held: Option<Held>) -> Arrival {
    match (ended, held) {
        (Some(Ended { is_expired: false, is_same: true }), _) => Arrival::Copy,
        (Some(Ended { is_expired: false, is_same: false }), _) => Arrival::Mismatch,
        (_, Some(Held { is_same: false, .. })) => Arrival::Mismatch,
        (_, Some(Held { is_over: false, .. })) => Arrival::InFlight,
        (_, Some(Held { is_suspect: true, .. })) => Arrival::ClaimAlone,
        (Some(_), _) => Arrival::Replace,
        (None, _) => Arrival::Claim,
    }
}

/// The record of a message that was tried before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Past {
    /// Runs that failed.
    pub failures: u64,
    /// Runs that began and left no trace: did one end its process?
    pub untraced: u64,
    /// The rest of its pause.
    pub rest: Duration,
}

/// The decision about a message that was tried before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Begin {
    /// Run it.
    Run,
    /// Run it, but no other such message of this process meanwhile.
    Alone,
    /// Its pause is not over.
    Rest(Duration),
    /// It has no attempt left: give it up.
    Bury,
}

impl Past {
    /// How many attempts there were. The first run without a trace had others beside it, so it
    /// proves nothing.
    #[must_use]
    pub fn attempts(self) -> u64 {
        self.failures + self.untraced.saturating_sub(1)
    }

    /// Decides whether the message is run.
    #[must_use]
    pub fn begin(self, attempts_max: u64) -> Begin {
        match self.attempts() >= attempts_max || self.untraced > CRASHES_MAX {
            _ if !self.rest.is_zero() => Begin::Rest(self.rest),
            true => Begin::Bury,
            false if self.untraced > 0 => Begin::Alone,
            false => Begin::Run,
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    /// The handler did its work.
    Done,
    /// The handler refused the message for good.
    Rejected,
    /// The handler failed, took too long, or asked for another run.
    Failed,
    /// It lost a race against another transaction.
    Conflict,
    /// The handler cannot deal with the message for now, for a reason that is not the message's.
    Snoozed,
    /// The handler gave the message up.
    GivenUp,
    /// The handler failed after it had committed its claim by itself, with a part of its writes.
    /// Another run would make them twice, and a copy would be answered as handled.
    HalfCommitted,
    /// The claim expected a new key, or had an older snapshot.
    ClaimAgain,
    /// PostgreSQL did not answer, perhaps to the commit.
    Unanswered,
}

/// The decision about a key after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// Commit the outcome under this status, with the handler's writes.
    End(Status),
    /// Roll back; run it again after a pause.
    Retry,
    /// Roll back; run it again after a pause, which is no attempt.
    Snooze,
    /// Roll back, and record it as a dead letter.
    Bury,
    /// Record nothing: the key tells the next arrival whether it was committed.
    Arrive,
}

impl Run {
    /// Whether it counts against the limit of attempts.
    #[must_use]
    pub fn is_attempt(self) -> bool {
        matches!(self, Self::Failed | Self::Conflict)
    }

    /// Whether it is repeated at once, after `round` runs in a row.
    #[must_use]
    pub fn is_repeated(self, round: u64) -> bool {
        matches!(self, Self::Conflict | Self::ClaimAgain) && round < ROUNDS_MAX
    }

    /// Decides after this number of attempts, this one included if it is one.
    #[must_use]
    pub fn next(self, attempts: u64, attempts_max: u64) -> Next {
        match self {
            Self::Done => Next::End(Status::Completed),
            Self::Rejected => Next::End(Status::Rejected),
            Self::GivenUp | Self::HalfCommitted => Next::Bury,
            Self::Snoozed => Next::Snooze,
            Self::Failed | Self::Conflict if attempts >= attempts_max => Next::Bury,
            Self::Failed | Self::Conflict => Next::Retry,
            Self::ClaimAgain | Self::Unanswered => Next::Arrive,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_is_decided_by_the_end_before_the_claim() {
        let ended = |is_same, is_expired| Some(Ended { is_same, is_expired });
        let held = |is_same, is_over, is_suspect| Some(Held { is_same, is_over, is_suspect });
        for (end, claim, expected) in [
            (None, None, Arrival::Claim),
            (ended(true, false), None, Arrival::Copy),
            (ended(false, false), None, Arrival::Mismatch),
            (ended(true, true), None, Arrival::Replace),
            (ended(false, true), None, Arrival::Replace),
            (None, Some(Held::BY_TRANSACTION), Arrival::InFlight),
            (None, held(true, false, true), Arrival::InFlight),
            (None, held(false, false, false), Arrival::Mismatch),
            (None, held(false, true, true), Arrival::Mismatch),
            (None, held(true, true, true), Arrival::ClaimAlone),
            (None, held(true, true, false), Arrival::Claim),
            (ended(true, true), held(true, false, false), Arrival::InFlight),
            (ended(true, true), held(true, true, false), Arrival::Replace),
            (ended(true, false), held(true, true, true), Arrival::Copy),
        ] {
            assert_eq!(arrive(end, claim), expected, "{end:?} {claim:?}");
        }
    }

    #[test]
    fn a_message_that_ends_processes_runs_alone_and_is_given_up_early() {
        let none = Past { failures: 0, untraced: 0, rest: Duration::ZERO };
        let pause = Duration::from_secs(1);
        for (past, expected) in [
            (none, Begin::Run),
            (Past { failures: 19, ..none }, Begin::Run),
            (Past { failures: 20, ..none }, Begin::Bury),
            (Past { untraced: 1, ..none }, Begin::Alone),
            (Past { untraced: 1, failures: 19, ..none }, Begin::Alone),
            (Past { untraced: 2, failures: 19, ..none }, Begin::Bury),
            (Past { untraced: 3, ..none }, Begin::Alone),
            (Past { untraced: 4, ..none }, Begin::Bury),
            (Past { untraced: 4, failures: 20, rest: pause }, Begin::Rest(pause)),
        ] {
            assert_eq!(past.begin(20), expected, "{past:?}");
        }
    }

    #[test]
    fn the_limit_ends_runs_that_failed_and_no_others() {
        for (run, attempts, expected) in [
            (Run::Failed, 2, Next::Retry),
            (Run::Failed, 3, Next::Bury),
            (Run::Conflict, 2, Next::Retry),
            (Run::Conflict, 3, Next::Bury),
            (Run::Snoozed, 9, Next::Snooze),
            (Run::GivenUp, 0, Next::Bury),
            (Run::HalfCommitted, 0, Next::Bury),
            (Run::ClaimAgain, 9, Next::Arrive),
            (Run::Unanswered, 9, Next::Arrive),
            (Run::Done, 9, Next::End(Status::Completed)),
            (Run::Rejected, 9, Next::End(Status::Rejected)),
        ] {
            assert_eq!(run.next(attempts, 3), expected, "{run:?}");
        }
        assert!(Run::Conflict.is_repeated(4) && !Run::Conflict.is_repeated(5) && !Run::Failed.is_repeated(1));
    }
}
