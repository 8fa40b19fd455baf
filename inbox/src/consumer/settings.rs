//! The settings of a consumer, and the limits that follow from them.

use std::time::Duration;

use super::{BehindDead, Order, filter::overlap};

/// How many messages a worker takes at most; a transaction has a limit of its own.
const BATCH_SIZE_MAX: usize = 1000;
/// Twice as many are held.
const HELD_MAX: usize = 20_000;
/// JetStream delivers the messages of a killed process again after this.
const ACK_WAIT: Duration = Duration::from_secs(6);
/// A process reports at most so often, by default, that it still holds its messages.
const HEARTBEATS_PER_SECOND: usize = 2000;
/// How many processes the default of `max_ack_pending` has room for.
const PROCESSES: usize = 16;
/// The largest weight of the held messages, by default.
const HELD_BYTES: usize = 64 << 20;
const HELD_BYTES_MIN: usize = 1 << 20;
/// The most messages that may wait for a dead letter.
const BEHIND_MAX: u32 = 100_000;
const ACK_PENDING_MIN: usize = 1000;
const ACK_PENDING_MAX: usize = 10_000_000;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) stream: String,
    pub(super) durable: String,
    /// Empty for all of the stream.
    pub(super) filter_subjects: Vec<String>,
    pub(super) concurrency: usize,
    pub(super) batch_size: usize,
    pub(super) ack_wait: Option<Duration>,
    pub(super) max_ack_pending: Option<usize>,
    pub(super) held_bytes: usize,
    pub(super) object_bytes_max: usize,
    pub(super) hold_max: Duration,
    pub(super) grace: Duration,
    pub(super) order: Order,
    pub(super) behind_dead: BehindDead,
    pub(super) dead_letter_subject: Option<String>,
}

/// The limits of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// Nothing is held: a message that is larger than the whole room must come all the same, alone.
    pub(super) is_empty: bool,
}

impl Settings {
    pub(super) fn new(stream: String, durable: String) -> Self {
        Self {
            stream,
            durable,
            filter_subjects: Vec::new(),
            concurrency: 16,
            batch_size: 1,
            ack_wait: None,
            max_ack_pending: None,
            held_bytes: HELD_BYTES,
            object_bytes_max: 64 << 20,
            hold_max: Duration::from_secs(3600),
            grace: Duration::from_secs(30),
            order: Order::default(),
            behind_dead: BehindDead::default(),
            dead_letter_subject: None,
        }
    }

    /// How many messages a process holds: those it works on and a few more per worker, so that no
    /// worker waits.
    pub(super) fn held_max(&self) -> usize {
        self.concurrency.saturating_mul(self.batch_size.max(2)).saturating_mul(2).max(16)
    }

    /// The room for a pull when `held` messages are held, of `weight` bytes. There is none before
    /// half of the bytes are free: otherwise there could be a pull for each message.
    pub(super) fn room(&self, held: usize, weight: usize) -> Room {
        let bytes = self.held_bytes.saturating_sub(weight);
        let is_full = bytes < self.held_bytes / 2;
        let messages = if is_full { 0 } else { self.held_max().saturating_sub(held) };
        Room { messages, bytes, is_empty: held == 0 }
    }

    /// Whether messages of a subject, or of one that matches this pattern, pass the filter.
    pub(super) fn may_take(&self, pattern: &str) -> bool {
        self.filter_subjects.is_empty() || self.filter_subjects.iter().any(|filter| overlap(filter, pattern))
    }

    /// The filter for requests that take one subject: `>` unless there is exactly one.
    pub(super) fn filter(&self) -> &str {
        if let [filter] = self.filter_subjects.as_slice() { filter } else { ">" }
    }

    /// Each held message is reported as in progress three times in this time.
    pub(super) fn ack_wait(&self) -> Duration {
        let least =
            Duration::from_secs(self.held_max().saturating_mul(3).div_ceil(HEARTBEATS_PER_SECOND) as u64);
        self.ack_wait.unwrap_or(ACK_WAIT.max(least))
    }

    /// For all processes together; also counts messages that wait for their NAK's delay.
    pub(super) fn max_ack_pending(&self) -> i64 {
        let derived = self.held_max().saturating_mul(PROCESSES).max(ACK_PENDING_MIN);
        i64::try_from(self.max_ack_pending.unwrap_or(derived)).unwrap_or(i64::MAX)
    }

