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

/// For so long a relay that is suspended keeps its lanes: PostgreSQL cuts off a session that is
/// idle in its transaction (`begin.sql`), and another relay one that reads no more (`pass/unread`).
pub(crate) const SUSPENDED_MAX: Duration = Duration::from_secs(30);
/// The time for the questions that follow a batch which has taken all of its own.
const LAST_QUESTIONS: Duration = Duration::from_secs(5);

impl Limits {
    /// Within what time a message whose acknowledgement was lost is sent again while both servers
    /// work: a relay that hangs with it is cut off, and whoever takes over sends it at the end of a
    /// batch, perhaps after a failed one.
    pub(crate) fn resend_max(&self) -> Duration {
        SUSPENDED_MAX + self.batch_max()
    }

    /// How long a batch takes at most, whatever NATS does.
    pub(crate) fn batch_max(&self) -> Duration {
        self.batch_timeout + self.ack_timeout + LAST_QUESTIONS
    }
}
