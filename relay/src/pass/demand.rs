//! How many workers a relay needs now: one for a trickle, more while they do not keep up.
//!
//! Each worker has a number. The first always works; worker `n` works while more than `n` are
//! wanted, and stands by otherwise, without a connection to PostgreSQL. The last worker that works
//! asks for one more when its passes are large, and leaves when it finds nothing or little: several
//! workers would each find something of a trickle, and cost PostgreSQL more than one. A slow
//! lane or a slow broker must not stop the rest: a worker that stands by also joins when all those
//! that work have been in one pass for a second, and stays until one of them is through.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

/// A pass that takes longer is not waited for.
pub(super) const LONG_PASS: Duration = Duration::from_secs(1);
/// A pass that settles more is work for two workers; as many may come from a single lane.
const MANY: usize = 1_000;
/// After this number of passes in a row that settle fewer than `FEW`, one worker less is enough.
const LIGHT_PASSES: u32 = 50;
const FEW: usize = 100;
/// Stands for a worker that is in no pass.
const NONE: u64 = u64::MAX;

/// Shared by the workers of one relay.
#[derive(Debug)]
pub(crate) struct Demand {
    /// From 1 to the number of workers.
    wanted: watch::Sender<usize>,
    started: Instant,
    /// When the pass of each worker began, in milliseconds after `started`.
    passes: Vec<AtomicU64>,
    /// How many passes of the last worker in a row settled few messages.
    light_passes: AtomicU32,
}

/// A pass under way; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct InPass<'a>(&'a AtomicU64);

impl Demand {
    pub(crate) fn new(workers: usize) -> Self {
        let passes = (0..workers.max(1)).map(|_| AtomicU64::new(NONE)).collect();
        let (wanted, light_passes) = (watch::Sender::new(1), AtomicU32::new(0));
        Self { wanted, started: Instant::now(), passes, light_passes }
    }

    pub(super) fn is_wanted(&self, number: usize) -> bool {
        number < *self.wanted.borrow()
    }

    /// Whether one worker is enough.
    pub(super) fn is_alone(&self) -> bool {
        *self.wanted.borrow() == 1
    }

    /// Waits until this worker is wanted, for [`LONG_PASS`] at most.
    pub(super) async fn stand_by(&self, number: usize) {
        let mut wanted = self.wanted.subscribe();
        let joined = timeout(LONG_PASS, wanted.wait_for(|wanted| number < *wanted)).await;
        if joined.is_err() && self.all_are_slow(number) {
            self.more(number.saturating_sub(1));
        }
    }

    /// A pass has settled `messages` messages; a limit may have cut its read.
    pub(super) fn settled(&self, number: usize, messages: usize, full: bool) {
        if messages > MANY {
            self.more(number);
        }
        if number + 1 != *self.wanted.borrow() {
            return;
        }
        if full || messages >= FEW {
            self.light_passes.store(0, Ordering::Relaxed);
        } else if self.light_passes.fetch_add(1, Ordering::Relaxed) + 1 >= LIGHT_PASSES {
            self.light_passes.store(0, Ordering::Relaxed);
            self.fewer(number);
        }
    }

    /// Wants one more worker, when this one is the last that works.
    pub(super) fn more(&self, number: usize) {
        let max = self.passes.len();
        self.wanted.send_if_modified(|wanted| {
            let grows = *wanted == number + 1 && *wanted < max;
            *wanted += usize::from(grows);
            grows
        });
    }

    /// This worker is not wanted any longer, when it is the last that works, not the first, and
    /// another gets on.
    pub(super) fn fewer(&self, number: usize) {
        if number == 0 || self.all_are_slow(number) {
            return;
        }
        self.wanted.send_if_modified(|wanted| {
            let shrinks = *wanted == number + 1;
            *wanted -= usize::from(shrinks);
            shrinks
        });
    }

