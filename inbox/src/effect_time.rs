//! How long messages took from their enqueue to their effect.

use std::time::SystemTime;

use oncebox_claims::metrics::{Histogram, Times};

use crate::Received;

/// The buckets reach from a busy consumer to one that was away for a day.
const EFFECT_BOUNDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
    3600.0, 21600.0, 86400.0,
];

/// How long messages took from their enqueue to their effect.
#[derive(Debug)]
pub(crate) struct EffectTime(Histogram);

impl Default for EffectTime {
    fn default() -> Self {
        Self(Histogram::new(EFFECT_BOUNDS))
    }
}

impl EffectTime {
    /// An effect was committed just now. A message that does not say when it was enqueued is left
    /// out.
    pub(crate) fn observe(&self, received: &Received) {
        let enqueued = received.time().and_then(|text| humantime::parse_rfc3339(text).ok());
        if let Some(enqueued) = enqueued {
            // With a clock that is slower than the producer's, the age would be negative.
            self.0.add(SystemTime::now().duration_since(enqueued).unwrap_or_default(), 1);
        }
    }

    pub(crate) fn times(&self) -> Times {
        self.0.times()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_missing_unreadable_or_ahead_does_no_harm() {
        let time = EffectTime::default();
        time.observe(&Received::new("s", ""));
        time.observe(&Received::new("s", "").header("Oncebox-Time", "yesterday"));
        time.observe(&Received::new("s", "").header("Oncebox-Time", "2999-01-01T00:00:00Z"));
        let times = time.times();
        assert_eq!((times.buckets[0], times.buckets.iter().sum::<u64>()), (1, 1));
    }
}
