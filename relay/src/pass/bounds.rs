//! The bounds of a worker's passes: set before a claim, and learned from the pass.
//!
//! A pass over many lanes reads little of each, so that it holds no more than one over a few. If
//! that cuts few lanes short, as in a burst of one ordering key, and the pass is over soon all the
//! same, the next passes read twice as much of each lane, until one takes longer: all other
//! messages wait for the end of a pass.

use std::time::Duration;

use tokio::time::Instant;

use super::{budget::Budget, hot_key::HotKeys};
use crate::{
    config::{ReadLimits, Tuning},
    delivery::{Breaker, breaker::LANE_PROBES},
};

/// While the log alone fills the passes of a worker, it looks for parked messages only this often,
/// and they get this share of the places of a pass: each pass with parked messages costs some
/// statements and, often, a question to NATS.
const PARKED_EVERY: Duration = Duration::from_millis(250);
const PARKED_SHARE: i64 = 16;
/// A pass that takes no longer may take twice as long.
const QUICK: Duration = Duration::from_millis(15);
/// After a pass that takes longer the next one reads little again.
const LONG: Duration = Duration::from_millis(50);
/// As many lanes as there can be.
const GROWTH_MAX: i64 = 256;

/// The memory of a worker, and its part in the relay's.
#[derive(Debug)]
pub(super) struct Bounds {
    pub(super) breaker: Breaker,
    pub(super) budget: Budget,
    /// The server takes no larger payload.
    pub(super) payload_max: usize,
    read: ReadLimits,
    /// The lanes of a pass while all workers are at work.
    lanes_usual: i64,
    /// How many times the usual share of each lane a pass over many lanes reads.
    growth: i64,
    pub(super) hot_keys: HotKeys,
    /// When parked messages were last looked for.
    looked: Option<Instant>,
}

impl Bounds {
    pub(super) fn new(tuning: &Tuning, breaker: Breaker, budget: Budget) -> Self {
        Self {
            breaker,
            budget,
            payload_max: usize::MAX,
            read: tuning.read,
            lanes_usual: tuning.lanes_max,
            growth: 1,
            hot_keys: HotKeys::default(),
            looked: None,
        }
    }

    /// For a claim of `lanes_max` lanes: those that are held, and how much to read of each other
    /// one.
    pub(super) fn lanes(&self, lanes_max: i64) -> (Vec<i16>, ReadLimits) {
        let (held, is_half_open) = self.breaker.held_lanes();
        let mut limits = self.read.shared_by(lanes_max / self.lanes_usual / self.growth);
        if is_half_open {
            limits.messages_max = limits.messages_max.min(LANE_PROBES);
        }
        (held, limits)
    }

    /// How many parked messages a pass may take beside those of the log, if it is their turn.
    pub(super) fn parked(&mut self, is_full: bool) -> Option<ReadLimits> {
        if is_full && self.looked.is_some_and(|looked| looked.elapsed() < PARKED_EVERY) {
            return None;
        }
        self.looked = Some(Instant::now());
        Some(self.read.shared_by(if is_full { PARKED_SHARE } else { 1 }))
    }

    /// A pass has ended: limits have cut `cut_lanes` lanes, and publishing took `took`.
    pub(super) fn learn(&mut self, cut_lanes: usize, took: Duration) {
        if cut_lanes == 0 || cut_lanes as i64 > self.lanes_usual || took > LONG {
            self.growth = 1;
        } else if took <= QUICK {
            self.growth = (self.growth * 2).min(GROWTH_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::breaker::Front;

    fn bounds(lanes_max: i64, messages_max: i64) -> Bounds {
        let values = [("database-url", "postgres://localhost/x"), ("nats-url", "nats://localhost")];
        let values = values.map(|(name, value)| (name, value.to_owned())).into();
        let mut tuning = crate::Config::from_values(&values).unwrap().tuning;
        (tuning.lanes_max, tuning.read.messages_max) = (lanes_max, messages_max);
        Bounds::new(&tuning, Breaker::default(), Budget::new(&tuning))
    }

    #[tokio::test(start_paused = true)]
    async fn little_is_read_while_a_lane_that_was_held_is_tried_again() {
        let bounds = bounds(4, 64);
        bounds.breaker.hold(3, &Front::default());
        let (held, limits) = bounds.lanes(4);
        assert_eq!((held, limits.messages_max), (vec![3], 64), "others are read as ever");
        tokio::time::advance(Duration::from_secs(1)).await;
        let (held, limits) = bounds.lanes(4);
        assert_eq!((held, limits.messages_max), (vec![], LANE_PROBES));
        bounds.breaker.close_lane(3);
        assert_eq!(bounds.lanes(4).1.messages_max, 64);
    }

    #[test]
    fn quick_passes_that_few_lanes_cut_short_read_more_of_each() {
        let mut bounds = bounds(4, 64);
        let shares = |bounds: &Bounds| [1, 4, 64].map(|times| 64 / bounds.lanes(4 * times).1.messages_max);
        assert_eq!(shares(&bounds), [1, 4, 64]);
        bounds.learn(1, QUICK);
        assert_eq!(shares(&bounds), [1, 2, 32]);
        bounds.learn(4, QUICK);
        bounds.learn(4, LONG);
        assert_eq!(shares(&bounds), [1, 1, 16], "between the two limits it stays");
        bounds.learn(1, LONG + QUICK);
        assert_eq!(shares(&bounds), [1, 4, 64], "others have waited for long");
        for other in [0, 5] {
            bounds.learn(1, QUICK);
            bounds.learn(other, QUICK);
            assert_eq!(shares(&bounds), [1, 4, 64], "{other} lanes");
        }
        for _ in 0..100 {
            bounds.learn(1, QUICK);
        }
        assert_eq!(shares(&bounds), [1, 1, 1]);
    }
}
