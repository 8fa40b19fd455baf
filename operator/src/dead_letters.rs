//! Dead letters of inboxes: list, show, retry, discard.

use std::time::SystemTime;

use oncebox_connect::{config::Config, error::RelayError, postgres::Parameter};
use oncebox_relay::facts::Letter;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    BATCH, Operator, execute, failed, is_selected,
    payload::{ShownPayload, shown_payload},
    query,
    resend::Resender,
    selection::DeadLetterSelection,
    shown::RowSet,
    time::{Rfc3339, Rfc3339Option},
};

/// A message that an inbox gave up, without headers and payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its number.
    pub id: i64,
    /// Who gave it up: `service:handler`.
    pub scope: String,
    /// Whose it was; empty where there is only one tenant.
    pub tenant: String,
    /// Its key; `None` when it had no valid one.
    pub key: Option<String>,
    /// Its subject.
    pub subject: String,
    /// The stream that it came from.
    pub stream: Option<String>,
    /// Its place there.
    pub stream_sequence: Option<i64>,
    /// How often it had been delivered.
    pub deliveries: i64,
    /// Why it was given up.
    pub reason: String,
    /// When.
    #[serde(with = "Rfc3339")]
    pub died_at: SystemTime,
    /// The size of its payload.
    pub payload_bytes: i64,
    /// The ordering key whose later messages wait behind it; `None` for one that holds up nothing.
    pub ordering_key: Option<String>,
    /// How many wait.
    pub behind: Option<i64>,
}

/// Dead letters of one inbox, of the newest 1,000 of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct DeadLetters {
    /// Who gave them up: `service:handler`.
    pub scope: String,
    /// How many.
    pub letters: i64,
    /// Whether there may be more, among letters that were not looked at.
    pub is_capped: bool,
    /// How many messages of their ordering keys wait behind them, 1,000 at most.
    pub behind: i64,
    /// When the newest was.
    #[serde(with = "Rfc3339")]
    pub newest_at: SystemTime,
    /// Why that one was.
    pub reason: String,
}

impl DeadLetters {
    pub(super) fn new(row: &Row) -> Self {
        Self {
            scope: row.get("scope"),
            letters: row.get("letters"),
            is_capped: row.get("is_capped"),
            behind: row.get("behind"),
            newest_at: row.get("newest_at"),
            reason: row.get("reason"),
        }
    }

    /// How many messages wait behind them, as the rest of a sentence.
    pub(super) fn waiting(&self) -> String {
        match self.behind {
            0 => String::new(),
            1 => "; 1 message of their ordering keys waits behind them".to_owned(),
            behind => {
                let at_least = if behind < 1000 { "" } else { "at least " };
                format!("; {at_least}{behind} messages of their ordering keys wait behind them")
            }
        }
    }
}

/// All about one dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct DeadLetterDetails {
    /// The columns of a list.
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// How its key stands in the inbox: `dead`, or with another payload `completed` or `rejected`;
    /// `None` when it is free.
    pub key_status: Option<String>,
    /// When the stream stored it.
    #[serde(with = "Rfc3339Option")]
    pub stored_at: Option<SystemTime>,
    /// All its headers, a JSON object; a name that occurred more than once has an array.
    pub headers: serde_json::Value,
    /// Its payload, if asked for.
    #[serde(flatten)]
    pub payload: Option<ShownPayload>,
}

