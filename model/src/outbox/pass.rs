//! Where a relay stands in its pass.

use super::{
    postgres::{Cursor, Row, Snapshot},
    stream::REPLAY,
};

/// The outcome of a message in a pass. In doubt: sent, and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Unsent,
    InDoubt,
    Stored { sequence: u8, is_duplicate: bool },
    Refused { is_dead: bool },
    Behind,
    Passed,
}

/// A message that a pass has read, from the log or from those parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reading {
    pub(crate) row: Row,
    pub(crate) is_parked: bool,
    pub(crate) is_due: bool,
    pub(crate) is_replay: bool,
    pub(crate) outcome: Outcome,
}

impl Reading {
    pub(crate) fn sending(&self) -> u8 {
        self.row.message | if self.is_replay { REPLAY } else { 0 }
    }
}

/// Where a relay stands. To be dropped at any step is as if the process had died.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    #[default]
    Idle,
    /// The claim's snapshot, which may be older than its lock.
    Looked(Cursor),
    Publishing(Pass),
    /// The stream lacks a receipt: the cursor seen, and the newest receipt that is proven.
    Checked {
        seen: u8,
        proven: Option<u8>,
        sequence: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pass {
    /// PostgreSQL has not ended the session, which holds the lock.
    pub(crate) has_session: bool,
    pub(crate) cursor: Cursor,
    pub(crate) begins_reset: bool,
    pub(crate) readings: Vec<Reading>,
    /// How many of them are rows of the log.
    pub(crate) log: u8,
    pub(crate) is_full: bool,
    pub(crate) snapshot: Snapshot,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Relay {
    /// It has looked for losses since its connection was made.
    pub(crate) has_checked: bool,
    pub(crate) phase: Phase,
}
