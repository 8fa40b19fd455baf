//! Dead messages: list, show, retry, discard.

use std::time::SystemTime;

use serde::{Serialize, Serializer};
use tokio_postgres::Row;

use super::{BATCH, Operator, execute, failed, query};
use crate::{relay::RelayError, selection::DeadSelection, store::parameter::Parameter};

/// How far `behind` of a [`ParkedMessage`] counts.
const BEHIND_MAX: i64 = 100_000;

/// What to do with dead messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadAction {
    /// Due again, with no attempt spent.
    Retry,
    /// Given up for good: never published; what waits behind goes on.
    Discard,
}

/// A dead message, without headers and payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadMessage {
    /// Its place in the log.
    pub id: i64,
    /// Its lane.
    pub lane: i16,
    /// Its key.
    pub key: String,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// How often it was tried in vain.
    pub attempts: i32,
    /// When it was given up; `None` when it is parked and will be tried again.
    #[serde(serialize_with = "rfc3339_option")]
    pub died_at: Option<SystemTime>,
    /// Why.
    pub reason: String,
    /// 0, or the number of the replay that failed.
    pub replay: i32,
    /// When it was enqueued.
    #[serde(serialize_with = "rfc3339")]
    pub created_at: SystemTime,
    /// The size of its payload.
    pub payload_bytes: i64,
}

/// All about one parked or dead message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ParkedMessage {
    /// What a list tells.
    #[serde(flatten)]
    pub message: DeadMessage,
    /// `dead`, `due` (to be tried again) or `waiting` (behind another of its ordering key).
    pub state: &'static str,
    /// When it was set aside.
    #[serde(serialize_with = "rfc3339")]
    pub parked_at: SystemTime,
    /// When it is tried again.
    #[serde(serialize_with = "rfc3339_option")]
    pub next_attempt_at: Option<SystemTime>,
    /// Its own headers, a JSON object.
    pub headers: serde_json::Value,
    /// How many messages of its ordering key wait behind it, counted to 100,000.
    pub behind: i64,
    /// Its payload, if asked for: text as it is, else hexadecimal digits after `\x`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
}

