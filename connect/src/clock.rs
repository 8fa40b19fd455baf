//! Clocks of several machines: messages bear the database's time, acknowledgements this process's,
//! and either may be wrong.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

/// The last moment of the year 9999, to the microsecond.
const LAST_WITH_TEXT: Duration = Duration::from_micros(253_402_300_799_999_999);

/// The nearest time that RFC 3339 has a text for, from 1970 on. PostgreSQL's times begin in 4714
/// BC, end in 294276, and may be infinite.
#[must_use]
pub fn with_text(time: SystemTime) -> SystemTime {
    time.clamp(UNIX_EPOCH, UNIX_EPOCH + LAST_WITH_TEXT)
}

/// The same moment by two clocks: messages bear the database's time, acknowledgements this
/// process's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// This process's clock.
    pub here: Instant,
    /// Read by a statement that was sent after `here`, so that an age is too high by its way there,
    /// never too low.
    pub database: Option<SystemTime>,
}

impl Clock {
    /// How old, in seconds, a message was then.
    pub fn age(self, created_at: SystemTime, then: Instant) -> f64 {
        let Some(database) = self.database else { return 0.0 };
        let since = match database.duration_since(created_at) {
            Ok(before) => before.as_secs_f64(),
            // Enqueued after the clock was read.
            Err(after) => -after.duration().as_secs_f64(),
        };
        (since + then.saturating_duration_since(self.here).as_secs_f64()).max(0.0)
    }
}

/// Another clock against this host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Skew {
    /// How far the other clock is ahead; negative when it is slow.
    pub seconds: f64,
    /// How far off this may be: half of the time that the answer took.
    pub error_seconds: f64,
}

impl Skew {
    /// How far apart the clocks are at least.
    pub fn at_least(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds.abs() - self.error_seconds).unwrap_or_default()
    }
}

/// Both of this host's clocks before a question.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    wall: SystemTime,
    started: Instant,
}

impl Reading {
    /// Reads both clocks.
    pub fn now() -> Self {
        Self { wall: SystemTime::now(), started: Instant::now() }
    }

    /// The other clock was read somewhen between this reading and now.
    pub fn skew(self, other: SystemTime) -> Skew {
        skew(self.wall, self.started.elapsed(), other)
    }
}

fn skew(before: SystemTime, took: Duration, other: SystemTime) -> Skew {
    let middle = before + took / 2;
    let seconds = match other.duration_since(middle) {
        Ok(ahead) => ahead.as_secs_f64(),
        Err(behind) => -behind.duration().as_secs_f64(),
    };
    Skew { seconds, error_seconds: took.as_secs_f64() / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_text() {
        let days = |days: u64| Duration::from_secs(days * 86_400);
        for (time, text) in [
            (UNIX_EPOCH - days(2_440_588), "1970-01-01T00:00:00.000000Z"),
            (UNIX_EPOCH + days(1), "1970-01-02T00:00:00.000000Z"),
            (UNIX_EPOCH + days(106_751_991), "9999-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(humantime::format_rfc3339_micros(with_text(time)).to_string(), text);
        }
    }

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

    fn check(took_milliseconds: u64, other_milliseconds: u64, seconds: f64, at_least: f64) {
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let other = SystemTime::UNIX_EPOCH + Duration::from_millis(other_milliseconds);
        let found = skew(before, Duration::from_millis(took_milliseconds), other);
        assert!((found.seconds - seconds).abs() < 1e-6, "{found:?}");
        assert!((found.at_least().as_secs_f64() - at_least).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn the_way_there_and_back_is_taken_into_account() {
        check(0, 1_003_000, 3.0, 3.0);
        check(2_000, 1_003_000, 2.0, 1.0);
        check(2_000, 997_000, -4.0, 3.0);
        check(8_000, 1_003_000, -1.0, 0.0);
    }
}
