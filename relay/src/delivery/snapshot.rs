//! Snapshots of PostgreSQL, `xmin:xmax:xip`: which transactions had ended at a moment.

/// Every transaction below `xmax` has ended, but those that are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    xmax: u64,
    open: Vec<u64>,
}

impl Snapshot {
    /// From the text of a `pg_snapshot`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (_xmin, xmax, open) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
        let open: Result<_, _> = open.split(',').filter(|xact| !xact.is_empty()).map(str::parse).collect();
        Some(Self { xmax, open: open.ok()? })
    }

    /// Every transaction from here on had not ended, and perhaps not begun.
    pub fn xmax(&self) -> u64 {
        self.xmax
    }

    /// The transactions below `xmax` that were open.
    pub fn open(&self) -> &[u64] {
        &self.open
    }

    /// Whether no transaction has ended between this snapshot and a later one, but those given.
    pub fn is_same_but(&self, later: &Self, own: &[u64]) -> bool {
        let has_ended = |xact: &u64| !later.open.contains(xact) && !own.contains(xact);
        // A larger difference has transactions that are neither open nor our own: no need to look.
        let explained = later.open.len().saturating_add(own.len()) as u64;
        later.xmax >= self.xmax
            && later.xmax - self.xmax <= explained
            && !self.open.iter().any(has_ended)
            && !(self.xmax..later.xmax).any(|xact| has_ended(&xact))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ended(snapshot: &Snapshot) -> BTreeSet<u64> {
        (0..snapshot.xmax).filter(|xact| !snapshot.open.contains(xact)).collect()
    }

    /// The snapshot of PostgreSQL when these have ended, of transactions that began in turn.
    fn snapshot(ended: &BTreeSet<u64>) -> Snapshot {
        let xmax = ended.last().map_or(0, |last| last + 1);
        Snapshot { xmax, open: (0..xmax).filter(|xact| !ended.contains(xact)).collect() }
    }

    proptest! {
        #[test]
        fn what_has_ended_is_the_difference(
            before in prop::collection::btree_set(0_u64..12, 0..12),
            since in prop::collection::btree_set(0_u64..14, 0..4),
            own in prop::collection::vec(0_u64..14, 0..3),
        ) {
            let (before, later) = (snapshot(&before), snapshot(&before.union(&since).copied().collect()));
            let new: Vec<u64> = ended(&later).difference(&ended(&before)).copied().collect();
            let expected = new.iter().all(|xact| own.contains(xact));
            prop_assert_eq!(before.is_same_but(&later, &own), expected, "{:?} {:?}", before, later);
        }
    }

    #[test]
    fn it_is_read_as_postgresql_writes_it() {
        assert_eq!(Snapshot::parse("3:9:3,5"), Some(Snapshot { xmax: 9, open: vec![3, 5] }));
        assert_eq!(Snapshot::parse("9:9:"), Some(Snapshot { xmax: 9, open: vec![] }));
        assert_eq!([Snapshot::parse(""), Snapshot::parse("9"), Snapshot::parse("1:2:x")], [None, None, None]);
    }

    proptest! {
        #[test]
        fn a_snapshot_of_any_text_is_read(text in "([0-9]{1,20}|:|,|.){0,12}") {
            if let Some(snapshot) = Snapshot::parse(&text) {
                prop_assert!(snapshot.open().len() <= text.len());
                prop_assert!(snapshot.is_same_but(&snapshot, &[]) || snapshot.open().iter().any(|open| *open >= snapshot.xmax()));
            }
        }
    }
}
