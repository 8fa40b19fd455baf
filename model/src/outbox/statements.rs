//! The statements of a pass, each a function that names its file. They are the model's own words:
//! the traces of a real relay tell whether they are true.

use oncebox_relay::rules;

use super::{
    ids::{sending, sequence, small},
    mutant::Mutant,
    pass::{Outcome, Pass, Reading},
    postgres::{Cursor, Database, LateReceipt, Parked, Receipt, Row, Snapshot},
    world::Outbox,
};
use crate::{bits, due::Due};

/// `read.sql`: late rows first, then new ones.
pub(crate) fn read(db: &Database, cursor: &Cursor, model: &Outbox, limit: usize) -> Vec<Row> {
    let uncommitted = model.is(Mutant::DirtyRead).then_some(&db.log);
    let visible = || uncommitted.into_iter().flatten().copied().chain(db.visible());
    let due = |row: &Row| {
        let above = row.xact >= cursor.snap.xmax && !model.is(Mutant::LateOnlyListed);
        let listed = bits::has(cursor.snap.open, row.xact) && !model.is(Mutant::LateOnlyAbove);
        cursor.place().due(row.id, cursor.seen(*row, !above && !listed))
    };
    let has_late = !model.is(Mutant::HighWater);
    let mut late: Vec<Row> = visible().filter(|row| has_late && due(row) == Some(Due::Late)).collect();
    let mut new: Vec<Row> = visible().filter(|row| due(row) == Some(Due::New)).collect();
    for rows in [&mut late, &mut new] {
        rows.sort_by_key(|row| row.id);
        rows.dedup();
        rows.truncate(limit);
    }
    if model.is(Mutant::NewBeforeLate) && !new.is_empty() {
        return new;
    }
    late.extend(new);
    late
}

/// `read_reset.sql`: rows of the other cluster that are due, by the old snapshot.
pub(crate) fn read_reset(db: &Database, model: &Outbox, limit: usize) -> Vec<Row> {
    let cursor = &db.cursor;
    let until = cursor.reset_until.unwrap_or(0);
    let is_due = |row: &Row| {
        row.id > cursor.high
            || !cursor.snap.sees(row.xact)
                && cursor
                    .target
                    .is_none_or(|target| row.id > cursor.after.unwrap_or(0) || !target.sees(row.xact))
                && !model.is(Mutant::ResetForgetsLate)
    };
    let rows = db.visible().filter(|row| row.id > cursor.floor && row.id <= until);
    let mut rows: Vec<Row> = rows.filter(is_due).collect();
    rows.sort_by_key(|row| row.id);
    rows.truncate(limit);
    rows
}

/// `begin_reset.sql`.
pub(crate) fn begin_reset(db: &mut Database, model: &Outbox) {
    let now = db.snapshot();
    let high = db.cursor.high;
    let foreign = db.visible().filter(|row| row.id > high && !now.sees(row.xact)).map(|row| row.id).max();
    db.milestones.clear();
    db.receipts.clear();
    let foreign = foreign.filter(|_| !model.is(Mutant::ResetOnlyToHigh));
    db.cursor.cluster = db.cluster;
    db.cursor.reset_until = Some(high).max(db.cursor.reset_until).max(foreign);
}

pub(crate) fn log_reading(db: &Database, model: &Outbox, row: Row) -> Reading {
    let key = model.ordering_key(row.message);
    let blocks = |parked: &Parked| {
        key.is_some()
            && model.ordering_key(parked.message) == key
            && (!parked.is_dead || model.scope.dead_blocks)
    };
    let is_passed = is_passed(db, model, row);
    let is_blocked = db.parked.iter().any(blocks) && !model.is(Mutant::BlockedIsSent);
    let outcome = match (is_passed, is_blocked) {
        (true, _) => Outcome::Passed,
        (false, true) => Outcome::Behind,
        (false, false) => Outcome::Unsent,
    };
    Reading { row, is_parked: false, is_due: false, is_replay: false, outcome }
}

/// `passed.sql`: in a lane that is sent again, parked and discarded messages are not.
fn is_passed(db: &Database, model: &Outbox, row: Row) -> bool {
    let was_settled = |until: Cursor| {
        row.id <= until.floor
            || row.id <= until.high && until.snap.sees(row.xact)
            || until.after.is_some_and(|after| row.id <= after)
                && until.target.is_some_and(|target| target.sees(row.xact))
    };
    let is_resent = db.losses.iter().any(|loss| loss.until.is_some_and(was_settled) && !loss.has_ended);
    let is_aside = db.parked(row.message).is_some() || bits::has(db.discarded, row.message);
    is_resent && is_aside && !model.is(Mutant::DiscardedIsResent)
}

/// `read_parked.sql`: those due that are first of their ordering key, with those that wait for
/// them.
pub(crate) fn read_parked(db: &Database, model: &Outbox) -> Vec<Reading> {
    let mut parked = db.parked.clone();
    parked.sort_by_key(|of| of.id);
    let mut readings: Vec<Reading> = Vec::new();
    let same = |a: &Parked, b: &Parked| {
        let key = model.ordering_key(a.message);
        key.is_some() && key == model.ordering_key(b.message)
    };
    for (at, of) in parked.iter().enumerate().filter(|(_, of)| of.is_due && !of.is_dead) {
        let blocks = |before: &Parked| same(before, of) && (!before.is_dead || model.scope.dead_blocks);
        let is_blocked = parked[..at].iter().any(blocks);
        let behind = parked[at + 1..].iter().filter(|next| same(next, of));
        let behind = behind.take_while(|next| !(next.is_dead && model.scope.dead_blocks));
        let behind = behind.filter(|next| !next.is_dead && !is_blocked);
        for (found, is_blocked) in std::iter::once((of, is_blocked)).chain(behind.map(|of| (of, false))) {
            let Some(row) = db.row(found.message) else { continue };
            let outcome = if is_blocked { Outcome::Behind } else { Outcome::Unsent };
            if readings.iter().all(|known| known.row != row) {
                let (is_due, is_replay) = (found.is_due, found.is_replay);
                readings.push(Reading { row, is_parked: true, is_due, is_replay, outcome });
            }
        }
    }
    readings.sort_by_key(|reading| reading.row.id);
    readings
}

