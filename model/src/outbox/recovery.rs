//! A relay asks the stream for its receipts, and has lost messages sent again. The production code
//! judges the evidence.

use oncebox_relay::rules::{self, Evidence, Extent};

use super::{
    ids::id_text,
    mutant::Mutant,
    pass::Phase,
    postgres::{Cursor, Database, Loss, Parked, Receipt, Snapshot},
    statements::release,
    world::{Outbox, State},
};
use crate::bits;

impl State {
    /// The first half of a check: `pass/missing.rs` asks for the cursor's mark and the receipts.
    /// The model asks for all of them each time, where the relay leaves out those that a check has
    /// covered.
    pub(crate) fn ask(&self, model: &Outbox) -> Phase {
        let db = &self.db;
        let Some(mark) = db.cursor.mark.filter(|_| db.cursor.reset_until.is_none()) else {
            return Phase::Idle;
        };
        let stands = Receipt { number: db.cursor.number, mark: Some(mark), ..nothing() };
        let asked = std::iter::once(&stands).chain(&db.receipts);
        let missing = asked.filter(|receipt| self.evidence(model, receipt) == Evidence::Missing);
        let Some(oldest) = missing.map(|receipt| receipt.number).min() else { return Phase::Idle };
        // `older_receipts.sql`, the newest first.
        let mut older: Vec<&Receipt> = db.receipts.iter().filter(|r| r.number < oldest).collect();
        older.sort_by_key(|receipt| std::cmp::Reverse(receipt.number));
        let now = db.snapshot();
        older.retain(|receipt| receipt.snap.xmax <= now.xmax);
        let evidence: Vec<Evidence> = older.iter().map(|r| self.evidence(model, r)).collect();
        let proven = rules::newest_proven(&evidence).map(|at| older[at].number);
        Phase::Checked { seen: db.cursor.number, proven, sequence: mark.0 }
    }

    fn evidence(&self, model: &Outbox, receipt: &Receipt) -> Evidence {
        let extent = Extent { first: 1, last: u64::from(self.stream.last()) };
        let (sequence, sending) = receipt.mark.map_or((0, None), |(at, sending)| (at, Some(sending)));
        let expected = sending.map(id_text);
        let judged = extent.judge(u64::from(sequence), expected.as_deref());
        judged.unwrap_or_else(|| {
            let found = self.stream.at(sequence).map(id_text);
            if model.is(Mutant::ProbeWithoutId) && found.is_some() {
                return Evidence::Proven;
            }
            Evidence::of(expected.as_deref(), found.as_deref().map(Some))
        })
    }

    /// The second half: `note_loss.sql`, and `resend_lost.sql` when the loss is proven. False when
    /// another relay was faster.
    pub(crate) fn note_loss(&mut self, model: &Outbox, seen: u8, proven: Option<u8>, resends: bool) -> bool {
        let proof = self.db.receipts.iter().find(|r| Some(r.number) == proven).copied();
        let is_known = self.db.losses.iter().any(|loss| loss.number > seen);
        if proven.is_some() && proof.is_none() || self.db.cursor.reset_until.is_some() || is_known {
            return false;
        }
        self.write(model);
        let now = self.db.snapshot();
        let db = &mut self.db;
        let stands = db.cursor;
        let mark = proof.and_then(|proof| proof.mark);
        let kept = if model.is(Mutant::MarkOutlivesLoss) { stands.mark } else { mark };
        db.cursor = Cursor { number: stands.number + 1, mark: kept, ..stands };
        db.receipts.retain(|receipt| proven.is_some_and(|proven| receipt.number <= proven));
        db.losses.push(Loss {
            number: stands.number + 1,
            proven,
            sequence: mark.map_or(0, |(sequence, _)| sequence),
            floor: proof.map_or(stands.floor, |proof| proof.floor),
            high: proof.map_or(stands.floor, |proof| proof.high),
            snap: proof.map_or(now, |proof| proof.snap),
            until: None,
            has_ended: false,
        });
        if resends {
            resend_lost(db, model);
        }
        true
    }
}

