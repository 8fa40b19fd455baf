//! The lines of recordings, as `relay/src/pass/trace_file.rs` writes them.

use oncebox_relay::rules;
use serde::Deserialize;

use crate::due::{Place, Seen};

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Line {
    pub(super) pass: u64,
    #[serde(flatten)]
    pub(super) step: Step,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(super) enum Step {
    Started { outbox: String },
    Claimed { lanes: Vec<Claimed>, rows: Vec<Row> },
    ReadOn { snapshot: String, rows: Vec<Row> },
    Acknowledged { answers: Vec<Answer> },
    Settling { lanes: Vec<Cursor>, reads: Vec<LaneRead>, parked: Vec<(i16, i64)> },
    Settled {},
}

/// A lane, as a pass claimed it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Claimed {
    /// Without `snap`, which stays in the database.
    #[serde(flatten)]
    pub(super) cursor: Cursor,
    /// The snapshot of the read.
    pub(super) snapshot: String,
}

/// A cursor: a claimed one, one of a settlement, which bears the number of the one that it
/// replaces, or one of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Cursor {
    pub(super) lane: i16,
    pub(super) number: i64,
    pub(super) floor: i64,
    pub(super) high: i64,
    pub(super) snap: Option<String>,
    pub(super) target: Option<String>,
    pub(super) after: Option<i64>,
    pub(super) reset_until: Option<i64>,
}

/// Lane and id, and how the row was read.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Row(pub(super) i16, pub(super) i64, pub(super) String);

impl Row {
    pub(super) fn is(&self, mark: char) -> bool {
        self.2.contains(mark)
    }
}

/// Lane, id, stream, sequence, and whether the stream called it a duplicate.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Answer(
    pub(super) i16,
    pub(super) i64,
    pub(super) String,
    pub(super) u64,
    #[expect(dead_code, reason = "for people who read it")] bool,
);

/// A lane, the number of its rows that were done, and whether a limit may have cut the read.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct LaneRead(pub(super) i16, pub(super) usize, pub(super) bool);

impl Cursor {
    /// As the relay has it.
    pub(super) fn of_relay(&self) -> rules::Cursor {
        let Self { number, floor, high, target, after, reset_until, .. } = self.clone();
        rules::Cursor { number, floor, high, target, after, reset_until }
    }

    /// Whether all but the snapshot is the same as in a claim. In a restored database a claim
    /// begins a reset.
    pub(super) fn looks_like(&self, claim: &Self) -> bool {
        let reset_until = self.reset_until.filter(|_| claim.reset_until.is_none()).or(claim.reset_until);
        Self { snap: None, reset_until, ..self.clone() } == Self { snap: None, ..claim.clone() }
    }
}

/// A cursor with its snapshots read.
#[derive(Clone, Debug)]
pub(super) struct Stand {
    place: Place<i64>,
    snap: Option<rules::Snapshot>,
    target: Option<rules::Snapshot>,
}

impl Stand {
    /// A cursor without a snapshot sees nothing: it is the first one of its lane.
    pub(super) fn of(cursor: &Cursor) -> Self {
        let place = Place { floor: cursor.floor, high: cursor.high, after: cursor.after };
        let parse = |text: &Option<String>| text.as_deref().and_then(rules::Snapshot::parse);
        Self { place, snap: parse(&cursor.snap), target: parse(&cursor.target) }
    }

    pub(super) fn place(&self) -> Place<i64> {
        self.place
    }

    pub(super) fn seen(&self, xact: u64) -> Seen {
        let in_snap = self.snap.as_ref().is_some_and(|snap| sees(snap, xact));
        Seen { in_snap, in_target: self.target.as_ref().map(|target| sees(target, xact)) }
    }

    /// No transaction below this one can be late.
    pub(super) fn oldest_late(&self) -> u64 {
        let oldest = |snap: &rules::Snapshot| snap.open().iter().copied().min().unwrap_or(snap.xmax());
        self.snap.as_ref().map_or(0, oldest)
    }
}

/// `pg_visible_in_snapshot`.
pub(super) fn sees(snapshot: &rules::Snapshot, xact: u64) -> bool {
    xact < snapshot.xmax() && !snapshot.open().contains(&xact)
}
