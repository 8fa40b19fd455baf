//! Mistakes in the inbox: wrong decisions of `life`, and steps that are done wrongly.

use oncebox_claims::life::{self, Arrival, Ended, Held, Next, Run};

use super::{ACKNOWLEDGED, BOUNDED, FINISHES, HALF, LIMIT, ONCE};

/// A mistake in the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// The handler runs without a look at the key.
    NoClaim,
    /// The key is looked up, not claimed: two copies may run at once.
    LookOnly,
    /// The key is committed before the handler runs.
    ClaimCommitsFirst,
    /// The handler's writes are committed before the key.
    EffectCommitsFirst,
    /// The message is acknowledged before the commit.
    AckBeforeCommit,
    /// A commit without an answer: the handler runs again without a new claim.
    RestartWithoutClaim,
    /// The handler's own rollback takes the claim away, and the commit does not notice.
    RollbackUnnoticed,
    /// The owner of a lease that has ended may still write.
    Unfenced,
    /// An effect is not recorded before it is made.
    EffectUnrecorded,
    /// An effect that another owner began is made again without asking.
    BegunIsMadeAgain,
    /// A key that has ended is claimed again.
    EndedIsFree,
    /// A key that is held is claimed, too.
    HeldIsFree,
    /// A claim that its owner has left is never taken over.
    LeftIsHeld,
    /// Another message of the key is answered like a copy.
    PayloadIgnored,
    /// Another message of the key is handled, too.
    PayloadClaims,
    /// A commit without an answer counts as done.
    LostCommitIsDone,
    /// A handler that has committed a part is run again.
    HalfIsRetried,
    /// A message that fails is retried for ever.
    NeverBuried,
    /// A message is given up one attempt too early.
    BuriedEarly,
    /// A snooze is an attempt.
    SnoozeCounts,
}

/// The decisions about a key.
#[derive(Clone, Copy)]
pub(super) struct Life {
    pub(super) arrive: fn(Option<Ended>, Option<Held>) -> Arrival,
    pub(super) is_attempt: fn(Run) -> bool,
    pub(super) is_repeated: fn(Run, u64) -> bool,
    pub(super) next: fn(Run, u64, u64) -> Next,
}

impl Life {
    pub(super) const REAL: Self = Self {
        arrive: life::arrive,
        is_attempt: Run::is_attempt,
        is_repeated: Run::is_repeated,
        next: Run::next,
    };
}

impl Mutant {
    /// The decisions with this mistake; the real ones where the mistake is in a step.
    pub(super) fn life(self) -> Life {
        /// The real decision, except that `wrong` stands for `right`.
        macro_rules! arrive {
            ($right:path, $wrong:expr) => {
                |ended, held| match life::arrive(ended, held) {
                    $right => $wrong,
                    arrival => arrival,
                }
            };
        }
        let real = Life::REAL;
        match self {
            Self::EndedIsFree => Life { arrive: arrive!(Arrival::Copy, Arrival::Claim), ..real },
            Self::HeldIsFree => Life { arrive: arrive!(Arrival::InFlight, Arrival::Claim), ..real },
            Self::PayloadIgnored => Life { arrive: arrive!(Arrival::Mismatch, Arrival::Copy), ..real },
            Self::PayloadClaims => Life { arrive: arrive!(Arrival::Mismatch, Arrival::Claim), ..real },
            Self::LeftIsHeld => Life {
                arrive: |ended, held| life::arrive(ended, held.map(|held| Held { is_over: false, ..held })),
                ..real
            },
            Self::LostCommitIsDone => Life {
                next: |run, attempts, max| {
                    (if run == Run::Unanswered { Run::Done } else { run }).next(attempts, max)
                },
                ..real
            },
            Self::HalfIsRetried => Life {
                next: |run, attempts, max| match run {
                    Run::HalfCommitted => Next::Retry,
                    run => run.next(attempts, max),
                },
                ..real
            },
            Self::NeverBuried => Life { next: |run, _, max| run.next(0, max), ..real },
            Self::BuriedEarly => Life { next: |run, attempts, max| run.next(attempts + 1, max), ..real },
            Self::SnoozeCounts => Life { is_attempt: |run| run.is_attempt() || run == Run::Snoozed, ..real },
            _ => real,
        }
    }
}

/// Each mistake with the kind of claim, whether the key is reused, and the promise that it breaks.
pub const MUTANTS: &[(Mutant, bool, bool, &str)] = &[
    (Mutant::NoClaim, false, false, ONCE),
    (Mutant::LookOnly, false, false, ONCE),
    (Mutant::ClaimCommitsFirst, false, false, ACKNOWLEDGED),
    (Mutant::EffectCommitsFirst, false, false, ONCE),
    (Mutant::AckBeforeCommit, false, false, ACKNOWLEDGED),
    (Mutant::RestartWithoutClaim, false, false, ONCE),
    (Mutant::RollbackUnnoticed, false, false, ONCE),
    (Mutant::Unfenced, true, false, ONCE),
    (Mutant::EffectUnrecorded, true, false, ONCE),
    (Mutant::BegunIsMadeAgain, true, false, ONCE),
    (Mutant::EndedIsFree, false, false, ONCE),
    (Mutant::EndedIsFree, true, false, FINISHES),
    (Mutant::HeldIsFree, false, false, ONCE),
    (Mutant::HeldIsFree, true, false, ONCE),
    (Mutant::LeftIsHeld, true, false, FINISHES),
    (Mutant::PayloadIgnored, false, true, ACKNOWLEDGED),
    (Mutant::PayloadIgnored, true, true, ACKNOWLEDGED),
    (Mutant::PayloadClaims, false, true, ONCE),
    (Mutant::LostCommitIsDone, false, false, ACKNOWLEDGED),
    (Mutant::HalfIsRetried, false, false, HALF),
    (Mutant::NeverBuried, false, false, BOUNDED),
    (Mutant::NeverBuried, true, false, BOUNDED),
    (Mutant::BuriedEarly, false, false, LIMIT),
    (Mutant::SnoozeCounts, false, false, LIMIT),
];
