//! Retention: milestones, and which messages they let go.

use super::{
    mutant::Mutant,
    postgres::{Database, Milestone, Row},
    world::Outbox,
};
use crate::bits;

/// `reach.sql`: writes down where the cursor stands.
pub(crate) fn reach(db: &mut Database) -> bool {
    let cursor = db.cursor;
    let is_ours = cursor.cluster == db.cluster
        && cursor.reset_until.is_none()
        && cursor.snap.xmax <= db.snapshot().xmax;
    let is_new = db.milestones.last().is_none_or(|last| last.number < cursor.number);
    if is_ours && is_new {
        let (number, floor, high, snap) = (cursor.number, cursor.floor, cursor.high, cursor.snap);
        db.milestones.push(Milestone { number, floor, high, snap, is_old: false });
    }
    is_ours && is_new
}

/// `0013_segments.sql`, message by message: a segment is emptied when each message in it would go.
/// Returns the messages that go.
pub(crate) fn prune(db: &Database, model: &Outbox) -> Vec<u8> {
    let now = db.snapshot();
    let old = db.milestones.iter().filter(|of| of.is_old && of.snap.xmax <= now.xmax);
    let Some(milestone) = old.max_by_key(|of| of.number) else { return Vec::new() };
    let is_settled = |row: &Row| {
        if model.is(Mutant::RetentionByAge) {
            true
        } else if model.is(Mutant::RetentionByHigh) {
            row.id <= milestone.high
        } else if model.is(Mutant::RetentionByCursor) {
            db.cursor.calls_settled(*row)
        } else if row.id > milestone.floor {
            row.id <= milestone.high && milestone.snap.sees(row.xact)
        } else {
            true
        }
    };
    let is_parked = |row: &Row| db.parked(row.message).is_some() && !model.is(Mutant::RetentionOfParked);
    db.visible().filter(|row| is_settled(row) && !is_parked(row)).map(|row| row.message).collect()
}

/// Deletes messages.
pub(crate) fn delete(db: &mut Database, messages: &[u8]) {
    for message in messages {
        db.log.retain(|row| row.message != *message);
        db.parked.retain(|parked| parked.message != *message);
        db.deleted = bits::with(db.deleted, *message);
        db.discarded = bits::without(db.discarded, *message);
    }
}
