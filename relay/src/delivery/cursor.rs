//! The cursor of a lane: why nothing is lost, and nothing stalls.
//!
//! A sequence is not commit order. A transaction may draw id 5 and commit after id 6 has been read.
//! A relay that remembers only "id 6" loses 5, the commonest bug of such relays; one that waits for
//! every older transaction stalls whenever a client leaves a transaction open. The cursor therefore
//! is the pair `(high, snap)` and means exactly:
//!
//! > every row with `id <= high` that is visible in `snap` has been settled.
//!
//! The due rows follow by set difference, with no assumption about sequences or clocks:
//!
//! ```text
//!            id <= high                                    id > high
//!   +--------------------------------------------+------------------------------+
//!   | visible in snap:      settled               | visible now:    new, in id   |
//!   | visible now, but not                        |                 order        |
//!   |   in snap:            late, before new      | not visible:    a later pass |
//!   | not visible:          a later pass          |                              |
//!   +--------------------------------------------+------------------------------+
//! ```
//!
//! A late row is one whose transaction was in progress in `snap`: `xact = ANY(xip(snap)) OR xact >=
//! xmax(snap)`. Both terms are needed, since transactions at or above `xmax` that were running are
//! not listed in `xip`. One statement reads the rows and the snapshot that it read them in;
//! settling writes `(last id read, that snapshot)`.
//!
//! **Draining.** When the late rows alone fill a batch, the new snapshot must not be written yet:
//! it would call late rows settled that were not sent. The cursor freezes instead: `target` is the
//! snapshot of that first read, `after` the last late id sent. Passes go on with the late rows
//! visible in `target` above `after`; when none is left, `snap = target`.
//!
//! **Prefixes.** A pass may end early: the broker went away in the middle. Rows are in id order, so
//! a settled prefix is a cursor like any other: inside the late rows it is a drain, inside the new
//! rows a lower `high`.
//!
//! **Order.** Producers that touch the same entity serialise on its row, so the earlier message has
//! the lower id and is visible no later than the later one. Late rows before new rows, by id, keeps
//! that order.
//!
//! **Other clusters.** A restored dump brings `xact` values and snapshots of another cluster.
//! `system_identifier` tells; so does an `xmax(snap)` from the future. Until `reset_until`, above
//! which no restored row lies, passes read the rows that are due by the *old* snapshot, old ids
//! against old snapshot, and raise `floor` as they go: rows up to `floor` are settled, with any
//! `xact`. That is safe, since no transaction of this cluster can still commit an id that low. At
//! the end a new snapshot starts. The reset sends no settled message again.
//!
//! **Ids that stand too low.** All this assumes that the id sequence is above every restored row.
//! Some restores break that: logical replication copies no sequence, and a sequence may be
//! restarted by hand. So maintenance compares them at its start and in each round; `repair_ids`
//! (`0004_operations.sql`) then waits for the transactions that have drawn ids, raises the
//! sequence, and parks, to be sent, the rows that were written here at or below the floor, all in
//! one transaction. If that came too late, retention still tells such a row from a restored one:
//! its system column `xmin` names the transaction that wrote it, and the snapshot of the moment of
//! the reset (table `reset`) does not see that transaction. Retention deletes such a row only after
//! a replay.

use serde::Serialize;

/// How far one lane is settled, as it was claimed; `snap` itself stays in the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cursor {
    /// Grows by one with each settlement.
    pub number: i64,
    /// Rows up to this id are settled, with any transaction id.
    pub floor: i64,
    /// The highest id settled, as far as the snapshot sees.
    pub high: i64,
    /// The snapshot whose late rows are being drained.
    pub target: Option<String>,
    /// The last late id sent of that drain.
    pub after: Option<i64>,
    /// Rows up to this id came with a dump from another cluster, whose transaction ids mean nothing
    /// here.
    pub reset_until: Option<i64>,
}

/// The new state of a lane, which settling writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Settlement {
    /// The number of the cursor that it replaces.
    pub number: i64,
    /// The new one; see [`Cursor`].
    pub floor: i64,
    /// The new one.
    pub high: i64,
    /// `None` keeps the old snapshot.
    pub snap: Option<String>,
    /// The new one.
    pub target: Option<String>,
    /// The new one.
    pub after: Option<i64>,
    /// The new one.
    pub reset_until: Option<i64>,
    /// The acknowledgements of streams, as JSON; `None` keeps the known ones.
    #[serde(skip)]
    pub acknowledged: Option<String>,
}

/// The rows that a pass read in one lane: ids in order, and whether a limit may have cut them.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// Their ids.
    pub ids: &'a [i64],
    /// A limit may have cut them.
    pub full: bool,
    /// The snapshot of the read; an older one when nothing was read.
    pub snapshot: &'a str,
}

impl Cursor {
    /// The cursor after the first `done` rows of a read were settled; `None` when it does not move.
    ///
    /// # Panics
    /// When `done` exceeds the rows read, or the database broke the order: a bug of ours.
    #[must_use]
    pub fn advance(&self, read: Read<'_>, done: usize) -> Option<Settlement> {
        assert!(done <= read.ids.len(), "settled more than was read");
        assert!(read.ids.is_sorted_by(|a, b| a < b), "rows come in id order");
        if self.reset_until.is_some() {
            self.advance_reset(read, done)
        } else if self.target.is_some() {
            self.advance_drain(read, done)
        } else {
            self.advance_log(read, done)
        }
    }

