//! What is said while nothing is consumed.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::Settings;

/// How often it is said that consuming is still interrupted.
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
        let now = Instant::now();
        let (stream, durable) = (&settings.stream, &settings.durable);
        match self.told {
            None => {
                warn!(stream, durable, "consuming interrupted, goes on when possible: {reason}");
                self.told = Some((now, now));
            }
            Some((since, said)) if now - said >= REMIND => {
                let seconds = (now - since).as_secs();
                warn!(stream, durable, seconds, "consuming is still interrupted: {reason}");
                self.told = Some((since, now));
            }
            Some(_) => {}
        }
    }

    /// Says that it is over, if there was one.
    pub(super) fn end(&mut self, settings: &Settings) {
        if self.failures > 0 {
            info!(stream = settings.stream, durable = settings.durable, "consuming again");
            *self = Self::default();
        }
    }
}
