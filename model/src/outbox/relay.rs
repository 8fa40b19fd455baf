//! A pass of a relay: look, read, publish, settle. The production code decides which messages may
//! be in flight, how far the cursor moves, and what is noted of acknowledgements.

use oncebox_relay::rules::{self, Decision};

use super::{
    Outbox, State,
    mutant::Mutant,
    ids::{mark_text, names, production, sent},
    postgres::{Cursor, Row, Snapshot},
    statements::{append_receipts, begin_reset, log_reading, read, read_parked, read_reset, set_aside, settle},
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
    Checked { seen: u8, proven: Option<u8>, sequence: u8 },
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

impl Pass {
    /// The messages that may be sent now: the production code's choice.
    pub(crate) fn free(&self, model: &Outbox) -> Vec<usize> {
        let waits = |reading: &Reading| matches!(reading.outcome, Outcome::Unsent | Outcome::InDoubt);
        let key = |reading: &Reading| model.ordering_key(reading.row.message);
        let keys = self.readings.iter().map(|reading| {
            let key = key(reading).filter(|_| !model.is(Mutant::AllInFlight));
            waits(reading).then_some((0, key))
        });
        let order = rules::SendOrder::new(keys);
        let unsent = |index: &usize| self.readings[*index].outcome == Outcome::Unsent;
        order.free.into_iter().filter(unsent).collect()
    }

    /// A message is refused; those behind it in its ordering key are not sent.
    pub(crate) fn refuse(&mut self, model: &Outbox, index: usize, is_dead: bool) {
        self.readings[index].outcome = Outcome::Refused { is_dead };
        let Some(key) = model.ordering_key(self.readings[index].row.message) else { return };
        if model.is(Mutant::FailureFreesNext) || is_dead && !model.scope.dead_blocks {
            return;
        }
        for reading in &mut self.readings[index + 1..] {
            if reading.outcome == Outcome::Unsent && model.ordering_key(reading.row.message) == Some(key) {
                reading.outcome = Outcome::Behind;
            }
        }
    }
}

/// What `JetStream` says when a stream is full (the message waits), or when the message is larger
/// than it takes (the message is dead).
pub(crate) const REFUSALS: [u64; 2] = [10077, 10054];

/// Whether the production code gives the message up.
pub(crate) fn is_dead(err_code: u64) -> bool {
    rules::refused(err_code) == Decision::Dead
}

impl State {
    /// Reads under the lock. `None`: the cursor has moved since the claim looked, so the relay
    /// leaves the lane alone.
    pub(crate) fn read(&self, model: &Outbox, looked: &Cursor) -> Option<Pass> {
        let mut db = self.db.clone();
        if db.cursor.number != looked.number {
            return None;
        }
        let begins_reset = db.is_foreign() && !model.is(Mutant::ForeignIsIgnored);
        if begins_reset {
            begin_reset(&mut db, model);
        }
        let cursor = db.cursor;
        let limit = usize::from(model.scope.limit);
        let mut due = if db.cursor.reset_until.is_some() {
            read_reset(&db, model, limit)
        } else {
            read(&db, &cursor, model, limit)
        };
        due.truncate(limit);
        let is_full = due.len() >= limit && !model.is(Mutant::CutReadIsWhole);
        let mut readings: Vec<Reading> = due.iter().map(|row| log_reading(&db, model, *row)).collect();
        let log = u8::try_from(readings.len()).expect("a few rows");
        readings.extend(read_parked(&db, model));
        let snapshot = db.snapshot();
        Some(Pass { has_session: true, cursor, begins_reset, readings, log, is_full, snapshot })
    }

    /// Settles the longest prefix of the log that is done, and commits.
    pub(crate) fn settle(&mut self, model: &Outbox, relay: usize, mut pass: Pass) {
        let known = rules::acknowledged(pass.cursor.mark.map(mark_text));
        let cursor = production(&pass.cursor);
        if rules::note(&cursor, &known, &sent(&names(&pass), &pass), None).regressed.is_some()
            && pass.cursor.reset_until.is_none()
            && !model.is(Mutant::RegressionIsIgnored)
        {
            // The stream has lost messages: nothing is settled before the relay has looked.
            self.relays[relay].has_checked = false;
            for reading in &mut pass.readings {
                if matches!(reading.outcome, Outcome::Stored { .. }) {
                    reading.outcome = Outcome::InDoubt;
                }
            }
        }
        let names = names(&pass);
        let sent = sent(&names, &pass);
        let log = usize::from(pass.log);
        let ids: Vec<i64> = pass.readings[..log].iter().map(|of| i64::from(of.row.id)).collect();
        let done = done(model, &pass.readings[..log]);
        let newest = self.db.snapshot();
        let snapshot = if model.is(Mutant::SnapshotOfSettlement) { newest } else { pass.snapshot }.text();
        let read = rules::Read { ids: &ids, full: pass.is_full, snapshot: &snapshot };
        let noted = rules::note(&cursor, &known, &sent, cursor.advance(read, done));
        self.write(model);
        if pass.begins_reset {
            begin_reset(&mut self.db, model);
        }
        let claimed = pass.cursor;
        if let Some(settlement) = &noted.settlement {
            settle(&mut self.db, model, settlement);
        }
        append_receipts(&mut self.db, model, &claimed, &noted.receipts);
        set_aside(&mut self.db, model, &pass, done);
    }
}

/// The settled prefix (`pass/plan.rs`).
fn done(model: &Outbox, log: &[Reading]) -> usize {
    let is_done = |reading: &&Reading| match reading.outcome {
        Outcome::Unsent => model.is(Mutant::SettleBeforeAck),
        Outcome::InDoubt => model.is(Mutant::SettleBeforeAck) || model.is(Mutant::DoubtIsAnswer),
        _ => true,
    };
    if model.is(Mutant::CountForPrefix) {
        return log.iter().filter(is_done).count();
    }
    log.iter().take_while(is_done).count()
}
