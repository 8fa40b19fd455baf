//! The two sentences that the cursor rests on, in the words of the essay in `cursor.rs`: which rows
//! are settled, and which are due. The exhaustive checks and the checker of traces share them, so
//! that the specification and the recordings of real relays are held to the same rule.

/// Where a lane stands, but for its snapshots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<Id> {
    pub(crate) floor: Id,
    pub(crate) high: Id,
    pub(crate) after: Option<Id>,
}

/// Whether the cursor's snapshots see the transaction of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) in_snap: bool,
    pub(crate) in_target: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Late,
    New,
}

impl<Id: Ord + Copy> Place<Id> {
    /// Whether a row is settled.
    pub(crate) fn calls_settled(self, id: Id, seen: Seen) -> bool {
        let is_drained = seen.in_target == Some(true) && self.after.is_some_and(|after| id <= after);
        id <= self.floor || id <= self.high && (seen.in_snap || is_drained)
    }

    /// Whether `read.sql` finds a row, once it is visible.
    pub(crate) fn due(self, id: Id, seen: Seen) -> Option<Due> {
        if id > self.high {
            return seen.in_target.is_none().then_some(Due::New);
        }
        let is_above = id > self.floor && self.after.is_none_or(|after| id > after);
        (is_above && !seen.in_snap && seen.in_target.unwrap_or(true)).then_some(Due::Late)
    }
}
