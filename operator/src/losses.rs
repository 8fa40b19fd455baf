//! Losses of streams after their acknowledgement: their state, and their repair by hand.

use std::time::SystemTime;

use oncebox_connect::{error::RelayError, postgres::Parameter, words::counted};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use super::{Operator, query, time::Rfc3339};

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
        Self {
            stream: row.get("stream"),
            state: row.get("state"),
            kind: row.get("kind"),
            lanes: row.get("lanes"),
            sequence: row.get("sequence"),
            lost_sequence: row.get("lost_sequence"),
            found_at: row.get("found_at"),
        }
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
    /// Has the relays send again the messages that a stream acknowledged and then lost, as far as
    /// relays have reported the loss; returns how many messages come into question. A dry run only
    /// counts them. If the stream still has some of them, it answers that they are duplicates,
    /// within its window.
    ///
    /// With `since`, leaves out messages settled before the last milestone that is older than
    /// `since`: for a stream that was made anew on purpose.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole lanes are done, and the same call goes on with the
    /// rest.
    pub async fn resend(
        &mut self,
        stream: &str,
        since: Option<SystemTime>,
        dry_run: bool,
    ) -> Result<Option<u64>, RelayError> {
        let rows = self.query("find what was lost", &self.sql.lost_lanes, &[&stream]).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let (sql, stamp) = (self.sql.clone(), self.stamp.clone());
        let mut messages = 0;
        for lane in rows.iter().map(|row| row.get::<_, i16>(0)) {
            let transaction = self.begin().await?;
            let parameters: [&dyn Parameter; 5] = [&lane, &stream, &since, &stamp.operator, &stamp.note];
            let rows = match dry_run {
                true => query(&transaction, "count what was lost", &sql.count_lost, &parameters[..3]).await?,
                false => query(&transaction, "send again what was lost", &sql.resend, &parameters).await?,
            };
            messages += rows.first().map_or(0, |row| row.get::<_, i64>("messages").unsigned_abs());
            transaction.commit().await.map_err(super::failed("commit"))?;
        }
        Ok(Some(messages))
    }
}