impl Operator {
    /// Dead letters of inboxes in the order of their ids, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn dead_letters(
        &self,
        selection: &DeadLetterSelection,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, RelayError> {
        let (mut found, mut after) = (Vec::new(), Some(selection.after));
        while let Some(last) = after.filter(|_| found.len() < limit) {
            let rows = self.look_at_dead_letters(last, selection).await?;
            found.extend(rows.iter().filter(is_selected).map(dead_letter));
            after = next(&rows);
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Reads everything about the dead letter with this id, with so many bytes of its payload;
    /// `None` when there is none.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn dead_letter(
        &self,
        id: i64,
        payload_bytes_max: Option<i32>,
    ) -> Result<Option<DeadLetterDetails>, RelayError> {
        let rows = self.query("show a dead letter", &self.sql.letter, &[&id, &payload_bytes_max]).await?;
        Ok(rows.first().map(details))
    }

    /// Sends dead letters back to JetStream, `limit` at most, one after another; returns how many.
    /// Each is a new message at the end of its stream, with the same key, headers and payload. One
    /// that messages of its ordering key may wait behind is not sent: its consumer runs it before
    /// those.
    ///
    /// A letter is gone, and its key free, once JetStream has acknowledged the message. When the
    /// process dies between the two, both the letter and the message are there: the message is
    /// answered from the inbox as dead, and the letter can be retried again. Inboxes of other
    /// scopes that have handled the message answer it as a duplicate. `only` leaves out all letters
    /// but those of a set that was shown.
    ///
    /// # Errors
    /// PostgreSQL or NATS refused or went away: the letters so far are retried, and the same call
    /// goes on with the rest.
    pub async fn retry_dead_letters(
        &mut self,
        config: &Config,
        selection: &DeadLetterSelection,
        limit: Option<u64>,
        only: Option<&RowSet>,
    ) -> Result<u64, RelayError> {
        let resend = Resender::connect(config).await?;
        let (limit, mut done, mut after) = (limit.unwrap_or(u64::MAX), 0, Some(selection.after));
        // A letter that comes back while this runs is not retried again and again.
        let last_id = self.last_letter().await?;
        while let Some(last) = after.filter(|last| *last < last_id && done < limit) {
            let rows = self.look_at_dead_letters(last, selection).await?;
            for row in rows.iter().filter(is_selected) {
                let id: i64 = row.get("id");
                if done == limit || id > last_id {
                    return Ok(done);
                }
                if only.is_some_and(|only| !only.has(&id)) {
                    continue;
                }
                let resent = u64::from(self.resend_dead_letter(&resend, id).await?);
                self.pace.did(resent).await;
                done += resent;
            }
            after = next(&rows);
        }
        Ok(done)
    }

    /// Deletes dead letters, `limit` at most, a batch per transaction; returns how many. Their keys
    /// stay settled as dead, and messages that wait behind them run.
    ///
    /// `only` leaves out all letters but those of a set that was shown.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole batches are done, and the same call goes on with the
    /// rest.
    pub async fn discard_dead_letters(
        &mut self,
        selection: &DeadLetterSelection,
        limit: Option<u64>,
        only: Option<&RowSet>,
    ) -> Result<u64, RelayError> {
        let (limit, mut done, mut after) = (limit.unwrap_or(u64::MAX), 0, Some(selection.after));
        while let Some(last) = after.filter(|_| done < limit) {
            let rows = self.look_at_dead_letters(last, selection).await?;
            let room = usize::try_from(limit - done).unwrap_or(usize::MAX);
            let selected = rows.iter().filter(is_selected);
            let ids = selected.map(|row| row.get("id")).filter(|id| only.is_none_or(|only| only.has(id)));
            let ids: Vec<i64> = ids.take(room).collect();
            for ids in ids.chunks(self.pace.batch()) {
                let (stamp, sql) = (self.stamp.clone(), self.sql.discard_letters.clone());
                let transaction = self.begin().await?;
                let parameters: [&dyn Parameter; 3] = [&ids, &stamp.operator, &stamp.note];
                let gone = execute(&transaction, "discard dead letters", &sql, &parameters).await?;
                transaction.commit().await.map_err(failed("commit"))?;
                self.pace.did(gone).await;
                done += gone;
            }
            after = next(&rows);
        }
        Ok(done)
    }

    /// Adds the dead letters that match to a set, up to `limit`.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn find_dead_letters(
        &self,
        selection: &DeadLetterSelection,
        limit: Option<u64>,
        found: &mut RowSet,
    ) -> Result<(), RelayError> {
        let (limit, mut after) = (limit.unwrap_or(u64::MAX), Some(selection.after));
        while let Some(last) = after.filter(|_| found.count() < limit) {
            let rows = self.look_at_dead_letters(last, selection).await?;
            for row in rows.iter().filter(is_selected) {
                if found.count() < limit {
                    found.add(&row.get::<_, i64>("id"), row.get("created_at"));
                }
            }
            after = next(&rows);
        }
        Ok(())
    }

