//! The state of a key, as its committed row has it.

use crate::{
    Error,
    identity::Identity,
    life::{Arrival, Ended, Held, arrive},
};

pub use crate::life::Status;

/// A committed row of the inbox.
#[derive(Clone, Debug)]
pub struct Stored {
    /// How the key ended.
    pub status: Status,
    /// The fingerprint of the message, or request, that ended it; empty where an edit came in its
    /// place, whose payload is another.
    pub fingerprint: Vec<u8>,
    /// The answer to duplicates; for a dead key, the reason.
    pub outcome: Option<Vec<u8>>,
    /// The outbox's row that was handled.
    pub message_id: Option<i64>,
    /// Older than the retention: it counts for nothing.
    pub is_expired: bool,
}

impl Stored {
    /// The end of the key, as an arrival with this fingerprint sees it.
    #[must_use]
    pub fn seen(&self, fingerprint: &[u8; 32]) -> Ended {
        let is_same = self.fingerprint.is_empty() || self.fingerprint == fingerprint;
        Ended { is_same, is_expired: self.is_expired }
    }
}

/// How a key ended, with the outcome to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement<'a> {
    /// How it ended.
    pub status: Status,
    /// The answer to duplicates; for a dead key, the reason.
    pub outcome: Option<&'a [u8]>,
}

/// A claim stores this, for the case that the handler ends so.
pub const COMPLETED: Settlement<'static> = Settlement { status: Status::Completed, outcome: None };

/// The status that the column of this key's row has.
pub(crate) fn status_of(key: &str, status: &str) -> Result<Status, Error> {
    let known = Status::ALL.into_iter().find(|known| known.as_str() == status);
    known.ok_or_else(|| Error::UnknownStatus { key: key.to_owned(), status: status.to_owned() })
}

/// The decision about a key that was not claimed. Without a row, its holder has not committed.
pub(crate) fn arrival(stored: Option<&Stored>, identity: &Identity) -> Arrival {
    let ended = stored.map(|stored| stored.seen(&identity.fingerprint));
    arrive(ended, stored.is_none().then_some(Held::BY_TRANSACTION))
}
