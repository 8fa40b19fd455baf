//! What became of a message that was to be published.

use tokio::time::Instant;

use super::decision::{Decision, Failure};

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The message was not sent, or not answered: the next pass sends it again.
    Unknown,
    Stored {
        duplicate: bool,
        sent_at: Instant,
        acknowledged_at: Instant,
    },
    /// The message is set aside; the decision is not [`Decision::Away`].
    Failed(Decision, Failure),
    /// The message was not sent, because an earlier one of its ordering key is set aside.
    Behind,
}
