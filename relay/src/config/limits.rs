//! Bounds of a pass: how much it reads, and how it publishes.

use std::time::Duration;

/// How much a pass reads from one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLimits {
    pub(crate) messages_max: i64,
    pub(crate) bytes_max: i64,
    pub(crate) dead_blocks: bool,
}

impl ReadLimits {
    /// For a pass over so many times the usual lanes: it holds no more in all.
    pub(crate) fn shared_by(self, times: i64) -> Self {
        let share = |limit: i64| (limit / times.max(1)).max(1);
        Self { messages_max: share(self.messages_max), bytes_max: share(self.bytes_max), ..self }
    }
}

/// Bounds of publishing.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// How many messages may be unacknowledged. The broker's answers decide how many there are.
    pub(crate) window: usize,
    /// Without any acknowledgement for this long, JetStream is asked: it is away, or only these
    /// messages are silent.
    pub(crate) ack_timeout: Duration,
    /// After this time nothing more of a batch is sent; the rest goes with the next one.
    pub(crate) batch_timeout: Duration,
    pub(crate) expected_stream: Option<String>,
    /// Streams that messages go to in atomic batches, as far as they allow it.
    pub(crate) atomic_streams: Vec<String>,
    /// Messages are published as `CloudEvents` of this source.
    pub(crate) event_source: Option<String>,
    /// Whether a dead message holds back its ordering key.
    pub(crate) dead_blocks: bool,
}

/// A session that is idle in its transaction for longer is cut off by PostgreSQL: `begin.sql`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for the questions that follow a batch which has taken all of its own.
const LAST_QUESTIONS: Duration = Duration::from_secs(5);

impl Limits {
    /// Within what time a message whose acknowledgement was lost is sent again while both servers
    /// work: a relay that hangs with it is cut off, and whoever takes over sends it at the end of a
    /// batch, perhaps after a failed one.
    pub(crate) fn resend_max(&self) -> Duration {
        IDLE_TIMEOUT + self.batch_max()
    }

    /// How long a batch takes at most, whatever NATS does: well below [`IDLE_TIMEOUT`].
    pub(crate) fn batch_max(&self) -> Duration {
        self.batch_timeout + self.ack_timeout + LAST_QUESTIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_timeout_is_that_of_the_statement() {
        let text = format!("'idle_in_transaction_session_timeout', '{}s'", IDLE_TIMEOUT.as_secs());
        assert!(include_str!("../postgres/sql/begin.sql").contains(&text));
    }

    #[test]
    fn no_batch_takes_as_long_as_a_session_may_idle() {
        let limits = Limits {
            window: 1,
            ack_timeout: Duration::from_secs(15),
            batch_timeout: Duration::from_secs(30),
            expected_stream: None,
            atomic_streams: Vec::new(),
            event_source: None,
            dead_blocks: true,
        };
        assert!(limits.batch_max() + Duration::from_secs(10) <= IDLE_TIMEOUT, "{limits:?}");
    }
}