    /// How many lanes a pass may claim: the workers at work share the lanes that all workers would
    /// claim together. A pass over more lanes reads less of each, see [`ReadLimits::shared_by`].
    ///
    /// [`ReadLimits::shared_by`]: crate::config::ReadLimits::shared_by
    pub(super) fn lanes(&self, lanes_max: i64) -> i64 {
        let share = self.passes.len().div_ceil((*self.wanted.borrow()).max(1));
        lanes_max.saturating_mul(i64::try_from(share).unwrap_or(1))
    }

    /// A pass begins.
    pub(super) fn begin_pass(&self, number: usize) -> InPass<'_> {
        let field = &self.passes[number];
        field.store(self.milliseconds(), Ordering::Relaxed);
        InPass(field)
    }

    /// Whether each of the workers before this one has been in one pass for long.
    fn all_are_slow(&self, number: usize) -> bool {
        let now = self.milliseconds();
        let limit = u64::try_from(LONG_PASS.as_millis()).unwrap_or(u64::MAX);
        self.passes.iter().take(number).all(|field| {
            let began = field.load(Ordering::Relaxed);
            began != NONE && now.saturating_sub(began) >= limit
        })
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(NONE - 1)
    }
}

impl Drop for InPass<'_> {
    fn drop(&mut self) {
        self.0.store(NONE, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_leaves_one_worker() {
        let demand = Demand::new(4);
        demand.settled(0, MANY + 1, true);
        demand.settled(1, MANY + 1, false);
        assert!(demand.is_wanted(2) && !demand.is_wanted(3));
        let light = |number, passes| {
            for _ in 0..passes {
                demand.settled(number, FEW - 1, false);
            }
        };
        light(2, LIGHT_PASSES - 1);
        demand.settled(2, FEW, false);
        light(2, LIGHT_PASSES - 1);
        demand.settled(2, 1, true);
        light(2, LIGHT_PASSES - 1);
        light(1, LIGHT_PASSES);
        assert!(demand.is_wanted(2), "not in a row, and only the last one leaves");
        light(2, 1);
        assert!(!demand.is_wanted(2) && demand.is_wanted(1));
        light(1, LIGHT_PASSES);
        light(0, LIGHT_PASSES);
        assert!(demand.is_alone() && demand.is_wanted(0), "the first always works");
    }

    #[test]
    fn only_the_last_worker_asks_for_more_or_leaves() {
        let demand = Demand::new(3);
        assert!(demand.is_wanted(0) && !demand.is_wanted(1));
        demand.fewer(0);
        assert!(demand.is_wanted(0), "the first always works");
        demand.more(0);
        demand.more(0);
        assert!(demand.is_wanted(1) && !demand.is_wanted(2), "one at a time");
        demand.more(1);
        demand.more(2);
        assert!(demand.is_wanted(2), "three at most");
        demand.fewer(1);
        assert!(demand.is_wanted(2), "the last leaves first");
        demand.fewer(2);
        assert!(demand.is_wanted(1) && !demand.is_wanted(2));
    }

    #[test]
    fn those_that_work_share_the_lanes() {
        let demand = Demand::new(4);
        let mut shares = vec![demand.lanes(4)];
        for number in 0..3 {
            demand.more(number);
            shares.push(demand.lanes(4));
        }
        assert_eq!(shares, [16, 8, 8, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_is_slow_is_joined_until_it_is_through() {
        let demand = Demand::new(3);
        demand.stand_by(1).await;
        assert!(!demand.is_wanted(1), "nobody is in a pass");
        let slow = demand.begin_pass(0);
        demand.stand_by(1).await;
        assert!(demand.is_wanted(1));
        demand.stand_by(2).await;
        assert!(!demand.is_wanted(2), "the second gets on");
        demand.fewer(1);
        assert!(demand.is_wanted(1), "nobody else gets on");
        drop(slow);
        demand.fewer(1);
        assert!(!demand.is_wanted(1));
    }
}
