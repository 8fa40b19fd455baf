//! Which tables of the log the statements of a pass name.
//!
//! Most of the time no message is due but in the segment of this turn. Then a pass reads that table
//! alone: a plan over all of them takes twice as long to start. Each statement that reads says
//! whether that was right; see `read.sql`.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use oncebox_schema::SchemaName;

/// Segments of the ring.
const SEGMENTS: i64 = 8;
/// Several segments are to be read.
const SEVERAL: i64 = -1;

/// The statements that find messages that are due. How far lanes lag may be wrong by a moment, so
/// that statement does not ask for the turn.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) claim: String,
    pub(super) read: String,
    pub(super) read_on: String,
    pub(super) lag: String,
}

/// The log, and the turn whose segment alone is to be read, as the last claim said it.
#[derive(Debug)]
pub(super) struct Log {
    one: Vec<Reading>,
    all: Reading,
    single_turn: AtomicI64,
    /// This relay has looked whether segments that are said to be empty are so: a restore or a
    /// subscription may have filled them.
    is_checked: AtomicBool,
}

impl Reading {
    fn new(schema: &SchemaName, table: &str) -> Self {
        let of = |sql: &str| schema.sql(&sql.replace("{log}", table));
        Self {
            claim: of(include_str!("sql/claim.sql")),
            read: of(include_str!("sql/read.sql")),
            read_on: of(include_str!("sql/read_on.sql")),
            lag: of(include_str!("sql/lag.sql")),
        }
    }
}

impl Log {
    pub(super) fn new(schema: &SchemaName) -> Self {
        Self {
            one: (0..SEGMENTS).map(|number| Reading::new(schema, &format!("message_{number}"))).collect(),
            all: Reading::new(schema, "log"),
            single_turn: AtomicI64::new(SEVERAL),
            is_checked: AtomicBool::new(false),
        }
    }

    /// The statements to use, and the turn that they are right in; `None` when they are right in
    /// any.
    pub(super) fn reading(&self) -> (&Reading, Option<i64>) {
        let turn = self.single_turn.load(Ordering::Relaxed);
        let one = usize::try_from(turn % SEGMENTS).ok().and_then(|number| self.one.get(number));
        one.map_or((&self.all, None), |one| (one, Some(turn)))
    }

    /// Segments that were said to be empty and are not are live by now.
    pub(super) fn note_check(&self) {
        self.is_checked.store(true, Ordering::Relaxed);
    }

    /// A claim has said which turn's segment alone is live, if that is so.
    pub(super) fn note(&self, single_turn: Option<i64>) {
        let single_turn = single_turn.filter(|_| self.is_checked.load(Ordering::Relaxed));
        self.single_turn.store(single_turn.unwrap_or(SEVERAL), Ordering::Relaxed);
    }
}
