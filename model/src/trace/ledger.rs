//! The database's own ledger: all that was committed.

use std::collections::{BTreeMap, BTreeSet};

use oncebox_relay::rules;
use serde::Deserialize;

use super::line::{Cursor, Stand, sees};

/// The ledger of an outbox.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(super) outbox: String,
    pub(super) lanes: BTreeMap<i16, Lane>,
    pub(super) cursors: Vec<Cursor>,
}

/// The messages of a lane.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    pub(super) rows: BTreeMap<i64, Message>,
    by_xact: BTreeSet<(u64, i64)>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Message {
    pub(super) lane: i16,
    pub(super) id: i64,
    /// `PostgreSQL` writes it as text.
    #[serde(deserialize_with = "number")]
    pub(super) xact: u64,
    pub(super) ordering_key: Option<String>,
    /// Parked, dead or discarded.
    pub(super) is_aside: bool,
}

#[derive(Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
enum Entry {
    Outbox { id: String },
    Message(Message),
    Cursor(Cursor),
}

impl Ledger {
    /// From the rows of [`super::LEDGER`].
    ///
    /// # Errors
    /// A line is none of these rows.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self, serde_json::Error> {
        let mut ledger = Self::default();
        for line in lines {
            match serde_json::from_str(line)? {
                Entry::Outbox { id } => ledger.outbox = id,
                Entry::Cursor(cursor) => ledger.cursors.push(cursor),
                Entry::Message(message) => {
                    let lane = ledger.lanes.entry(message.lane).or_default();
                    lane.by_xact.insert((message.xact, message.id));
                    lane.rows.insert(message.id, message);
                }
            }
        }
        Ok(ledger)
    }
}

impl Lane {
    /// The ids that `read.sql` has to find, late ones first; their ids are the lower ones. One more
    /// than `most` is enough to see that there are more.
    pub(super) fn due(&self, cursor: &Stand, snapshot: &rules::Snapshot, most: usize) -> Vec<i64> {
        let is_due =
            |xact: u64, id: i64| sees(snapshot, xact) && cursor.place().due(id, cursor.seen(xact)).is_some();
        let high = cursor.place().high;
        let from = self.by_xact.range((cursor.oldest_late(), 0)..);
        let late: BTreeSet<i64> =
            from.filter(|(xact, id)| *id <= high && is_due(*xact, *id)).map(|(_, id)| *id).collect();
        let new = self.rows.range(high + 1..).filter(|(id, row)| is_due(row.xact, **id)).map(|(id, _)| *id);
        late.into_iter().chain(new).take(most + 1).collect()
    }

    /// The rows that one of two cursors may call settled and the other not: transaction and id.
    pub(super) fn concerned(&self, old: &Stand, new: &Stand) -> BTreeSet<(u64, i64)> {
        let above = self.rows.range(old.place().high.min(new.place().high) + 1..);
        let late = self.by_xact.range((old.oldest_late().min(new.oldest_late()), 0)..);
        let highest = old.place().high.max(new.place().high);
        let above = above.take_while(|(id, _)| **id <= highest).map(|(id, row)| (row.xact, *id));
        above.chain(late.filter(|(_, id)| *id <= highest).copied()).collect()
    }
}

fn number<'de, D: serde::Deserializer<'de>>(of: D) -> Result<u64, D::Error> {
    String::deserialize(of)?.parse().map_err(serde::de::Error::custom)
}
