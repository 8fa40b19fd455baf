//! The results of answers and deadlines, counted since the orchestrator was built.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    orchestrator::{catch_up::CaughtUp, watched::Looks},
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

/// The counters from which [`Counts`] are made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) looks: Looks,
    /// Of the last start.
    pub(crate) caught_up: CaughtUp,
    pub(crate) started: AtomicU64,
    pub(crate) applied: AtomicU64,
    pub(crate) early: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) duplicate: AtomicU64,
    pub(crate) foreign: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) compensated: AtomicU64,
    pub(crate) stuck: AtomicU64,
    pub(crate) quarantined: AtomicU64,
    pub(crate) orphans: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn count(&self, verdict: Verdict) {
        add(match verdict {
            Verdict::Applied => &self.applied,
            Verdict::Early => &self.early,
            Verdict::Late => &self.late,
            Verdict::Duplicate => &self.duplicate,
            Verdict::Foreign => &self.foreign,
        });
    }

    pub(crate) fn reached(&self, state: State) {
        match state {
            State::Completed => add(&self.completed),
            State::Compensated => add(&self.compensated),
            State::Stuck => add(&self.stuck),
            State::Running | State::Compensating => {}
        }
    }

    pub(crate) fn snapshot(&self) -> Counts {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            started: value(&self.started),
            applied: value(&self.applied),
            early: value(&self.early),
            late: value(&self.late),
            duplicate: value(&self.duplicate),
            foreign: value(&self.foreign),
            refused: value(&self.refused),
            completed: value(&self.completed),
            compensated: value(&self.compensated),
            stuck: value(&self.stuck),
            quarantined: value(&self.quarantined),
            orphans: value(&self.orphans),
        }
    }
}
