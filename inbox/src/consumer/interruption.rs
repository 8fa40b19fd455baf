//! The log lines while the consumer is interrupted.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::Settings;

/// How often the consumer logs that consuming is still interrupted.
const REMIND: Duration = Duration::from_secs(60);

/// Sittings in a row that failed.
#[derive(Debug, Default)]
pub(super) struct Interruption {
    pub(super) failures: u64,
    /// Since when, and when that was said last.
    told: Option<(Instant, Instant)>,
}

impl Interruption {
    /// Says that nothing is consumed, at once and then each minute.
    pub(super) fn remind(&mut self, settings: &Settings, reason: &str) {
        let (stream, durable) = (&settings.stream, &settings.durable);
        match self.due(Instant::now()) {
            Some(Duration::ZERO) => {
                warn!(stream, durable, "consuming interrupted, will resume when possible: {reason}");
            }
            Some(lasts) => {
                let seconds = lasts.as_secs();
                warn!(stream, durable, seconds, "consuming is still interrupted: {reason}");
            }
            None => {}
        }
    }

    /// For how long it has lasted, when that is to be said now.
    fn due(&mut self, now: Instant) -> Option<Duration> {
        let (since, said) = self.told.unwrap_or((now, now));
        if self.told.is_some() && now - said < REMIND {
            return None;
        }
        self.told = Some((since, now));
        Some(now - since)
    }

    /// Says that it is over, if there was one.
    pub(super) fn end(&mut self, settings: &Settings) {
        if self.failures > 0 {
            info!(stream = settings.stream, durable = settings.durable, "consuming again");
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_is_told_at_once_and_then_each_minute() {
        let (mut interruption, begun) = (Interruption::default(), Instant::now());
        let told: Vec<u64> = (0..200)
            .filter(|second| interruption.due(begun + Duration::from_secs(*second)).is_some())
            .collect();
        assert_eq!(told, [0, 60, 120, 180]);
    }
}
