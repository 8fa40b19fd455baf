//! The look of others at the loop that watches deadlines.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::Orchestrator;

/// How the loop that watches deadlines does, of an orchestrator that runs; see
/// [`Orchestrator::watched`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Watched {
    /// How long ago it last ended a look at the database, well or not; `None` before the first.
    pub ended: Option<Duration>,
    /// How long ago it last ended one well.
    pub succeeded: Option<Duration>,
    /// Whether the answers that waited at its start are taken; deadlines are watched from then on.
    pub caught_up: bool,
}

/// When the loop last ended a look, and a good one.
#[derive(Debug, Default)]
pub(crate) struct Looks(Mutex<(Option<Instant>, Option<Instant>)>);

impl Looks {
    pub(crate) fn note(&self, is_well: bool) {
        let (mut looks, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        looks.0 = Some(now);
        if is_well {
            looks.1 = Some(now);
        }
    }
}

impl Orchestrator {
    /// How long ago this orchestrator, or a clone of it, looked at the database, twice a second as
    /// long as [`Orchestrator::run`] runs: for a health check.
    #[must_use]
    pub fn watched(&self) -> Watched {
        let (ended, succeeded) = *self.engine.counters.looks.0.lock().unwrap_or_else(PoisonError::into_inner);
        let caught_up = self.engine.counters.caught_up.is_done();
        Watched {
            ended: ended.map(|at| at.elapsed()),
            succeeded: succeeded.map(|at| at.elapsed()),
            caught_up,
        }
    }
}
