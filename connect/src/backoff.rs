//! Jittered, capped, exponential waiting times: the one place that knows the `backoff` crate.

use std::time::Duration;

use backoff::{ExponentialBackoff, backoff::Backoff as _};

/// Doubles from `first` to `max`, each time jittered by up to a half either way.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first pause.
    pub first: Duration,
    /// The longest one.
    pub max: Duration,
}

/// From one attempt to reach a server that is away to the next: never as much as a second, so that
/// delivery resumes within a second of its return.
pub const AWAY: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_millis(600) };

impl Backoff {
    /// How long to wait after the given number of failures, counted from 0.
    pub fn delay(&self, failures: u32) -> Duration {
        let interval = self.first.saturating_mul(2_u32.saturating_pow(failures)).min(self.max);
        let mut policy = ExponentialBackoff {
            current_interval: interval,
            max_interval: self.max,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        policy.next_backoff().unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_back_is_noticed_within_a_second() {
        let longest = (0..1_000).map(|_| AWAY.delay(u32::MAX)).max().unwrap();
        assert!(longest < Duration::from_secs(1), "{longest:?}");
    }

    #[test]
    fn delays_double_up_to_the_maximum_within_their_jitter() {
        let backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(5) };
        for failures in 0..70 {
            let plain = (0.1 * 2_f64.powi(failures)).min(5.0);
            let delay = backoff.delay(failures.unsigned_abs()).as_secs_f64();
            assert!((plain * 0.5..=plain * 1.5).contains(&delay), "{failures}: {delay}");
        }
    }
}
