//! Delayed messages: list and cancel.

use std::time::SystemTime;

use oncebox_connect::{error::RelayError, postgres::Parameter};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use super::{BATCH, Operator, SubjectPattern, execute, failed, is_selected, shown::RowSet, time::Rfc3339};

/// Which delayed messages are meant: those that match all that is given; nothing given means all.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "a caller fills in what it selects by")]
pub struct DelayedSelection {
    /// The message with this key.
    pub key: Option<String>,
    /// Messages with such a subject.
    pub subject: Option<SubjectPattern>,
    /// Messages with this ordering key.
    pub ordering_key: Option<String>,
    /// Messages due at this time, behind this id, or later, where a page begins.
    pub after: Option<(SystemTime, i64)>,
}

impl DelayedSelection {
    /// Whether everything is meant.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.key.is_none() && self.subject.is_none() && self.ordering_key.is_none()
    }
}

/// A message that waits for its time, without headers and payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct DelayedMessage {
    /// Its key.
    pub key: String,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// When it is due.
    #[serde(with = "Rfc3339")]
    pub not_before: SystemTime,
    /// When it was enqueued.
    #[serde(with = "Rfc3339")]
    pub created_at: SystemTime,
    /// The size of its payload.
    pub payload_bytes: i64,
    /// Its number, for the page behind it.
    #[serde(skip)]
    pub id: i64,
}

/// A part of the messages that were looked at.
struct Page {
    selected: Vec<DelayedMessage>,
    /// Where the next one begins; `None` when this was the last.
    next: Option<(SystemTime, i64)>,
}

const BEGINNING: (SystemTime, i64) = (SystemTime::UNIX_EPOCH, 0);

impl Operator {
    /// Delayed messages in the order of their times, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn delayed(
        &self,
        selection: &DelayedSelection,
        limit: usize,
    ) -> Result<Vec<DelayedMessage>, RelayError> {
        let (mut found, mut from) = (Vec::new(), Some(selection.after.unwrap_or(BEGINNING)));
        while let Some(after) = from.filter(|_| found.len() < limit) {
            let page = self.look_delayed(selection, after).await?;
            found.extend(page.selected);
            from = page.next;
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Cancels delayed messages, `limit` at most, a batch per transaction; returns how many. It
    /// neither cancels nor counts a message that is in the log by then. `only` leaves out all
    /// messages but those of a set that was shown.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole batches are done, and the same call goes on.
    pub async fn cancel_delayed(
        &mut self,
        selection: &DelayedSelection,
        limit: Option<u64>,
        only: Option<&RowSet>,
    ) -> Result<u64, RelayError> {
        let limit = limit.unwrap_or(u64::MAX);
        let (mut done, mut from) = (0, Some(selection.after.unwrap_or(BEGINNING)));
        while let Some(after) = from.filter(|_| done < limit) {
            let page = self.look_delayed(selection, after).await?;
            let room = usize::try_from(limit - done).unwrap_or(usize::MAX);
            let meant = page.selected.into_iter().filter(|one| only.is_none_or(|only| only.has(&one.id)));
            let keys: Vec<String> = meant.map(|message| message.key).take(room).collect();
            for keys in keys.chunks(self.pace.batch()) {
                let cancelled = self.cancel_keys(keys).await?;
                self.pace.did(cancelled).await;
                done += cancelled;
            }
            from = page.next;
        }
        Ok(done)
    }

    /// Adds the delayed messages that match to a set, up to `limit`.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn find_delayed(
        &self,
        selection: &DelayedSelection,
        limit: Option<u64>,
        found: &mut RowSet,
    ) -> Result<(), RelayError> {
        let limit = limit.unwrap_or(u64::MAX);
        let mut from = Some(selection.after.unwrap_or(BEGINNING));
        while let Some(after) = from.filter(|_| found.count() < limit) {
            let page = self.look_delayed(selection, after).await?;
            for message in page.selected {
                if found.count() < limit {
                    found.add(&message.id, message.created_at);
                }
            }
            from = page.next;
        }
        Ok(())
    }

    async fn cancel_keys(&mut self, keys: &[String]) -> Result<u64, RelayError> {
        let (stamp, sql) = (self.stamp.clone(), self.sql.cancel_delayed.clone());
        let transaction = self.begin().await?;
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let parameters: [&dyn Parameter; 3] = [&keys, &stamp.operator, &stamp.note];
        let done = execute(&transaction, "cancel delayed messages", &sql, &parameters).await?;
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(done)
    }

    async fn look_delayed(
        &self,
        selection: &DelayedSelection,
        (after, after_id): (SystemTime, i64),
    ) -> Result<Page, RelayError> {
        let subject = selection.subject.as_ref().map(SubjectPattern::expression);
        let DelayedSelection { key, ordering_key, .. } = selection;
        let parameters: [&dyn Parameter; 6] = [&after, &after_id, &BATCH, key, &subject, ordering_key];
        let rows = self.query("look at delayed messages", &self.sql.look_delayed, &parameters).await?;
        let is_full = rows.len() as i64 >= BATCH;
        let next = rows.last().filter(|_| is_full).map(|row| (row.get("not_before"), row.get("id")));
        let selected = rows.iter().filter(is_selected).map(delayed_message).collect();
        Ok(Page { selected, next })
    }
}

fn delayed_message(row: &Row) -> DelayedMessage {
    DelayedMessage {
        key: row.get("key"),
        subject: row.get("subject"),
        ordering_key: row.get("ordering_key"),
        not_before: row.get("not_before"),
        created_at: row.get("created_at"),
        payload_bytes: row.get("payload_bytes"),
        id: row.get("id"),
    }
}
