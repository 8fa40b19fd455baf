//! The look of others at the loop that watches deadlines.
//!
//! Answers that wait when an orchestrator starts are taken before deadlines pass: a step that was
//! done in time is not undone because no orchestrator led meanwhile.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use oncebox_claims::failure::text;
use oncebox_inbox::Consumer;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

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

/// The longest time that deadlines wait for answers.
const WAIT_MAX: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(200);
/// A wait of this length is worth a line in the log.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// Whether the answers that waited have been taken.
#[derive(Debug, Default)]
pub(crate) struct CaughtUp(AtomicBool);

impl CaughtUp {
    pub(super) fn is_done(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Resolves when the answers that the stream had at first are acknowledged, by any process;
    /// after a minute in any case. Later answers do not count.
    pub(super) async fn wait(&self, replies: &Consumer, shutdown: &CancellationToken) {
        let begun = Instant::now();
        let mut first = None;
        let waiting = async {
            loop {
                match replies.backlog().await {
                    // It is made when the consumer starts.
                    Ok(None) => {}
                    Ok(Some(now)) => {
                        let until = *first.get_or_insert(now.last);
                        if now.waiting == 0 || now.acknowledged_to >= until {
                            return;
                        }
                    }
                    Err(problem) => warn!("answers that wait cannot be counted: {}", text(&problem)),
                }
                sleep(ASK_EVERY).await;
            }
        };
        tokio::select! {
            () = waiting => if begun.elapsed() >= TOLD_AFTER {
                info!("answers that waited are taken; deadlines of sagas are watched from here on");
            },
            () = sleep(WAIT_MAX) => warn!(
                "answers still wait after {WAIT_MAX:?}: deadlines of sagas pass all the same, and steps whose answers are late \
                 are undone"
            ),
            () = shutdown.cancelled() => return,
        }
        self.0.store(true, Ordering::Relaxed);
    }
}
