//! The handlers that are running in this process, for the metric with the age of the oldest run.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The runs under way. Their number is limited by the connections, or by the messages that are
/// held.
#[derive(Debug, Default)]
pub struct Running(Mutex<Runs>);

/// When each run began. Runs are numbered in the order in which they begin.
#[derive(Debug, Default)]
struct Runs {
    runs: BTreeMap<u64, Instant>,
    next: u64,
}

/// A run that is under way until this value is dropped.
#[derive(Debug)]
pub struct Started<'a> {
    running: &'a Running,
    number: u64,
}

impl Running {
    /// Notes that a run begins.
    pub fn begin(&self) -> Started<'_> {
        let mut started = self.runs();
        let number = started.next;
        started.next += 1;
        started.runs.insert(number, Instant::now());
        Started { running: self, number }
    }

    /// How long the oldest run has been going on; zero when nothing runs.
    pub fn oldest(&self) -> Duration {
        self.runs().runs.first_key_value().map(|(_, began)| began.elapsed()).unwrap_or_default()
    }

    /// Whether a handler is running.
    pub fn is_any(&self) -> bool {
        !self.runs().runs.is_empty()
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        self.running.runs().runs.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_is_the_one_that_began_first_of_those_under_way() {
        let running = Running::default();
        assert_eq!(running.oldest(), Duration::ZERO);
        let first = running.begin();
        tokio::time::advance(Duration::from_secs(3)).await;
        let second = running.begin();
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(running.oldest(), Duration::from_secs(7));
        drop(first);
        assert_eq!(running.oldest(), Duration::from_secs(4));
        drop(second);
        assert_eq!(running.oldest(), Duration::ZERO);
    }
}
