//! The loop of one of a relay's workers: pass after pass, pauses in between, standing by while
//! fewer are wanted.
//!
//! The first worker looks before it claims lanes, as long as there is little to do; the others work
//! only while there is much.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    demand::{Demand, LONG_PASS},
    steps::Pass,
    worker::Worker,
};
use crate::{
    backoff::{AWAY, Backoff},
    error::RelayError,
};

/// PostgreSQL is there and refuses: each time it may write a line into its log.
const REFUSED: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(5) };
/// A pass that settles as many is work for two workers.
const MANY: usize = 1_000;
/// Idle passes in a row with the shortest pause: the next message of a trickle is near.
const ALERT: u32 = 4;
/// Idle passes in a row before a worker leaves, and before the relay is marked asleep.
const CALM: u32 = 8;
/// The longest pause where producers send no NOTIFY: see `sleep.sql`.
const NAP: Duration = Duration::from_millis(100);

/// One worker and its loop.
#[derive(Debug)]
pub(crate) struct Runner {
    worker: Worker,
    number: usize,
    demand: Arc<Demand>,
    poll: Backoff,
    idle_passes: u32,
    failures: u32,
    /// Somebody has woken the relay: something is due.
    is_woken: bool,
    /// The last pass took long: it is better to leave lanes to others.
    is_slow: bool,
    /// The last pass settled several messages: the next look would find more.
    is_busy: bool,
}

impl Runner {
    pub(crate) fn new(worker: Worker, number: usize, demand: Arc<Demand>) -> Self {
        let poll = Backoff { first: worker.tuning.poll_min, max: worker.tuning.poll_max };
        Self {
            worker,
            number,
            demand,
            poll,
            idle_passes: 0,
            failures: 0,
            is_woken: false,
            is_slow: false,
            is_busy: false,
        }
    }

    /// Makes passes until shutdown; the pass under way is finished first.
    pub(crate) async fn run(mut self, mut wake: watch::Receiver<u64>, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            self.worker.heartbeat.beat();
            if !self.demand.is_wanted(self.number) {
                tokio::select! {
                    () = self.demand.stand_by(self.number) => {}
                    () = shutdown.cancelled() => {}
                }
                continue;
            }
            if wake.has_changed().unwrap_or(false) {
                wake.mark_unchanged();
                self.wake_up();
            }
            let Some(pause) = self.pass(&shutdown).await else { continue };
            tokio::select! {
                () = sleep(pause) => {}
                Ok(()) = wake.changed() => self.wake_up(),
                () = shutdown.cancelled() => {}
            }
        }
    }

    fn wake_up(&mut self) {
        self.is_woken = true;
        self.idle_passes = 0;
    }

    /// One pass, and for how long to pause then; `None` for not at all.
    async fn pass(&mut self, shutdown: &CancellationToken) -> Option<Duration> {
        let started = Instant::now();
        let passed = {
            let demand = Arc::clone(&self.demand);
            let _in_pass = demand.begin_pass(self.number);
            self.look_and_pass().await
        };
        self.is_slow = started.elapsed() >= LONG_PASS;
        if passed.is_ok() {
            self.failures = 0;
        }
        match passed {
            // Its connection is over. What paces new ones is their keeper; a pause here would
            // outlast the outage.
            Ok(Pass::Settled { .. }) if self.worker.is_over() => None,
            Ok(Pass::Settled { full, messages }) => {
                self.idle_passes = 0;
                self.is_busy = messages > 1;
                if messages >= MANY {
                    self.demand.more(self.number);
                }
                (!full).then(|| self.poll.delay(0))
            }
            Ok(Pass::Idle) => {
                self.is_busy = false;
                self.idle_passes = self.idle_passes.saturating_add(1);
                Some(self.rest().await)
            }
            Ok(Pass::Away) => {
                self.worker.await_connection(shutdown).await;
                None
            }
            Err(error) => {
                self.worker.report(&error);
                self.failures = self.failures.saturating_add(1);
                Some(if is_away(&error) { AWAY.delay(self.failures) } else { REFUSED.delay(self.failures) })
            }
        }
    }

    async fn look_and_pass(&mut self) -> Result<Pass, RelayError> {
        let lanes = self.worker.tuning.lanes_max;
        let lanes = if self.is_slow { lanes } else { self.demand.lanes(lanes) };
        let passed = if self.number > 0 || self.is_busy || self.is_woken {
            self.worker.pass(lanes).await
        } else {
            self.worker.pass_if_due(lanes).await
        };
        self.is_woken &= passed.is_err();
        passed
    }

    /// Nothing was due: for how long to pause. After a while the last worker leaves, or the only
    /// one has the next enqueue wake it.
    async fn rest(&mut self) -> Duration {
        let pause = self.poll.delay(self.idle_passes.saturating_sub(ALERT));
        debug!(worker = self.number, ?pause, "nothing is due");
        if self.idle_passes < CALM {
            return pause;
        }
        if self.number > 0 {
            self.demand.fewer(self.number);
            return pause;
        }
        self.worker.store.close_idle();
        match self.worker.last_look() {
            Some(look) if !look.notifies => pause.min(NAP),
            Some(look) if !look.is_asleep => {
                let marked = timeout(self.worker.tuning.poll_max, self.worker.store.sleep()).await;
                debug!(?marked, "mark asleep");
                // Whoever has enqueued in the meantime has sent no NOTIFY: look again before the
                // long pause.
                self.poll.delay(0)
            }
            Some(_) | None => pause,
        }
    }
}

fn is_away(error: &RelayError) -> bool {
    matches!(error, RelayError::Postgres(error) if error.is_away())
}
