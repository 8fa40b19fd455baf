//! A pass of a relay: look, read, publish, settle. The production code decides which messages may
//! be in flight, how far the cursor moves, and which receipts come of acknowledgements.

use oncebox_relay::rules::{self, Decision};

use super::{
    ids::{mark_text, names, production, sent},
    mutant::Mutant,
    pass::{Outcome, Pass, Reading},
    postgres::Cursor,
    statements::{
        append_receipts, begin_reset, log_reading, read, read_parked, read_reset, set_aside, settle,
    },
    world::{Outbox, State},
};

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

    /// A message is refused; later ones of its ordering key are not sent.
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

/// The codes of `JetStream` for a full stream (the message waits), and for a message that is too
/// large (it is dead).
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
            return self.left_out(model, looked);
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

    /// A lane whose cursor has moved: nothing is sent in it, parked messages neither.
    fn left_out(&self, model: &Outbox, looked: &Cursor) -> Option<Pass> {
        let readings = read_parked(&self.db, model);
        let cursor = *looked;
        let snapshot = self.db.snapshot();
        let pass = Pass {
            has_session: true,
            cursor,
            begins_reset: false,
            readings,
            log: 0,
            is_full: false,
            snapshot,
        };
        model.is(Mutant::LeftLaneSendsParked).then_some(pass)
    }

    /// Settles the longest prefix of the log that is done, and commits.
    pub(crate) fn settle(&mut self, model: &Outbox, relay: usize, mut pass: Pass) {
        if model.is(Mutant::LeftLaneSendsParked) && pass.cursor.number != self.db.cursor.number {
            return set_aside(&mut self.db, model, &pass, 0);
        }
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
