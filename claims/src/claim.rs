//! The answer to a message, or a request, that asks for its key.

use crate::{life::Arrival, stored::Stored, transactional::TransactionId};

/// The result of a claim, in every mode; `W` is the winner's right to the key.
#[derive(Clone, Debug)]
pub enum Claim<W = TransactionId> {
    /// The key is ours, until the transaction or the lease ends.
    Won(W),
    /// Another one works on the key, or its pause after a failure is not over.
    InFlight,
    /// The key can be claimed, but not in company: it may have ended the processes that had it, or
    /// it has a row that is older than the retention.
    Alone,
    /// The key has ended with this payload.
    Copy(Stored),
    /// The key belongs to another payload: that of the outbox's row with this id, if one is known.
    Mismatch(Option<i64>),
}

impl<W> Claim<W> {
    /// The same, with another right to the key.
    pub fn map<V>(self, winner: impl FnOnce(W) -> V) -> Claim<V> {
        match self {
            Self::Won(won) => Claim::Won(winner(won)),
            Self::InFlight => Claim::InFlight,
            Self::Alone => Claim::Alone,
            Self::Copy(stored) => Claim::Copy(stored),
            Self::Mismatch(message_id) => Claim::Mismatch(message_id),
        }
    }

    /// The answer to an arrival that does not get the key.
    pub(crate) fn refused(arrival: Arrival, stored: Option<Stored>) -> Self {
        match (arrival, stored) {
            (Arrival::Copy, Some(stored)) => Self::Copy(stored),
            (Arrival::Mismatch, stored) => Self::Mismatch(stored.and_then(|stored| stored.message_id)),
            (Arrival::Claim | Arrival::Replace | Arrival::ClaimAlone, _) => Self::Alone,
            (Arrival::InFlight | Arrival::Copy, _) => Self::InFlight,
        }
    }
}
