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
    rounds::STILL,
    settle::Pass,
    worker::{Shared, Worker},
};
use crate::{
    backoff::{AWAY, Backoff},
    error::RelayError,
    postgres::{Leader, store::Mark},
};

/// The pace while PostgreSQL answers and refuses: it may write each refusal into its log.
const REFUSED: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(5) };
/// Idle passes in a row with the shortest pause: the next message of a trickle is near.
const ALERT: u32 = 1;
/// Idle passes in a row before a worker leaves, and before the relay is marked asleep.
const CALM: u32 = 6;
/// A timer sleeps for at least this time.
const TICK: Duration = Duration::from_millis(1);
/// The longest pause where producers send no NOTIFY: see `sleep.sql`.
const NAP: Duration = Duration::from_millis(100);

/// The time for which a new relay works before it is a standby: a backlog may be more than one
/// relay's work.
const START: Duration = Duration::from_secs(3);
/// How long a standby helps after it has found lanes that lag.
const HELPS: Duration = Duration::from_secs(10);
/// The longest wait for news of the leader; they come about once a second.
const STAND_BY_MAX: Duration = Duration::from_secs(5);

/// The outlook after the last passes.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Another relay is the leader.
    StandsBy,
    /// A producer has woken the relay: something is due.
    Woken,
    /// The last pass has found a lone message, or none was made yet.
    Alert,
    /// The last pass has found several messages, or the one before it some as well: so will the
    /// next.
    Busy,
    /// This number of passes in a row have found nothing.
    Idle { passes: u32, mark: Option<SleepMark> },
}

impl State {
    /// After a pass that found nothing, and after a wake-up, one message is no sign of more.
    fn settled(self, messages: usize) -> Self {
        let is_calm = matches!(self, Self::Woken | Self::Idle { passes: 1.., .. });
        if messages > usize::from(is_calm) { Self::Busy } else { Self::Alert }
    }

    /// This and the idle passes before it, and whether the relay is marked asleep.
    fn found_nothing(self) -> (u32, Option<SleepMark>) {
        match self {
            Self::Idle { passes, mark } => (passes.saturating_add(1), mark),
            _ => (1, None),
        }
    }
}

/// The relay is marked asleep: the next producer wakes it.
#[derive(Clone, Copy, Debug)]
struct SleepMark {
    at: Instant,
    /// There was no look since.
    is_new: bool,
}

/// One worker and its loop.
#[derive(Debug)]
pub(crate) struct Runner {
    worker: Worker,
    number: usize,
    demand: Arc<Demand>,
    leader: watch::Receiver<Leader>,
    state: State,
    /// Until then this relay works, even if another one is the leader.
    works_until: Instant,
    poll: Backoff,
    failures: u32,
    /// When a pass last found messages.
    came: Option<Instant>,
    /// The last pass took long: it is better to leave lanes to others.
    is_slow: bool,
}

impl Runner {
    pub(crate) fn new(
        worker: Worker,
        number: usize,
        demand: Arc<Demand>,
        leader: watch::Receiver<Leader>,
    ) -> Self {
        let tuning = &worker.shared.tuning;
        let poll = Backoff { first: tuning.poll_min, max: tuning.poll_max };
        let (state, works_until) = (State::Alert, Instant::now() + START);
        Self {
            worker,
            number,
            demand,
            leader,
            state,
            works_until,
            poll,
            failures: 0,
            came: None,
            is_slow: false,
        }
    }

    /// Makes passes until shutdown; the pass under way is finished first.
    pub(crate) async fn run(mut self, mut wake: watch::Receiver<u64>, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            self.worker.heartbeat.beat();
            if !self.demand.is_wanted(self.number) {
                self.worker.shared.store.close_idle();
                shutdown.run_until_cancelled(self.demand.stand_by(self.number)).await;
                continue;
            }
            if !self.works() {
                self.stand_by(&shutdown).await;
                continue;
            }
            if wake.has_changed().unwrap_or(false) {
                wake.mark_unchanged();
                self.state = State::Woken;
            }
            let Some(pause) = self.pass(&shutdown).await else { continue };
            // A throttle's tokens do not wait for the end of a pause.
            let pause = self.worker.shared.breaker.throttle_pause().map_or(pause, |next| pause.min(next));
            tokio::select! {
                () = sleep(pause) => {}
                Ok(()) = wake.changed(), if self.number == 0 => self.state = State::Woken,
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

    /// Another relay is the leader: begins to help when a lane lags.
    async fn stand_by(&mut self, shutdown: &CancellationToken) {
        let Leader::Another(snapshot) = self.leader.borrow_and_update().clone() else { return };
        if !matches!(self.state, State::StandsBy) {
            self.state = State::StandsBy;
            info!("another relay is the leader; this one is a standby");
        }
        self.worker.shared.store.close_idle();
        let lanes = self.demand.lanes(self.worker.shared.tuning.lanes_max);
        match self.worker.finds_lag(lanes, snapshot).await {
            Ok(true) => {
                info!("the leader is behind; this relay helps");
                self.works_until = Instant::now() + HELPS;
                self.state = State::Alert;
                return;
            }
            Ok(false) => {}
            Err(error) => self.worker.report(&error),
        }
        shutdown.run_until_cancelled(timeout(STAND_BY_MAX, self.leader.changed())).await;
    }

    /// Makes a pass; returns the pause after it, if there is one. While messages keep coming the
    /// shortest pause counts from beginning to beginning.
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
            // Its connection is over. The keeper paces new ones; a pause here would outlast the
            // outage.
            Ok(Pass::Settled { .. }) if self.worker.is_over() => None,
            Ok(Pass::Settled { full, messages }) => {
                self.state = self.state.settled(messages);
                if messages > 0 {
                    self.came = Some(Instant::now());
                }
                self.demand.settled(self.number, messages, full);
                match self.state {
                    _ if full => None,
                    State::Busy => {
                        let poll_min = self.worker.shared.tuning.poll_min;
                        Some(poll_min.saturating_sub(started.elapsed())).filter(|left| *left >= TICK)
                    }
                    _ => Some(self.poll.delay(0)),
                }
            }
            Ok(Pass::Idle) => Some(self.rest().await),
            Ok(Pass::Away) => {
                self.worker.await_connection(shutdown).await;
                None
            }
            Err(error) => {
                self.worker.report(&error);
                self.failures = self.failures.saturating_add(1);
                Some(pace(&error).delay(self.failures))
            }
        }
    }

