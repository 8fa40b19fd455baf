//! The results of answers and deadlines, counted since the orchestrator was built.

use std::sync::{Mutex, PoisonError};

use crate::{
    orchestrator::watched::{CaughtUp, Looks},
    progress::{State, Verdict},
};

/// The work of an orchestrator since it was built; see
/// [`Orchestrator::counts`](crate::Orchestrator::counts). A transaction that has to be repeated
/// counts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Sagas started.
    pub started: u64,
    /// Answers, deadlines and requests of operators that changed a saga.
    pub applied: u64,
    /// Answers that came before their command was sent, and wait for it.
    pub early: u64,
    /// Answers that came too late to matter, and changed nothing.
    pub late: u64,
    /// Answers that were known already, and changed nothing.
    pub duplicate: u64,
    /// Dead letters of commands that no saga here has sent, or that are not those of the step's
    /// participant.
    pub foreign: u64,
    /// Answers that are none, or that contradict themselves or their saga: dead letters.
    pub refused: u64,
    /// Sagas that were completed.
    pub completed: u64,
    /// Sagas that were compensated.
    pub compensated: u64,
    /// Changes after which a saga waits for an operator.
    pub stuck: u64,
    /// Sagas that were put in quarantine.
    pub quarantined: u64,
    /// Answers that were deleted, since no saga ever had their key.
    pub orphans: u64,
}

/// The counts so far, and how the orchestrator watches deadlines.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) looks: Looks,
    /// Of the last start.
    pub(crate) caught_up: CaughtUp,
    counts: Mutex<Counts>,
}

impl Counters {
    /// Counts something.
    pub(crate) fn add(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn count(&self, verdict: Verdict) {
        self.add(|counts| match verdict {
            Verdict::Applied => counts.applied += 1,
            Verdict::Early => counts.early += 1,
            Verdict::Late => counts.late += 1,
            Verdict::Duplicate => counts.duplicate += 1,
            Verdict::Foreign => counts.foreign += 1,
        });
    }

    /// Counts a change, by the state it led to.
    pub(crate) fn reached(&self, state: State) {
        self.add(|counts| match state {
            State::Completed => counts.completed += 1,
            State::Compensated => counts.compensated += 1,
            State::Stuck => counts.stuck += 1,
            State::Running | State::Compensating => {}
        });
    }

    pub(crate) fn snapshot(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
