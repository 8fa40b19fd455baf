//! Two clocks: messages bear the database's time, acknowledgements come by this process's.

use std::time::SystemTime;

use tokio::time::Instant;

/// The same moment by two clocks: messages bear the database's time, acknowledgements this process's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) here: Instant,
    /// Read by a statement that was sent after `here`, so that an age is too high by its way there, never too low.
    pub(crate) database: Option<SystemTime>,
}

impl Clock {
    /// How old, in seconds, a message was then.
    pub(crate) fn age(self, created_at: SystemTime, then: Instant) -> f64 {
        let Some(database) = self.database else { return 0.0 };
        let since = match database.duration_since(created_at) {
            Ok(before) => before.as_secs_f64(),
            // Enqueued after the clock was read.
            Err(after) => -after.duration().as_secs_f64(),
        };
        (since + then.saturating_duration_since(self.here).as_secs_f64()).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn an_age_does_not_depend_on_this_machine_s_time_of_day() {
        let seconds = Duration::from_secs;
        let (here, database) = (Instant::now(), UNIX_EPOCH + seconds(1_000));
        let clock = Clock { here, database: Some(database) };
        let check = |created_at, then, expected: f64| {
            let age = clock.age(UNIX_EPOCH + created_at, here + then);
            assert!((age - expected).abs() < 1e-6, "{age} is not {expected}");
        };
        check(seconds(990), seconds(2), 12.0);
        check(seconds(1_001), seconds(2), 1.0);
        check(seconds(1_009), seconds(2), 0.0);
    }
}
