//! What became of a message that was to be published.

use tokio::time::Instant;

use super::decision::{Decision, Failure};

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Not sent, or sent with no answer: the next pass sends it again.
    Unknown,
    Stored {
        duplicate: bool,
        sent_at: Instant,
        acknowledged_at: Instant,
    },
    /// To be set aside; the decision is not [`Decision::Away`].
    Failed(Decision, Failure),
    /// Not sent, because an earlier message of its ordering key is set aside.
    Behind,
}
