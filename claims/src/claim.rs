//! The answer to a message, or a request, that asks for its key.

use oncebox_schema::Columns;

use crate::{
    life::{Arrival, arrive},
    stored::Stored,
};

/// The id of the transaction that has claimed a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionId(i64);

impl TransactionId {
    /// The id as the claims return it.
    pub(crate) fn parse(id: &str) -> Self {
        Self(id.parse().expect("the server never reaches 2^63 transactions"))
    }

    pub(crate) fn of(row: &Columns) -> Option<Self> {
        row.number(0).map(Self)
    }

    /// The id as our statements take it.
    #[must_use]
    pub fn as_i64(&self) -> &i64 {
        &self.0
    }
}

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
    /// The key belongs to another payload, with which it has ended if it has.
    Mismatch(Option<Stored>),
}

impl<W> Claim<W> {
    /// The same, with another right to the key.
    pub fn map<V>(self, winner: impl FnOnce(W) -> V) -> Claim<V> {
        match self {
            Self::Won(won) => Claim::Won(winner(won)),
            Self::InFlight => Claim::InFlight,
            Self::Alone => Claim::Alone,
            Self::Copy(stored) => Claim::Copy(stored),
            Self::Mismatch(stored) => Claim::Mismatch(stored),
        }
    }

    /// The answer to another message of the key, by its own fingerprint.
    #[must_use]
    pub fn for_other(self, fingerprint: &[u8; 32]) -> Self {
        match self {
            Self::Copy(stored) | Self::Mismatch(Some(stored)) => {
                Self::refused(arrive(Some(stored.seen(fingerprint)), None), Some(stored))
            }
            other => other,
        }
    }

    /// The answer to an arrival that does not get the key.
    pub(crate) fn refused(arrival: Arrival, stored: Option<Stored>) -> Self {
        match (arrival, stored) {
            (Arrival::Copy, Some(stored)) => Self::Copy(stored),
            (Arrival::Mismatch, stored) => Self::Mismatch(stored),
            (Arrival::Claim | Arrival::Replace | Arrival::ClaimAlone, _) => Self::Alone,
            (Arrival::InFlight | Arrival::Copy, _) => Self::InFlight,
        }
    }
}
