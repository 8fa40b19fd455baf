//! How often relays try to end a turn of the log, and for how long producers wait then: pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// The time that producers wait, at most, for a turn to end; it is tried again with a longer wait.
/// Where transactions overlap all the time, they wait once for as long as one of them takes.
const WAIT: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(3) };
/// Of all relays one tries so often to end a turn, at most. After many tries producers are left in
/// peace for longer.
const TRY_EVERY: Duration = Duration::from_secs(30);
const TRY_SELDOM: Duration = Duration::from_secs(10 * 60);
const TRIES: u32 = 10;
/// The tries to end a turn that have failed. Between two of them PostgreSQL is asked in each round,
/// and answers that producers still hold the segment: that is no further try.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tries {
    failed: u32,
    last: Option<Instant>,
}

impl Tries {
    pub(super) fn failed(&self) -> u32 {
        self.failed
    }

    /// The time that producers wait at the next one, at most.
    pub(super) fn wait(&self) -> Duration {
        WAIT.delay(self.failed)
    }

    pub(super) fn note(&mut self, now: Instant) {
        if self.last.is_none_or(|last| now.duration_since(last) >= TRY_EVERY) {
            (self.failed, self.last) = (self.failed.saturating_add(1), Some(now));
        }
    }

    /// The pause before the next try: after many, that of a turn, where this is longer.
    pub(super) fn pause(&self, span: Duration) -> Duration {
        if self.failed < TRIES { TRY_EVERY } else { span.clamp(TRY_EVERY, TRY_SELDOM) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_between_two_tries_of_a_turn_are_none() {
        let (mut tries, begun) = (Tries::default(), Instant::now());
        (0..30).for_each(|second| tries.note(begun + Duration::from_secs(second)));
        assert_eq!(tries.failed, 1);
        (30..300).for_each(|second| tries.note(begun + Duration::from_secs(second)));
        assert_eq!(
            (tries.failed, tries.pause(Duration::from_secs(10))),
            (10, TRY_EVERY),
            "a short turn is tried as often"
        );
        assert_eq!(tries.pause(Duration::from_secs(24 * 3_600)), TRY_SELDOM);
    }
}
