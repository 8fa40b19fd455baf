//! When a message must not be sent before: a time, or a delay.

use std::{
    ops::RangeInclusive,
    time::{Duration, SystemTime},
};

/// A time that PostgreSQL refuses; checked here as well, where it costs no transaction.
const DELAY_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// The times that PostgreSQL can be sent, as seconds since 1970: from its own beginning, before
/// which all is past, to the year 9999, which it refuses.
const TIMES: RangeInclusive<u64> = 946_684_800..=253_370_764_800;

/// When a message is due, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    At(SystemTime),
    After(Duration),
}

impl Due {
    /// Which time is too far ahead, the database's clock knows.
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            Self::After(delay) if delay > DELAY_MAX => {
                Err("is delayed by more than ten years, which is the limit".to_owned())
            }
            Self::After(_) | Self::At(_) => Ok(()),
        }
    }

    pub(crate) fn time(self) -> Option<SystemTime> {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        match self {
            Self::At(time) => Some(time.clamp(at(*TIMES.start()), at(*TIMES.end()))),
            Self::After(_) => None,
        }
    }

    /// When it is due, in seconds since 1970, or its delay in seconds: one of the two.
    pub(crate) fn in_seconds(self) -> (Option<f64>, Option<f64>) {
        let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        (self.time().map(|time| since(time).as_secs_f64()), self.seconds())
    }

    pub(crate) fn seconds(self) -> Option<f64> {
        match self {
            Self::At(_) => None,
            Self::After(delay) => Some(delay.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_have_a_limit() {
        for due in [Due::At(SystemTime::UNIX_EPOCH), Due::After(Duration::ZERO), Due::After(DELAY_MAX)] {
            assert_eq!(due.check(), Ok(()), "{due:?}");
        }
        for delay in [DELAY_MAX + Duration::from_nanos(1), Duration::MAX] {
            assert!(Due::After(delay).check().is_err(), "{delay:?}");
        }
    }
}