    /// Sends one letter back and deletes it, or puts it at the head of its line. False when it is
    /// gone already.
    async fn resend_dead_letter(&mut self, resend: &Resender, id: i64) -> Result<bool, RelayError> {
        let (stamp, sql) = (self.stamp.clone(), self.sql.retry_letter.clone());
        let sql_in_line = self.sql.retry_in_line.clone();
        let transaction = self.begin().await?;
        let parameters: [&dyn Parameter; 3] = [&id, &stamp.operator, &stamp.note];
        let in_line = query(&transaction, "retry a dead letter", &sql_in_line, &parameters).await?;
        if in_line.first().is_some_and(|row| row.get(0)) {
            transaction.commit().await.map_err(failed("commit"))?;
            return Ok(true);
        }
        let rows = query(&transaction, "retry a dead letter", &sql, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let returned = Letter {
            outbox: row.get("outbox"),
            key: row.get("key"),
            subject: row.get("subject"),
            headers: row.get("headers"),
            payload: row.get("payload"),
            number: row.get("number"),
        };
        resend.send(id, returned).await?;
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(true)
    }

    /// The ids of the letters that match.
    pub(super) async fn letter_ids(
        &self,
        selection: &DeadLetterSelection,
        limit: Option<u64>,
        only: Option<&RowSet>,
    ) -> Result<Vec<i64>, RelayError> {
        let limit = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let (mut found, mut after) = (Vec::new(), Some(selection.after));
        while let Some(last) = after.filter(|_| found.len() < limit) {
            let rows = self.look_at_dead_letters(last, selection).await?;
            let ids = rows.iter().filter(is_selected).map(|row| row.get::<_, i64>("id"));
            found.extend(ids.filter(|id| only.is_none_or(|only| only.has(id))));
            after = next(&rows);
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn last_letter(&self) -> Result<i64, RelayError> {
        let rows = self.query("read the last dead letter", &self.sql.last_letter, &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get(0)))
    }

    async fn look_at_dead_letters(
        &self,
        after: i64,
        selection: &DeadLetterSelection,
    ) -> Result<Vec<Row>, RelayError> {
        let DeadLetterSelection { id, key, scope, .. } = selection;
        let subject = selection.subject.as_ref().map(|pattern| pattern.expression());
        let reason = selection.reason.as_ref().map(|reason| reason.to_lowercase());
        let DeadLetterSelection { reason_is, subject_is, no_key, .. } = selection;
        let parameters: [&dyn Parameter; 10] =
            [&after, &BATCH, id, key, scope, &subject, &reason, reason_is, subject_is, no_key];
        self.query("look at dead letters", &self.sql.letters, &parameters).await
    }
}

/// Where the next page begins; `None` when these rows are the last.
fn next(rows: &[Row]) -> Option<i64> {
    let is_full = rows.len() >= usize::try_from(BATCH).unwrap_or(usize::MAX);
    rows.last().filter(|_| is_full).map(|row| row.get("id"))
}

fn dead_letter(row: &Row) -> DeadLetter {
    DeadLetter {
        id: row.get("id"),
        scope: row.get("scope"),
        tenant: row.get("tenant"),
        key: row.get("key"),
        subject: row.get("subject"),
        stream: row.get("stream"),
        stream_sequence: row.get("stream_sequence"),
        deliveries: row.get("deliveries"),
        reason: row.get("reason"),
        died_at: row.get("created_at"),
        payload_bytes: row.get("payload_bytes"),
        ordering_key: row.get("ordering_key"),
        behind: row.get("behind"),
    }
}

fn details(row: &Row) -> DeadLetterDetails {
    let headers: String = row.get("headers");
    DeadLetterDetails {
        letter: dead_letter(row),
        key_status: row.get("key_status"),
        stored_at: row.get("stored_at"),
        headers: serde_json::from_str(&headers).unwrap_or_default(),
        payload: shown_payload(row),
    }
}
