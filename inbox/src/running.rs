//! The runs of handlers under way in this process, for the age of the oldest.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The runs under way. No more than there are connections, or messages held.
#[derive(Debug, Default)]
pub(crate) struct Running(Mutex<Started>);

/// When each run began, by a number that rises with it.
#[derive(Debug, Default)]
struct Started {
    runs: BTreeMap<u64, Instant>,
    next: u64,
}

/// A run, until it is dropped.
#[derive(Debug)]
pub(crate) struct Begun<'a> {
    running: &'a Running,
    number: u64,
}

impl Running {
    /// A run begins.
    pub(crate) fn begin(&self) -> Begun<'_> {
        let mut started = self.started();
        let number = started.next;
        started.next += 1;
        started.runs.insert(number, Instant::now());
        Begun { running: self, number }
    }

    /// For how long the oldest has been under way; zero when there is none.
    pub(crate) fn oldest(&self) -> Duration {
        self.started().runs.first_key_value().map(|(_, began)| began.elapsed()).unwrap_or_default()
    }

    /// Whether there is one.
    pub(crate) fn is_any(&self) -> bool {
        !self.started().runs.is_empty()
    }

    fn started(&self) -> MutexGuard<'_, Started> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.running.started().runs.remove(&self.number);
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
