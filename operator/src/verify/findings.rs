//! The findings of a comparison, and its result.

use schemars::JsonSchema;
use serde::Serialize;

use crate::time::Time;

/// A message that a stream does not hold as the log has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// `missing` or `different`.
    pub problem: &'static str,
    /// Its id in the log.
    pub id: i64,
    /// Its key.
    pub key: String,
    /// Its subject.
    pub subject: String,
    /// When it was enqueued.
    pub enqueued_at: Time,
}

/// A copy in a stream that is not as the log has the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AlteredCopy {
    /// `altered`.
    pub problem: &'static str,
    /// Its sequence in the stream.
    pub sequence: u64,
    /// The message's id in the log.
    pub id: i64,
    /// The message's key.
    pub key: String,
    /// The parts that differ: `subject`, `payload`, `ordering key`, `time`, `header NAME`,
    /// `Nats-Msg-Id`, `object` for a large payload that its bucket does not have.
    pub differs: Vec<String>,
}

/// A copy in a stream whose message the log does not have, or no more; the first of them are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnloggedCopy {
    /// `unlogged`.
    pub problem: &'static str,
    /// Its sequence in the stream.
    pub sequence: u64,
    /// The id that it has from a log.
    pub id: i64,
    /// Its key.
    pub key: String,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum VerificationFinding {
    /// Of a copy in the stream.
    Altered(AlteredCopy),
    /// Of a copy that is not in the log.
    Unlogged(UnloggedCopy),
    /// Of a message of the log.
    Message(Difference),
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Verified {
    /// The stream.
    pub stream: String,
    /// The first sequence of the stream that was read.
    pub first_sequence: u64,
    /// The last sequence of the stream that was read.
    pub last_sequence: u64,
    /// Settled messages of the log that were looked for.
    pub messages: u64,
    /// Settled messages that must be in the stream and are not.
    pub missing: u64,
    /// Settled messages that are in the stream, but in no copy as they were enqueued.
    pub different: u64,
    /// Messages that are set aside: they wait to be sent, perhaps again, and were not looked for.
    pub parked: u64,
    /// Settled messages that are in the stream as they were enqueued, and altered besides.
    pub superseded: u64,
    /// Settled messages that are not in the stream, which may have let them go.
    pub unproven: u64,
    /// Copies beyond the first of their message; deliberate replays do not count.
    pub copies: u64,
    /// Messages of this outbox in the stream that the log does not have, or no more.
    pub unlogged: u64,
    /// Missing or different messages that are sent again, or would be without `--dry-run`.
    pub resent: u64,
    /// The ids that a set was made of, by their lanes.
    #[serde(skip)]
    pub(super) shown: Vec<(i16, Vec<i64>)>,
}

impl Verified {
    /// Whether nothing is missing or different.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing + self.different == 0
    }
}