/// `settle.sql`: writes the cursor if it is still the one that was read.
pub(crate) fn settle(db: &mut Database, model: &Outbox, settlement: &rules::Settlement) {
    if i64::from(db.cursor.number) != settlement.number {
        return;
    }
    let old = db.cursor;
    let snap = settlement.snap.as_deref().map(Snapshot::parse);
    let target = settlement.target.as_deref().map(Snapshot::parse);
    let ends_drain = old.target.is_some() && target.is_none();
    let snap = if model.is(Mutant::DrainEndsNow) && ends_drain { Some(db.snapshot()) } else { snap };
    let mark = settlement.acknowledged.as_deref().map(rules::Acknowledged::parse);
    db.cursor = Cursor {
        cluster: old.cluster,
        number: old.number + 1,
        floor: small(settlement.floor),
        high: small(settlement.high),
        snap: snap.unwrap_or(old.snap),
        target,
        after: settlement.after.map(small),
        reset_until: settlement.reset_until.map(small),
        mark: mark.map_or(old.mark, |mark| rules::mark(&mark).map(|(at, id)| (sequence(at), sending(id)))),
    };
}

/// `append_receipts.sql`. The model appends every receipt, or only those that no pause holds back:
/// the first of a stream.
pub(crate) fn append_receipts(
    db: &mut Database,
    model: &Outbox,
    claimed: &Cursor,
    receipts: &[rules::Receipt],
) {
    if db.cursor.reset_until.is_some() || db.cursor.cluster != db.cluster {
        return;
    }
    for receipt in receipts {
        let number = small(receipt.number);
        let mark = receipt.message_id.as_deref().map(|id| (sequence(receipt.sequence), sending(id)));
        let is_first = mark.is_none();
        let is_left_out = (is_first && model.is(Mutant::NoFirstReceipt))
            || (!is_first && model.scope.has_sparse_receipts)
            || db.receipts.iter().any(|known| known.number == number);
        if is_left_out {
            continue;
        }
        let mark = match mark {
            Some((at, _)) if model.is(Mutant::ReceiptOffByOne) && number > claimed.number && at > 1 => {
                claimed.mark
            }
            mark => mark,
        };
        let snap = receipt.snap.as_deref().map_or(claimed.snap, Snapshot::parse);
        let (floor, high) = (small(receipt.floor), small(receipt.high));
        db.receipts.push(Receipt { number, mark, floor, high, snap });
    }
}

/// `park.sql`, `unpark.sql` and `release.sql`.
pub(crate) fn set_aside(db: &mut Database, model: &Outbox, pass: &Pass, done: usize) {
    let mut freed: Vec<u8> = Vec::new();
    for (at, reading) in pass.readings.iter().enumerate() {
        let message = reading.row.message;
        if at < usize::from(pass.log) && at >= done {
            continue;
        }
        let (id, is_replay) = (reading.row.id, reading.is_replay);
        let park = |is_due, is_dead| Parked { message, id, is_due, is_dead, is_replay };
        let place = db.parked.iter().position(|known| known.message == message);
        match reading.outcome {
            Outcome::Stored { sequence, .. } if reading.is_parked => {
                db.parked.retain(|known| known.message != message);
                if !model.is(Mutant::NoLateReceipt) {
                    db.late_receipts.retain(|r| (r.message, r.is_replay) != (message, is_replay));
                    db.late_receipts.push(LateReceipt { message, is_replay, sequence });
                }
                freed.push(message);
            }
            Outcome::InDoubt if reading.is_parked && model.is(Mutant::DoubtUnparks) => {
                db.parked.retain(|known| known.message != message);
            }
            Outcome::Behind if reading.is_parked => {
                if let Some(at) = place.filter(|_| reading.is_due) {
                    db.parked[at].is_due = false;
                }
            }
            Outcome::Behind => {
                db.parked.push(park(false, false));
                freed.push(message);
            }
            Outcome::Refused { is_dead } => {
                // Its pause is over at some time: a due time is only a hint.
                let parked = park(!is_dead, is_dead);
                match place {
                    Some(at) => db.parked[at] = parked,
                    None => db.parked.push(parked),
                }
                if is_dead && !model.scope.dead_blocks {
                    freed.push(message);
                }
            }
            Outcome::Stored { .. } | Outcome::InDoubt | Outcome::Unsent | Outcome::Passed => {}
        }
    }
    db.parked.sort_by_key(|parked| parked.id);
    for message in freed {
        release(db, model, message);
    }
}

/// `release.sql`: the first of the ordering key is due.
pub(crate) fn release(db: &mut Database, model: &Outbox, message: u8) {
    let Some(key) = model.ordering_key(message) else { return };
    let of_key = |parked: &Parked| model.ordering_key(parked.message) == Some(key);
    let first = db.parked.iter().position(|parked| of_key(parked) && !parked.is_dead);
    let Some(first) = first.filter(|_| !model.is(Mutant::NobodyIsReleased)) else { return };
    let is_blocked = db.parked[..first].iter().any(of_key) && model.scope.dead_blocks;
    if !is_blocked {
        db.parked[first].is_due = true;
    }
}