    async fn look_and_pass(&mut self) -> Result<Pass, RelayError> {
        let lanes = self.worker.shared.tuning.lanes_max;
        let lanes = if self.is_slow { lanes } else { self.demand.lanes(lanes) };
        if self.number > 0 || !self.demand.is_alone() {
            return self.worker.pass(lanes).await;
        }
        // To wait for the next message in a pass pays only where it comes soon.
        let trickles = self.came.is_some_and(|came| came.elapsed() < STILL);
        match self.state {
            State::Woken if !trickles => self.worker.pass(lanes).await,
            State::Woken | State::Busy => self.worker.pass_on(lanes).await,
            _ if trickles => self.worker.pass_if_due(lanes, true).await,
            State::StandsBy | State::Alert | State::Idle { .. } => {
                let store = Arc::clone(&self.worker.shared.store);
                let _permit = store.permit().await;
                self.worker.pass_if_due(lanes, false).await
            }
        }
    }

    /// Nothing was due: for how long to pause. After a while the last worker leaves, or the only
    /// one has the next enqueue wake it.
    async fn rest(&mut self) -> Duration {
        let (passes, mut mark) = self.state.found_nothing();
        // A producer that enqueued before the mark was set, and is still open, sends no NOTIFY: the
        // pauses begin anew, so that its message waits no longer than its transaction took.
        let was_new = mark.as_mut().is_some_and(|mark| std::mem::take(&mut mark.is_new));
        let passes = if was_new && self.worker.has_seen_open() { 0 } else { passes };
        self.state = State::Idle { passes, mark };
        let pause = self.poll.delay(passes.saturating_sub(ALERT));
        debug!(worker = self.number, ?pause, "nothing is due");
        if passes < CALM {
            return pause;
        }
        if self.number > 0 {
            self.demand.fewer(self.number);
            return pause;
        }
        self.worker.shared.store.close_idle();
        if matches!(*self.leader.borrow(), Leader::Another(_)) {
            // The mark is set by the relay that would be woken.
            return pause.min(NAP);
        }
        // The mark is set again now and then: the producer that cleared it may have woken no relay.
        if mark.is_some_and(|mark| mark.at.elapsed() < self.worker.asks_every()) {
            return self.worker.shared.store.rest(pause);
        }
        let Shared { tuning, store, .. } = &self.worker.shared;
        let marked = store.in_turn(tuning.poll_max, store.sleep()).await;
        let mark = |is_new| Some(SleepMark { at: Instant::now(), is_new });
        let (mark, pause) = match marked {
            Ok(Ok(Mark::Useless)) => (None, pause.min(NAP)),
            // A producer that enqueued in the meantime has sent no NOTIFY: the relay looks again
            // before the long pause.
            Ok(Ok(Mark::New(xact))) => {
                self.worker.note_own(xact);
                (mark(true), self.poll.delay(0))
            }
            Ok(Ok(Mark::Old)) => (mark(false), store.rest(pause)),
            failed => {
                debug!(?failed, "mark asleep");
                (None, pause)
            }
        };
        self.state = State::Idle { passes, mark };
        pause
    }
}

/// The pace of tries while PostgreSQL fails.
pub(super) fn pace(error: &RelayError) -> Backoff {
    if matches!(error, RelayError::Postgres(error) if error.is_away()) { AWAY } else { REFUSED }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_is_a_sign_of_more_only_while_messages_keep_coming() {
        let idle = |passes| State::Idle { passes, mark: None };
        for calm in [State::Woken, idle(1), idle(9)] {
            assert!(matches!(calm.settled(1), State::Alert), "{calm:?}");
            assert!(matches!(calm.settled(2), State::Busy), "{calm:?}");
        }
        for lively in [State::Alert, State::Busy, idle(0)] {
            assert!(matches!(lively.settled(1), State::Busy), "{lively:?}");
        }
        assert!(matches!(State::Busy.settled(0), State::Alert), "messages were only seen");
    }

    #[test]
    fn idle_passes_count_from_the_last_message_and_keep_the_mark_of_sleep() {
        let mark = Some(SleepMark { at: Instant::now(), is_new: true });
        assert!(matches!(State::Busy.found_nothing(), (1, None)));
        assert!(matches!(State::Idle { passes: 3, mark }.found_nothing(), (4, Some(_))));
        assert!(matches!(State::Woken.found_nothing(), (1, None)), "a wake-up clears it");
    }
}