    fn advance_log(&self, read: Read<'_>, done: usize) -> Option<Settlement> {
        let last_done = *read.ids.get(done.checked_sub(1)?)?;
        let late = read.ids.partition_point(|id| *id <= self.high);
        let late_were_all_read = read.ids.len() > late || !read.full;
        let snapshot = Some(read.snapshot.to_owned());
        if done >= late && late_were_all_read {
            return Some(Settlement { high: last_done.max(self.high), snap: snapshot, ..self.unchanged() });
        }
        Some(Settlement { target: snapshot, after: Some(last_done), ..self.unchanged() })
    }

    fn advance_drain(&self, read: Read<'_>, done: usize) -> Option<Settlement> {
        if done == read.ids.len() && !read.full {
            return Some(Settlement { snap: self.target.clone(), ..self.unchanged() });
        }
        let last_done = *read.ids.get(done.checked_sub(1)?)?;
        Some(Settlement { target: self.target.clone(), after: Some(last_done), ..self.unchanged() })
    }

    /// Raises the floor; the old snapshot stays until every restored row is settled.
    fn advance_reset(&self, read: Read<'_>, done: usize) -> Option<Settlement> {
        let until = self.reset_until?;
        if done == read.ids.len() && !read.full {
            let floor = until.max(self.floor);
            let snap = Some(read.snapshot.to_owned());
            return Some(Settlement { floor, high: self.high.max(floor), snap, ..self.unchanged() });
        }
        let last_done = *read.ids.get(done.checked_sub(1)?)?;
        // A drain that the dump caught in the middle stays as it is: `after` may lie above the new
        // floor.
        Some(Settlement {
            floor: last_done,
            high: self.high.max(last_done),
            target: self.target.clone(),
            after: self.after,
            reset_until: self.reset_until,
            ..self.unchanged()
        })
    }

    /// The cursor as it stands, written again.
    #[must_use]
    pub fn standing(&self) -> Settlement {
        Settlement {
            target: self.target.clone(),
            after: self.after,
            reset_until: self.reset_until,
            ..self.unchanged()
        }
    }

    /// A settlement that moves nothing: floor and high stay, and so does the snapshot.
    fn unchanged(&self) -> Settlement {
        Settlement { number: self.number, floor: self.floor, high: self.high, ..Settlement::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(high: i64) -> Cursor {
        Cursor { number: 0, floor: 0, high, target: None, after: None, reset_until: None }
    }

    fn read(ids: &[i64], full: bool) -> Read<'_> {
        Read { ids, full, snapshot: "now" }
    }

    fn check(cursor: &Cursor, read: Read<'_>, done: usize, expected: Option<Settlement>) {
        assert_eq!(cursor.advance(read, done), expected, "{cursor:?} {read:?} {done}");
    }

    fn moved(high: i64) -> Option<Settlement> {
        Some(Settlement { high, snap: Some("now".into()), ..Settlement::default() })
    }

    fn frozen(high: i64, after: i64) -> Option<Settlement> {
        Some(Settlement { high, target: Some("now".into()), after: Some(after), ..Settlement::default() })
    }

    #[test]
    fn new_rows_move_high_to_the_last_settled() {
        check(&cursor(5), read(&[6, 7, 9], false), 3, moved(9));
        check(&cursor(5), read(&[6, 7, 9], true), 3, moved(9));
        check(&cursor(5), read(&[6, 7, 9], true), 1, moved(6));
        check(&cursor(5), read(&[6, 7, 9], true), 0, None);
        check(&cursor(5), read(&[], false), 0, None);
    }

    #[test]
    fn late_rows_allow_a_new_snapshot_only_when_all_are_settled() {
        check(&cursor(5), read(&[3, 4], false), 2, moved(5));
        check(&cursor(5), read(&[3, 4, 8], true), 3, moved(8));
        check(&cursor(5), read(&[3, 4, 8], true), 2, moved(5));
        check(&cursor(5), read(&[3, 4, 8], true), 1, frozen(5, 3));
        check(&cursor(5), read(&[3, 4], true), 2, frozen(5, 4));
        check(&cursor(5), read(&[3, 4], false), 1, frozen(5, 3));
    }

    #[test]
    fn a_drain_ends_with_its_target_as_the_snapshot() {
        let draining = Cursor { target: Some("then".into()), ..cursor(9) };
        let ended = Some(Settlement { high: 9, snap: Some("then".into()), ..Settlement::default() });
        let goes_on = |after| {
            Some(Settlement {
                high: 9,
                target: Some("then".into()),
                after: Some(after),
                ..Settlement::default()
            })
        };
        check(&draining, read(&[5, 6], true), 2, goes_on(6));
        check(&draining, read(&[5, 6], false), 1, goes_on(5));
        check(&draining, read(&[5, 6], false), 2, ended.clone());
        check(&draining, Read { ids: &[], full: false, snapshot: "now" }, 0, ended);
        check(&draining, read(&[5, 6], true), 0, None);
    }

    #[test]
    fn a_reset_raises_the_floor_and_ends_with_a_new_snapshot() {
        let reset = Cursor { floor: 2, reset_until: Some(20), ..cursor(9) };
        let raised =
            |floor, high| Some(Settlement { floor, high, reset_until: Some(20), ..Settlement::default() });
        check(&reset, read(&[5, 6], true), 2, raised(6, 9));
        check(&reset, read(&[5, 12], true), 2, raised(12, 12));
        check(&reset, read(&[5, 12], true), 0, None);
        let drain = Cursor { target: Some("then".into()), after: Some(8), ..reset.clone() };
        let kept = Settlement { target: Some("then".into()), after: Some(8), ..raised(5, 9).unwrap() };
        check(&drain, read(&[5, 6], true), 1, Some(kept));
        let ended = Settlement { floor: 20, high: 20, snap: Some("now".into()), ..Settlement::default() };
        check(&reset, read(&[5, 12], false), 2, Some(ended.clone()));
        check(&reset, read(&[], false), 0, Some(ended));
    }
}
