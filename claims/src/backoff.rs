//! How long to wait before the next attempt.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// The pause before the next attempt: doubled with each, with jitter, so that many failing messages
/// spread out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Backoff {
    /// The pause after the `attempt`-th failure, counted from 1: between half and all of `first *
    /// 2^(attempt
    /// - 1)`, at most `max`.
    #[must_use]
    pub fn after(self, attempt: u64) -> Duration {
        self.drawn().exactly(attempt)
    }

    /// The jitter is drawn: from here on [`Backoff::exactly`] tells each pause.
    #[must_use]
    pub fn drawn(self) -> Self {
        let factor = 0.5 + 0.5 * unit();
        Self { first: self.first.mul_f64(factor), max: self.max.mul_f64(factor) }
    }

    /// The pause after the `attempt`-th failure, without jitter.
    #[must_use]
    pub fn exactly(self, attempt: u64) -> Duration {
        let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX).min(30);
        self.first.saturating_mul(1 << doublings).min(self.max)
    }
}

/// A random number in 0..1, good enough for jitter: each `RandomState` has keys of its own.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit exactly")]
fn unit() -> f64 {
    (RandomState::new().hash_one(0) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_limit() {
        let backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };
        for (attempt, full) in [(1, 1), (2, 2), (5, 16), (7, 60), (u64::MAX, 60), (0, 1)] {
            for _ in 0..50 {
                let after = backoff.after(attempt);
                let full = Duration::from_secs(full);
                assert!(after >= full / 2 && after <= full, "{attempt}: {after:?}");
            }
        }
    }
}
