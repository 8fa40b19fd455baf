//! The ring of segments (`0002_outbox.sql`, `0013_segments.sql`), with three segments instead of
//! eight: keys that stay unique while turns end, and messages that are read, drained and emptied.
//!
//! A prepared transaction is an open one that lasts: each may last as long as it likes here.

pub mod keys;
pub mod reading;

const SEGMENTS: u8 = 3;
/// The number of turns that end.
const TURNS_MAX: u8 = 3;

/// A mistake with the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// The INSERT does not read the turn again.
    TurnIsNotReadAgain,
    /// `check_turn` lets an older snapshot enqueue.
    NoCheckTurn,
    /// `enqueue` does not look into the segment before.
    NoLookBefore,
    /// `enqueue` does not look whether a delayed message has the key.
    NoLookAtDelayed,
    /// `end_turn` does not wait for transactions that have written.
    NoShareLock,
    /// The row of a turn that began without one is not written later.
    TurnIsNotNoted,
    /// Retention empties the segment before this turn's.
    EmptiesSegmentBefore,
    /// Retention empties a segment that is not drained.
    EmptiesLive,
    /// A parked row does not carry its message.
    ParkedCarriesNothing,
    /// A segment is drained by cursors that an operator moves back meanwhile.
    DrainsByOldCursor,
    /// A resend moves a cursor back, and leaves segments drained.
    ResendLeavesDrained,
    /// A read of one segment does not ask whether its turn is that of now.
    StaleTurnReads,
    /// A read asks for the turn before it takes its snapshot.
    TurnBeforeSnapshot,
    /// A read of one segment does not look whether another is live.
    LiveIsNotLookedAt,
    /// A claim names the turn although another segment is live.
    ClaimNamesTurn,
}

/// How far `end_turn` is; the row of `maintenance` is locked meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ending {
    #[default]
    No,
    /// The segment is locked in SHARE mode.
    Locked,
    /// `setval` has happened, and survives a rollback.
    Set,
}

impl Ending {
    /// The segment that is locked in SHARE mode.
    fn locked(self, turn: u8) -> Option<u8> {
        match self {
            Self::No => None,
            Self::Locked => Some(number(turn)),
            Self::Set => Some(before(turn)),
        }
    }
}

/// The segment of a turn.
fn number(turn: u8) -> u8 {
    turn % SEGMENTS
}

/// The segment of the turn before.
fn before(turn: u8) -> u8 {
    (turn + SEGMENTS - 1) % SEGMENTS
}
