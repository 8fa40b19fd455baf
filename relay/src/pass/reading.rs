//! How much of each lane a pass reads.
//!
//! A pass over many lanes reads little of each, so that it holds no more than one over a few. Where
//! few lanes are cut short by that, as by a burst of one ordering key, and the pass is over soon
//! all the same, the next passes read twice as much of each lane, until one takes longer: everybody
//! else's messages wait for the end of a pass.

use std::time::Duration;

/// A pass that takes no longer may take twice as long.
const QUICK: Duration = Duration::from_millis(15);
/// After a pass that takes longer the next one reads little again.
const LONG: Duration = Duration::from_millis(50);
/// As many lanes as there can be.
const GROWTH_MAX: i64 = 256;

/// What the passes of a worker say about the next one.
#[derive(Debug)]
pub(super) struct Reading {
    growth: i64,
}

impl Reading {
    pub(super) fn new() -> Self {
        Self { growth: 1 }
    }

    /// By how much the limits of a lane are divided for a pass over so many `times` the usual
    /// lanes.
    pub(super) fn share(&self, times: i64) -> i64 {
        (times / self.growth).max(1)
    }

    /// A pass has ended; it had to leave something in `cut` lanes, of which a pass usually reads
    /// `lanes_max`.
    pub(super) fn note(&mut self, cut: usize, lanes_max: i64, took: Duration) {
        if cut == 0 || cut as i64 > lanes_max || took > LONG {
            self.growth = 1;
        } else if took <= QUICK {
            self.growth = (self.growth * 2).min(GROWTH_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_passes_that_few_lanes_cut_short_read_more_of_each() {
        let mut reading = Reading::new();
        let shares = |reading: &Reading| [1, 4, 64].map(|times| reading.share(times));
        assert_eq!(shares(&reading), [1, 4, 64]);
        reading.note(1, 4, QUICK);
        assert_eq!(shares(&reading), [1, 2, 32]);
        reading.note(4, 4, QUICK);
        reading.note(4, 4, LONG);
        assert_eq!(shares(&reading), [1, 1, 16], "between the two limits it stays");
        reading.note(1, 4, LONG + QUICK);
        assert_eq!(shares(&reading), [1, 4, 64], "others have waited for long");
        for other in [0, 5] {
            reading.note(1, 4, QUICK);
            reading.note(other, 4, QUICK);
            assert_eq!(shares(&reading), [1, 4, 64], "{other} lanes");
        }
        for _ in 0..100 {
            reading.note(1, 4, QUICK);
        }
        assert_eq!(shares(&reading), [1, 1, 1]);
    }
}
