//! Waiting for work to be done, however slow the machine is.

use std::time::Duration;

use tokio::time::Instant;

/// After this multiple of the limit the wait ends, even if there was progress.
const LIMITS_MAX: u32 = 5;

/// Bounds a wait by progress: it is over when there is none for as long as the limit, or after five
/// times that. A fixed bound that is right on a quick disk counts messages as lost that a slow one
/// has not reached yet.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    done: u64,
    changed: Instant,
    end: Instant,
}

impl Patience {
    /// Begins to wait.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        let now = Instant::now();
        Self { limit, done: 0, changed: now, end: now + LIMITS_MAX * limit }
    }

    /// Whether to give up, when so much is done.
    pub fn is_over(&mut self, done: u64) -> bool {
        self.is_over_at(Instant::now(), done)
    }

    fn is_over_at(&mut self, now: Instant, done: u64) -> bool {
        if done != self.done {
            (self.done, self.changed) = (done, now);
        }
        now >= self.end || now.duration_since(self.changed) >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_without_progress_and_not_long_after_with_it() {
        let mut patience = Patience::new(Duration::from_secs(3));
        let begun = patience.changed;
        let mut is_over = |second, done| patience.is_over_at(begun + Duration::from_secs(second), done);
        assert!(!is_over(2, 1) && !is_over(4, 2) && !is_over(6, 2));
        assert!(is_over(7, 2), "nothing was done for three seconds");
        assert!(!is_over(7, 3) && !is_over(9, 4) && !is_over(11, 5) && !is_over(13, 6));
        assert!(is_over(15, 7), "five times the limit");
    }
}