/// `resend_lost.sql`: the lane's cursor as it stood at the proven receipt.
pub(crate) fn resend_lost(db: &mut Database, model: &Outbox) {
    let Some(at) = db.losses.iter().position(|loss| loss.until.is_none()) else { return };
    if db.cursor.reset_until.is_some() || db.is_foreign() {
        return;
    }
    let (stands, lost) = (db.cursor, db.losses[at]);
    let older = |loss: &&Loss| !loss.has_ended && loss.until.is_some_and(|until| until.high > stands.high);
    let further = db.losses.iter().filter(older).filter_map(|loss| loss.until);
    let until = further.max_by_key(|until| until.high).unwrap_or(stands);
    for loss in db.losses.iter_mut().filter(|loss| loss.until.is_none()) {
        loss.until = Some(until);
    }
    let at_number = lost.proven.unwrap_or(0);
    let is_ahead = stands.high >= lost.high.max(lost.floor) && stands.snap.xmax >= lost.snap.xmax;
    let goes_back = is_ahead || lost.proven.is_none();
    let snap = if model.is(Mutant::RewindKeepsSnapshot) { stands.snap } else { lost.snap };
    let stood = Cursor { floor: lost.floor, high: lost.high, snap, target: None, after: None, ..stands };
    let place = if goes_back { stood } else { Cursor { target: None, after: None, ..stands } };
    if goes_back {
        db.cursor = Cursor { number: stands.number + 1, ..stood };
        let is_true = |number: u8| lost.proven.is_some() && number <= at_number;
        if !model.is(Mutant::MilestonesStay) {
            db.milestones.retain(|milestone| is_true(milestone.number));
        }
        for receipt in db.receipts.iter_mut().filter(|receipt| !is_true(receipt.number)) {
            (receipt.floor, receipt.high, receipt.snap) = (lost.floor, lost.high, lost.snap);
        }
    }
    let is_before = |id: u8, xact: u8| id <= place.floor || id <= place.high && place.snap.sees(xact);
    let rows: Vec<_> = db.visible().collect();
    let row = |message: u8| rows.iter().copied().find(|row| row.message == message);
    db.parked.retain(|of| {
        of.is_dead || of.is_replay || row(of.message).is_none_or(|row| is_before(row.id, row.xact))
    });
    let taken: Vec<_> = db.late_receipts.iter().copied().filter(|r| r.sequence > lost.sequence).collect();
    db.late_receipts.retain(|receipt| receipt.sequence <= lost.sequence);
    for late in taken {
        let Some(row) = row(late.message).filter(|row| is_before(row.id, row.xact)) else { continue };
        if bits::has(db.discarded, late.message) || db.parked(late.message).is_some() {
            continue;
        }
        let (message, id, is_replay) = (late.message, row.id, late.is_replay);
        db.parked.push(Parked { message, id, is_due: false, is_dead: false, is_replay });
    }
    db.parked.sort_by_key(|parked| parked.id);
    let messages: Vec<u8> = db.parked.iter().map(|parked| parked.message).collect();
    for message in messages {
        match model.ordering_key(message) {
            Some(_) => release(db, model, message),
            None => db
                .parked
                .iter_mut()
                .filter(|of| of.message == message && !of.is_dead)
                .for_each(|of| of.is_due = true),
        }
    }
}

/// `end_resends.sql`.
pub(crate) fn end_resends(db: &mut Database) {
    let cursor = db.cursor;
    for loss in db.losses.iter_mut().filter(|loss| !loss.has_ended) {
        let Some(until) = loss.until else { continue };
        let has_moved =
            cursor.number > until.number + 1 && cursor.snap != loss.snap || cursor.snap == until.snap;
        loss.has_ended = cursor.target.is_none()
            && cursor.high >= until.high
            && has_moved
            && cursor.snap.xmax >= until.snap.xmax;
    }
}

fn nothing() -> Receipt {
    Receipt { number: 0, mark: None, floor: 0, high: 0, snap: Snapshot::default() }
}
