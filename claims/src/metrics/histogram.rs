//! A histogram of times. Counting takes no lock; the buckets are added up when they are read.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// The buckets reach from one round trip to a long wait for a connection of the pool.
const CLAIM: &[f64] =
    &[0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A histogram of durations; its bounds are in seconds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One bucket for each bound, and a last one for times above all bounds.
    buckets: Box<[AtomicU64]>,
    sum_microseconds: AtomicU64,
}

/// The values of a histogram at one moment.
#[derive(Clone, Debug)]
pub struct Times {
    /// The upper bounds, in seconds.
    pub bounds: &'static [f64],
    /// How many times were at most each bound and above the one before; the last bucket is for
    /// times above all bounds.
    pub buckets: Vec<u64>,
    /// All times together.
    pub sum_microseconds: u64,
}

impl Histogram {
    /// An empty histogram with these bounds, in seconds.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum_microseconds: AtomicU64::new(0) }
    }

    /// Counts `count` operations, each of which took `time`.
    pub fn add(&self, time: Duration, count: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < time.as_secs_f64());
        self.buckets[bucket].fetch_add(count, Ordering::Relaxed);
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).saturating_mul(count);
        self.sum_microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    /// The current values.
    #[must_use]
    pub fn times(&self) -> Times {
        Times {
            bounds: self.bounds,
            buckets: self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            sum_microseconds: self.sum_microseconds.load(Ordering::Relaxed),
        }
    }
}

impl Times {
    /// Adds the values of another histogram with the same bounds.
    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.sum_microseconds = self.sum_microseconds.wrapping_add(other.sum_microseconds);
    }
}

/// How long claims took to be answered.
#[derive(Debug)]
pub struct ClaimTime(Histogram);

impl Default for ClaimTime {
    fn default() -> Self {
        Self(Histogram::new(CLAIM))
    }
}

impl ClaimTime {
    /// `claims` claims that were sent at `asked` are answered now.
    pub fn observe(&self, asked: Instant, claims: usize) {
        self.0.add(asked.elapsed(), claims as u64);
    }

    /// The current values.
    #[must_use]
    pub fn times(&self) -> Times {
        self.0.times()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[f64] = &[
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
        900.0, 3600.0, 21600.0, 86400.0,
    ];

    #[test]
    fn a_time_falls_below_its_bound() {
        let histogram = Histogram::new(BOUNDS);
        for milliseconds in [0, 1, 2, 1_000, 100_000_000] {
            histogram.add(Duration::from_millis(milliseconds), 1);
        }
        histogram.add(Duration::from_millis(2), 2);
        let mut times = histogram.times();
        times.add(&histogram.times());
        assert_eq!(times.buckets[..3], [4, 6, 0]);
        assert_eq!((times.buckets[9], times.buckets[19], times.buckets[20]), (2, 0, 2));
        assert_eq!((times.buckets.iter().sum::<u64>(), times.sum_microseconds), (14, 200_002_014_000));
    }

    #[test]
    fn bounds_rise() {
        for bounds in [BOUNDS, CLAIM] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }
}
