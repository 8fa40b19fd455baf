//! How often standbys look at the leader.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::backoff::Backoff;

/// Up to this number, relays look after each other as often as each of them would alone.
const WATCHFUL: usize = 4;
/// A relay of a large fleet looks so much less often than one of two. This bounds the delay when
/// all others die at once.
const RARER_MAX: usize = 4;

/// The relays of an outbox, counted about once a minute by the rows that relays write about
/// themselves.
#[derive(Debug, Default)]
pub(crate) struct Fleet(AtomicUsize);

impl Fleet {
    pub(super) fn note_relays(&self, count: usize) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// The pause, jittered by half, between two looks at the leader. One of a few relays
    /// looks so often; of many each looks more rarely, and all together more often than that.
    pub(crate) fn pause(&self, alone: Duration) -> Duration {
        let rarer = (self.0.load(Ordering::Relaxed) / WATCHFUL).clamp(1, RARER_MAX);
        let pause = alone.saturating_mul(u32::try_from(rarer).unwrap_or(1));
        Backoff { first: pause, max: pause }.delay(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_many_relays_looks_more_rarely_and_all_together_more_often() {
        let alone = Duration::from_millis(800);
        for relays in [0, 1, 2, 3, 4, 7, 8, 15, 16, 50, 1_000] {
            let fleet = Fleet::default();
            fleet.note_relays(relays);
            let pauses: Vec<f64> = (0..1_000).map(|_| fleet.pause(alone).as_secs_f64()).collect();
            let longest = pauses.iter().copied().fold(0.0, f64::max);
            assert!(longest <= if relays < 8 { 1.2 } else { 4.8 }, "{relays}: {longest}");
            let mean = pauses.iter().sum::<f64>() / 1_000.0;
            if relays >= 16 {
                assert!(mean > 2.5, "{relays}: {mean}");
            }
            #[expect(clippy::cast_precision_loss, reason = "a few")]
            let others = relays.max(2) as f64 - 1.0;
            assert!(mean / others <= 0.9, "{relays}: {mean}");
        }
    }
}
