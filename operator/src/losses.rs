//! Losses of streams after their acknowledgement: their state, and their repair by hand.

use std::{collections::BTreeMap, time::SystemTime};

use oncebox_connect::{error::RelayError, postgres::Parameter, words::counted};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    Operator,
    action::Done,
    columns::columns,
    query,
    selection::{Moment, Selection},
    shown::RowSet,
    time::Rfc3339,
};

/// A stream's loss of messages that it had acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct LossStatus {
    /// The stream.
    pub stream: String,
    /// `reported`, `being sent again` or `sent again`.
    pub state: String,
    /// `tail`: its end is missing. `restored`: the same, since a backup of it was restored.
    /// `recreated`: it was made anew. `unproven`: nothing is left that
    /// proves up to where it is whole.
    pub kind: String,
    /// Of how many lanes.
    pub lanes: i64,
    /// The stream has the acknowledged messages at least up to here.
    pub sequence: i64,
    /// The highest sequence that it had acknowledged.
    pub lost_sequence: i64,
    /// When that was found.
    #[serde(with = "Rfc3339")]
    pub found_at: SystemTime,
}

impl LossStatus {
    pub(crate) fn new(row: &Row) -> Self {
        columns!(row => Self {
            stream, state, kind, lanes, sequence, lost_sequence, found_at
        })
    }

    /// Which messages are gone, and how many at most.
    pub(crate) fn what(&self) -> String {
        let Self { stream, kind, lanes, sequence, lost_sequence, .. } = self;
        let what = match kind.as_str() {
            "recreated" => {
                format!(
                    "stream {stream} was made anew: what it had acknowledged, up to {lost_sequence}, is gone"
                )
            }
            "tail" => format!("stream {stream} has lost messages between {sequence} and {lost_sequence}"),
            "restored" => format!(
                "stream {stream} was restored from a backup, without messages between {sequence} and {lost_sequence}"
            ),
            _ => format!(
                "stream {stream} has lost messages up to {lost_sequence}, and it is not known from where on"
            ),
        };
        format!("{what} ({})", counted(lanes, "lane"))
    }

    /// Whether somebody must have it sent again.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        self.state == "reported"
    }
}

impl Operator {
    /// Takes into the set each loss of a stream that relays have reported and nobody has had sent
    /// again; counts the messages that come into question. A loss that is found later changes the
    /// set: its lane is sent again as a whole.
    pub(crate) async fn find_losses(
        &self,
        of: &Selection,
        rows: &mut RowSet,
        done: &mut Done,
    ) -> Result<(), RelayError> {
        let (stream, since) = of_stream(of);
        let lost = self.lost(stream, since).await?;
        let until = rows.until();
        lost.values().flatten().for_each(|loss| rows.add(loss, until));
        for lane in lost.keys() {
            let parameters: [&dyn Parameter; 3] = [lane, &stream, &since];
            let found = self.query("count what was lost", &self.sql.count_lost, &parameters).await?;
            done.done += counted_by(&found);
            done.losses += 1;
        }
        Ok(())
    }

    /// Has the relays send again the messages that a stream acknowledged and then lost, as far as
    /// relays have reported the loss; counts the messages that come into question. With a set,
    /// leaves alone the lanes with a loss that is not in it. If the stream still has some of the
    /// messages, it answers that they are duplicates, within its window.
    ///
    /// With `since`, leaves out messages settled before the last milestone that is older than
    /// `since`: for a stream that was made anew on purpose.
    pub(crate) async fn resend(
        &mut self,
        of: &Selection,
        only: Option<&RowSet>,
        done: &mut Done,
    ) -> Result<(), RelayError> {
        let (stream, since) = of_stream(of);
        let mut lost = self.lost(stream, since).await?;
        lost.retain(|_, losses| only.is_none_or(|rows| losses.iter().all(|loss| rows.has(loss))));
        let (sql, stamp) = (self.sql.clone(), self.stamp.clone());
        for lane in lost.keys() {
            let transaction = self.begin().await?;
            let parameters: [&dyn Parameter; 5] = [lane, &stream, &since, &stamp.operator, &stamp.note];
            let sent = query(&transaction, "send again what was lost", &sql.resend, &parameters).await?;
            transaction.commit().await.map_err(super::failed("commit"))?;
            done.done += counted_by(&sent);
            done.losses += 1;
        }
        Ok(())
    }

    /// The losses of each lane, with the time that the operator gave: another one is another set.
    async fn lost(
        &self,
        stream: &str,
        since: Option<SystemTime>,
    ) -> Result<BTreeMap<i16, Vec<String>>, RelayError> {
        let since = since.map(humantime::format_rfc3339_micros);
        let since = since.map(|since| format!(" since {since}")).unwrap_or_default();
        let mut lost: BTreeMap<i16, Vec<String>> = BTreeMap::new();
        for row in self.query("find what was lost", &self.sql.find_lost, &[&stream]).await? {
            let loss = format!("{stream} {}{since}", row.get::<_, &str>("loss"));
            lost.entry(row.get("lane")).or_default().push(loss);
        }
        Ok(lost)
    }
}

fn of_stream(of: &Selection) -> (&str, Option<SystemTime>) {
    (of.stream.as_deref().unwrap_or_default(), of.since.and_then(Moment::time))
}

fn counted_by(rows: &[Row]) -> u64 {
    rows.first().map_or(0, |row| row.get::<_, i64>("messages").unsigned_abs())
}