impl Operator {
    /// Dead messages in the order of their ids, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn dead(
        &self,
        selection: &DeadSelection,
        limit: usize,
    ) -> Result<Vec<DeadMessage>, RelayError> {
        let Some(Scan { lanes, mut after, last }) = self.scan(selection).await? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        loop {
            let rows = self.look(&lanes, after, selection).await?;
            found.extend(rows.iter().filter(|row| row.get("selected")).map(dead_message));
            match rows.last() {
                Some(row) if found.len() < limit && !is_last(&rows, last) => after = row.get("id"),
                _ => break,
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// All about the parked or dead message with this key; `None` when there is none.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn show(&self, key: &str, with_payload: bool) -> Result<Option<ParkedMessage>, RelayError> {
        let parameters: [&dyn Parameter; 3] = [&key, &with_payload, &BEHIND_MAX];
        let rows = self.query("show a message", &self.sql.show, &parameters).await?;
        Ok(rows.first().map(parked_message))
    }

    /// Retries or discards dead messages, `limit` at most, a batch per transaction; returns how many. A dry run only
    /// counts them.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole batches are done, and the same call goes on with the rest.
    pub async fn act(
        &mut self,
        action: DeadAction,
        selection: &DeadSelection,
        limit: Option<u64>,
        dry_run: bool,
    ) -> Result<u64, RelayError> {
        let Some(Scan { lanes, after, last }) = self.scan(selection).await? else { return Ok(0) };
        let limit = limit.unwrap_or(u64::MAX);
        let mut done = 0;
        for lane in lanes {
            let mut after = after;
            while done < limit {
                let rows = self.look(&[lane], after, selection).await?;
                let room = usize::try_from(limit - done).unwrap_or(usize::MAX);
                let selected = rows.iter().filter(|row| row.get("selected"));
                let ids: Vec<i64> = selected.map(|row| row.get("id")).take(room).collect();
                done += match dry_run {
                    true => ids.len() as u64,
                    false if ids.is_empty() => 0,
                    false => self.act_on(action, lane, &ids).await?,
                };
                match rows.last() {
                    Some(row) if !is_last(&rows, last) => after = row.get("id"),
                    _ => break,
                }
            }
        }
        Ok(done)
    }

    /// One batch. Under the lane's lock the statement asks again what is dead: somebody else may act as well.
    async fn act_on(&mut self, action: DeadAction, lane: i16, ids: &[i64]) -> Result<u64, RelayError> {
        let (stamp, sql, schema) = (self.stamp.clone(), self.sql.clone(), self.schema.clone());
        let transaction = self.begin().await?;
        query(&transaction, "lock a lane", &sql.lock_lane, &[&lane]).await?;
        let (what, statement) = match action {
            DeadAction::Retry => ("retry messages", &sql.retry),
            DeadAction::Discard => ("discard messages", &sql.discard),
        };
        let parameters: [&dyn Parameter; 4] = [&lane, &ids, &stamp.operator, &stamp.note];
        let done = execute(&transaction, what, statement, &parameters).await?;
        if action == DeadAction::Discard {
            execute(&transaction, "release messages", &sql.follow, &[&lane, &ids]).await?;
        }
        query(&transaction, "wake the relays", &sql.wake, &[&schema.as_str()]).await?;
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(done)
    }

    async fn look(
        &self,
        lanes: &[i16],
        after: i64,
        selection: &DeadSelection,
    ) -> Result<Vec<Row>, RelayError> {
        let subject = selection.subject.as_ref().map(|pattern| pattern.expression());
        let reason = selection.reason.as_ref().map(|reason| reason.to_lowercase());
        let parameters: [&dyn Parameter; 7] =
            [&lanes, &after, &BATCH, &selection.key, &subject, &reason, &selection.ordering_key];
        self.query("look at dead messages", &self.sql.dead, &parameters).await
    }

    /// Where selected messages can be; `None` for nowhere.
    async fn scan(&self, selection: &DeadSelection) -> Result<Option<Scan>, RelayError> {
        if let Some(key) = &selection.key {
            let found = self.find_key(key).await?;
            return Ok(found.map(|(lane, id)| Scan { lanes: vec![lane], after: id - 1, last: id }));
        }
        let lanes = match &selection.ordering_key {
            Some(ordering_key) => {
                let rows = self.query("find a lane", &self.sql.lane_of, &[ordering_key]).await?;
                rows.iter().map(|row| row.get(0)).collect()
            }
            None => self.lanes().await?,
        };
        Ok(Some(Scan { lanes, after: 0, last: i64::MAX }))
    }
}

struct Scan {
    lanes: Vec<i16>,
    after: i64,
    last: i64,
}

/// Whether nothing is left to look at after these rows.
fn is_last(rows: &[Row], last: i64) -> bool {
    rows.len() < usize::try_from(BATCH).unwrap_or(usize::MAX)
        || rows.last().is_none_or(|row| row.get::<_, i64>("id") >= last)
}

fn dead_message(row: &Row) -> DeadMessage {
    DeadMessage {
        id: row.get("id"),
        lane: row.get("lane"),
        key: row.get("key"),
        subject: row.get("subject"),
        ordering_key: row.get("ordering_key"),
        attempts: row.get("attempts"),
        died_at: row.get("dead_at"),
        reason: row.get("error"),
        replay: row.get("replay"),
        created_at: row.get("created_at"),
        payload_bytes: row.get("payload_bytes"),
    }
}

fn parked_message(row: &Row) -> ParkedMessage {
    let message = dead_message(row);
    let next_attempt_at: Option<SystemTime> = row.get("next_attempt_at");
    let headers: String = row.get("headers");
    ParkedMessage {
        state: match (message.died_at, next_attempt_at) {
            (Some(_), _) => "dead",
            (None, Some(_)) => "due",
            (None, None) => "waiting",
        },
        message,
        parked_at: row.get("parked_at"),
        next_attempt_at,
        headers: serde_json::from_str(&headers).unwrap_or_default(),
        behind: row.get("behind"),
        payload: row.get::<_, Option<Vec<u8>>>("payload").map(printable),
    }
}

pub(super) fn printable(payload: Vec<u8>) -> String {
    String::from_utf8(payload).unwrap_or_else(|error| {
        let digits = error.as_bytes().iter().map(|byte| format!("{byte:02x}"));
        std::iter::once("\\x".to_owned()).chain(digits).collect()
    })
}

pub(super) fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_micros(*time))
}

pub(super) fn rfc3339_option<S: Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => rfc3339(time, serializer),
        None => serializer.serialize_none(),
    }
}
