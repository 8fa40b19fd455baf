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
use tracing::{debug, info};

use super::{
    demand::{Demand, LONG_PASS},
    steps::Pass,
    worker::Worker,
};
use crate::{
    backoff::{AWAY, Backoff},
    error::RelayError,
    postgres::{leader::Leader, store::Mark},
};

/// PostgreSQL is there and refuses: each time it may write a line into its log.
pub(super) const REFUSED: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(5) };
/// Idle passes in a row with the shortest pause: the next message of a trickle is near.
const ALERT: u32 = 1;
/// Idle passes in a row before a worker leaves, and before the relay is marked asleep.
const CALM: u32 = 6;
/// A timer sleeps so long at least.
const TICK: Duration = Duration::from_millis(1);
/// The longest pause where producers send no NOTIFY: see `sleep.sql`.
const NAP: Duration = Duration::from_millis(100);

/// A new relay works so long before it is a standby: what is due by then may be more
/// than one relay does.
const START: Duration = Duration::from_secs(3);
/// For how long a standby helps that has found lanes that lag.
const HELPS: Duration = Duration::from_secs(10);
/// The longest wait for news of the leader; they come about once a second.
const STAND_BY_MAX: Duration = Duration::from_secs(5);

/// One worker and its loop.
#[derive(Debug)]
pub(crate) struct Runner {
    worker: Worker,
    number: usize,
    demand: Arc<Demand>,
    leader: watch::Receiver<Leader>,
    /// Until then this relay works, whichever is the leader.
    works_until: Instant,
    poll: Backoff,
    idle_passes: u32,
    failures: u32,
    /// It has said that it is a standby.
    stands_by: bool,
    /// Somebody has woken the relay: something is due.
    is_woken: bool,
    /// When the relay was last marked asleep, if nothing has happened since.
    marked: Option<Instant>,
    /// There was no look since it was marked asleep.
    is_just_marked: bool,
    /// The last pass took long: it is better to leave lanes to others.
    is_slow: bool,
    /// The next look would find more: the last pass settled several messages, or the one before it
    /// some as well.
    is_busy: bool,
}

impl Runner {
    pub(crate) fn new(
        worker: Worker,
        number: usize,
        demand: Arc<Demand>,
        leader: watch::Receiver<Leader>,
    ) -> Self {
        let poll = Backoff { first: worker.tuning.poll_min, max: worker.tuning.poll_max };
        Self {
            worker,
            number,
            demand,
            leader,
            works_until: Instant::now() + START,
            poll,
            idle_passes: 0,
            failures: 0,
            stands_by: false,
            is_woken: false,
            marked: None,
            is_just_marked: false,
            is_slow: false,
            is_busy: false,
        }
    }

