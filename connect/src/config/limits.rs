//! Bounds of a pass: how much it reads, and how it publishes; and the reaction to a stream that has
//! lost acknowledged messages.

use std::{sync::Arc, time::Duration};

use oncebox_contracts::Contracts;

/// How much a pass reads from one lane.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Messages at most.
    pub messages_max: i64,
    /// Bytes of payload at most, rounded up to a whole message.
    pub bytes_max: i64,
    /// Whether a dead message holds back its ordering key.
    pub dead_blocks: bool,
}

impl ReadLimits {
    /// For a pass over `times` times the usual lanes: it holds no more in all.
    pub fn shared_by(self, times: i64) -> Self {
        let share = |limit: i64| (limit / times.max(1)).max(1);
        Self { messages_max: share(self.messages_max), bytes_max: share(self.bytes_max), ..self }
    }
}

/// Bounds of publishing.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How many messages may be unacknowledged. The broker's answers decide how many there are.
    pub window: usize,
    /// Without any acknowledgement for this long, JetStream is asked: it is away, or only these
    /// messages are silent.
    pub ack_timeout: Duration,
    /// After this time nothing more of a batch is sent; the rest goes with the next one.
    pub batch_timeout: Duration,
    /// The one stream that may store messages, if it was named.
    pub expected_stream: Option<String>,
    /// Streams that messages go to in atomic batches, as far as they allow it.
    pub atomic_streams: Vec<String>,
    /// Messages are published as `CloudEvents` of this source.
    pub event_source: Option<String>,
    /// Payloads that travel beside their messages, if there are any.
    pub large_payloads: Option<LargePayloads>,
    /// Whether a dead message holds back its ordering key.
    pub dead_blocks: bool,
    /// The schemas that payloads must fit, if a file has them.
    pub contracts: Option<Arc<Contracts>>,
}

/// Payloads that lie in a bucket of the NATS Object Store, while their messages carry references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargePayloads {
    /// The bucket.
    pub bucket: String,
    /// A payload of more bytes goes there.
    pub above: usize,
}

impl LargePayloads {
    /// The stream that holds the bucket.
    #[must_use]
    pub fn stream(&self) -> String {
        format!("OBJ_{}", self.bucket)
    }
}

/// The longest time that a suspended relay keeps its lanes: PostgreSQL cuts off a session that is
/// idle in its transaction (`begin.sql`), and another relay one that reads no more (`pass/unread`).
const SUSPENDED_MAX: Duration = Duration::from_secs(30);
/// The time for the questions that follow a batch which has taken all of its own.
const LAST_QUESTIONS: Duration = Duration::from_secs(5);

impl Limits {
    /// The longest time until a message whose acknowledgement was lost is sent again, while both
    /// servers work: a relay that hangs with it is cut off, and its successor sends it at the end
    /// of a batch, perhaps after a failed one.
    pub fn resend_max(&self) -> Duration {
        SUSPENDED_MAX + self.batch_max()
    }

    /// How long a batch takes at most, also while NATS is silent.
    pub fn batch_max(&self) -> Duration {
        self.batch_timeout + self.ack_timeout + LAST_QUESTIONS
    }
}

/// The reaction to a stream that has lost acknowledged messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Messages missing at the end of a stream are sent again; the loss of a stream that was made
    /// anew, of a work queue, or of one that can prove nothing any more, is reported.
    #[default]
    Auto,
    /// Missing messages are sent again in every case.
    Resend,
    /// A loss is only reported.
    Report,
}

impl OnLoss {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "resend" => Ok(Self::Resend),
            "report" => Ok(Self::Report),
            other => Err(format!("{other:?} is not one of \"auto\", \"resend\" and \"report\"")),
        }
    }
}
