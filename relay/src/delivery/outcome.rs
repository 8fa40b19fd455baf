//! The outcome of a message that was to be published.

use std::sync::Arc;

use tokio::time::Instant;

use super::decision::{Decision, Failure};

/// The outcome of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The message was not sent, or not answered: the next pass sends it again.
    Unknown,
    Stored {
        duplicate: bool,
        /// By this stream, at this sequence; a duplicate has the sequence of the first copy.
        stream: Arc<str>,
        sequence: u64,
        sent_at: Instant,
        acknowledged_at: Instant,
    },
    /// The message is set aside; the decision is not [`Decision::Away`].
    Failed(Decision, Failure),
    /// The message was not sent, because an earlier one of its ordering key is set aside.
    Behind,
    /// The message was not sent: it was settled before, and its lane is sent again for other
    /// messages.
    Passed,
}