    pub(super) fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        for (what, name) in [("stream", &self.stream), ("durable", &self.durable)] {
            let legal = |c: char| c.is_ascii_graphic() && !matches!(c, '.' | '*' | '>' | '/' | '\\');
            if name.is_empty() || name.len() > 255 || !name.chars().all(legal) {
                mistakes.push(format!(
                    "{what} name \"{}\" is not 1 to 255 visible characters without . * > / \\",
                    name.escape_debug()
                ));
            }
        }
        if self.filter_subjects.len() > 1 && self.filter_subjects.iter().any(String::is_empty) {
            mistakes.push("one of several filter_subjects is empty".to_owned());
        }
        if !(1..=1024).contains(&self.concurrency) {
            mistakes.push("concurrency is not 1 to 1024".to_owned());
        }
        if !(1..=BATCH_SIZE_MAX).contains(&self.batch_size) {
            mistakes.push(format!("batch is not 1 to {BATCH_SIZE_MAX} messages"));
        }
        if self.concurrency.saturating_mul(self.batch_size) > HELD_MAX {
            mistakes.push(format!("concurrency times batch is more than {HELD_MAX} messages"));
        }
        if self
            .ack_wait
            .is_some_and(|limit| !(Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&limit))
        {
            mistakes.push("ack_wait is not 500 milliseconds to 1 hour".to_owned());
        }
        if let BehindDead::Wait(most) = self.behind_dead
            && !(1..=BEHIND_MAX).contains(&most)
        {
            mistakes.push(format!("behind_dead is not 1 to {BEHIND_MAX} messages"));
        }
        if let Some(subject) = &self.dead_letter_subject
            && let Err(wrong) = subject.parse::<oncebox_schema::Subject>()
        {
            mistakes.push(format!("dead_letter_subject: {wrong}"));
        }
        if self.max_ack_pending.is_some_and(|count| !(1..=ACK_PENDING_MAX).contains(&count)) {
            mistakes.push(format!("max_ack_pending is not 1 to {ACK_PENDING_MAX}"));
        }
        if self.held_bytes < HELD_BYTES_MIN {
            mistakes.push(format!("held_bytes is less than {HELD_BYTES_MIN} (1 MiB)"));
        }
        if self.hold_max < self.ack_wait() {
            mistakes.push("hold_max is shorter than ack_wait".to_owned());
        }
        mistakes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(concurrency: usize, batch_size: usize) -> Settings {
        Settings { concurrency, batch_size, ..Settings::new("S".to_owned(), "d".to_owned()) }
    }

    #[test]
    fn ack_wait_and_max_ack_pending_follow_from_the_concurrency() {
        for (concurrency, batch_size, held, seconds, pending) in [
            (1, 1, 16, 6, 1000),
            (16, 1, 64, 6, 1024),
            (1024, 1, 4096, 7, 65_536),
            (16, 100, 3200, 6, 51_200),
            (100, 100, 20_000, 30, 320_000),
            (20, 1000, 40_000, 60, 640_000),
        ] {
            let settings = settings(concurrency, batch_size);
            let derived = (settings.held_max(), settings.ack_wait(), settings.max_ack_pending());
            assert_eq!(derived, (held, Duration::from_secs(seconds), pending), "{concurrency} {batch_size}");
            assert!(settings.mistakes().is_empty());
        }
    }

    #[test]
    fn what_is_held_is_weighed() {
        let settings = Settings { held_bytes: 100, ..settings(16, 1) };
        let room = |held, weight| settings.room(held, weight);
        assert_eq!(room(0, 0), Room { messages: 64, bytes: 100, is_empty: true });
        assert_eq!(room(60, 50), Room { messages: 4, bytes: 50, is_empty: false });
        assert_eq!((room(1, 51).messages, room(1, 1000).messages, room(70, 0).messages), (0, 0, 0));
    }

    #[test]
    fn what_is_set_is_taken_as_it_is() {
        let set = Settings {
            ack_wait: Some(Duration::from_secs(2)),
            max_ack_pending: Some(7),
            ..settings(20, 1000)
        };
        assert_eq!((set.ack_wait(), set.max_ack_pending()), (Duration::from_secs(2), 7));
        let wrong = Settings { max_ack_pending: Some(0), ..settings(1, 1) };
        assert_eq!(wrong.mistakes(), ["max_ack_pending is not 1 to 10000000"]);
        assert!(settings(usize::MAX, usize::MAX).mistakes().len() >= 3, "and no overflow");
    }
}