    /// Makes passes until shutdown; the pass under way is finished first.
    pub(crate) async fn run(mut self, mut wake: watch::Receiver<u64>, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            self.worker.heartbeat.beat();
            if !self.demand.is_wanted(self.number) {
                self.worker.store.close_idle();
                tokio::select! {
                    () = self.demand.stand_by(self.number) => {}
                    () = shutdown.cancelled() => {}
                }
                continue;
            }
            if !self.works() {
                self.stand_by(&shutdown).await;
                continue;
            }
            if wake.has_changed().unwrap_or(false) {
                wake.mark_unchanged();
                self.wake_up();
            }
            let Some(pause) = self.pass(&shutdown).await else { continue };
            tokio::select! {
                () = sleep(pause) => {}
                Ok(()) = wake.changed(), if self.number == 0 => self.wake_up(),
                // The leader may be another by now.
                Ok(()) = self.leader.changed(), if self.number == 0 => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    /// Whether this relay is the leader, or helps. Its other workers follow the first.
    fn works(&self) -> bool {
        self.number > 0 || Instant::now() < self.works_until || matches!(*self.leader.borrow(), Leader::This)
    }

    /// Another relay is the leader: sees to it that no lane lags.
    async fn stand_by(&mut self, shutdown: &CancellationToken) {
        let Leader::Another(snapshot) = self.leader.borrow_and_update().clone() else { return };
        if !self.stands_by {
            self.stands_by = true;
            info!("another relay is the leader; this one is a standby");
        }
        self.worker.store.close_idle();
        let lanes = self.demand.lanes(self.worker.tuning.lanes_max);
        match self.worker.finds_lag(lanes, snapshot).await {
            Ok(true) => {
                info!("the leader is behind; this relay helps");
                self.works_until = Instant::now() + HELPS;
                self.stands_by = false;
                return;
            }
            Ok(false) => {}
            Err(error) => self.worker.report(&error),
        }
        tokio::select! {
            _ = timeout(STAND_BY_MAX, self.leader.changed()) => {}
            () = shutdown.cancelled() => {}
        }
    }

    fn wake_up(&mut self) {
        self.marked = None;
        self.is_woken = true;
        self.idle_passes = 0;
    }

    /// One pass, and for how long to pause then; `None` for not at all. While messages keep coming
    /// the shortest pause counts from the beginning of a pass to that of the next.
    async fn pass(&mut self, shutdown: &CancellationToken) -> Option<Duration> {
        let started = Instant::now();
        // After a pass that found nothing, and after a wake-up, one message is no sign of more.
        let is_calm = self.idle_passes > 0 || self.is_woken;
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
                // Two passes in a row found something, or one found several: so will the next.
                self.is_busy = messages > usize::from(is_calm);
                self.idle_passes = 0;
                self.marked = None;
                self.demand.settled(self.number, messages, full);
                if full {
                    None
                } else if self.is_busy {
                    let left = self.worker.tuning.poll_min.saturating_sub(started.elapsed());
                    (left >= TICK).then_some(left)
                } else {
                    Some(self.poll.delay(0))
                }
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
        let passed = if self.number > 0 || !self.demand.is_alone() {
            self.worker.pass(lanes).await
        } else if self.is_busy || self.is_woken {
            self.worker.pass_on(lanes, self.is_woken).await
        } else {
            self.worker.pass_if_due(lanes).await
        };
        self.is_woken &= passed.is_err();
        passed
    }

    /// Nothing was due: for how long to pause. After a while the last worker leaves, or the only
    /// one has the next enqueue wake it.
    async fn rest(&mut self) -> Duration {
        // Whoever has enqueued before the mark was set, and is open still, sends no NOTIFY: the
        // pauses begin anew, so that the message waits no longer than its transaction took.
        if std::mem::take(&mut self.is_just_marked) && self.worker.has_seen_open() {
            self.idle_passes = 0;
        }
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
        if matches!(*self.leader.borrow(), Leader::Another(_)) {
            // The mark is set by the relay that would be woken.
            return pause.min(NAP);
        }
        // The mark is set again now and then: the producer that cleared it may have woken nobody.
        if self.marked.is_some_and(|marked| marked.elapsed() < self.worker.asks_every()) {
            return pause;
        }
        self.marked = None;
        let mark = timeout(self.worker.tuning.poll_max, self.worker.store.sleep()).await;
        self.marked = matches!(mark, Ok(Ok(Mark::New(_) | Mark::Old))).then(Instant::now);
        match mark {
            Ok(Ok(Mark::Useless)) => pause.min(NAP),
            // Whoever has enqueued in the meantime has sent no NOTIFY: look again before the long
            // pause.
            Ok(Ok(Mark::New(xact))) => {
                self.worker.note_own(xact);
                self.is_just_marked = true;
                self.poll.delay(0)
            }
            Ok(Ok(Mark::Old)) => pause,
            failed => {
                debug!(?failed, "mark asleep");
                pause
            }
        }
    }
}

pub(super) fn is_away(error: &RelayError) -> bool {
    matches!(error, RelayError::Postgres(error) if error.is_away())
}
