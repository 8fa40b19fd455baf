//! How far a durable consumer is.

use super::{Consumer, setup};
use crate::Error;

/// How far a durable consumer is, of all its processes; see [`Consumer::backlog`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// Messages that are to be delivered, or to be acknowledged.
    pub waiting: u64,
    /// All its messages up to this sequence of the stream are acknowledged.
    pub acknowledged_to: u64,
    /// The last sequence of the stream, of any subject.
    pub last: u64,
}

impl Consumer {
    /// How far the durable consumer is, as nats-server says; `None` where there is none yet.
    ///
    /// # Errors
    /// The stream is not there, or NATS did not answer.
    pub async fn backlog(&self) -> Result<Option<Backlog>, Error> {
        let stream = setup::stream(&self.jetstream, &self.settings).await?;
        let last = stream.cached_info().state.last_sequence;
        let info = setup::info(&stream, &self.settings).await?;
        let unacknowledged = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Ok(info.map(|info| Backlog {
            waiting: info.num_pending.saturating_add(unacknowledged(info.num_ack_pending)),
            acknowledged_to: info.ack_floor.stream_sequence,
            last,
        }))
    }
}
