//! Messages set aside - dead ones, parked ones, replays: list, show, retry, give up.

use std::time::SystemTime;

use oncebox_connect::{error::RelayError, postgres::Parameter};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    BATCH, Operator, execute, failed, is_selected,
    payload::{ShownPayload, shown_payload},
    query,
    selection::{ParkedKind, ParkedSelection},
    shown::RowSet,
    time::{Rfc3339, Rfc3339Option},
};

/// How far `behind` of a [`ParkedDetails`] counts.
const BEHIND_MAX: i64 = 100_000;

/// The actions on messages that are set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkedAction {
    /// Dead ones become due again, with no attempt spent.
    Retry,
    /// Given up for good: no relay sends the message, and the messages behind it go on. Of a replay
    /// only that copy is given up: its message was stored once, and can be replayed again.
    GiveUp(ParkedKind),
}

impl ParkedAction {
    /// The kind that it acts on.
    #[must_use]
    pub fn kind(self) -> ParkedKind {
        match self {
            Self::Retry => ParkedKind::Dead,
            Self::GiveUp(aside) => aside,
        }
    }
}

/// A message that is set aside, without headers and payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ParkedMessage {
    /// Its place in the log.
    pub id: i64,
    /// Its lane.
    pub lane: i16,
    /// Its key, which every command takes.
    pub key: String,
    /// `dead`, `parked` (to be tried again) or `waiting` (behind another of its ordering key, or
    /// with others of which a few are tried), as in a trace: of the message, or of its replay if
    /// that has a number.
    pub state: &'static str,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// How often it was tried in vain.
    pub attempts: i32,
    /// When it is tried again.
    #[serde(with = "Rfc3339Option")]
    pub next_attempt_at: Option<SystemTime>,
    /// When it died; `None` when it is parked and will be tried again.
    #[serde(with = "Rfc3339Option")]
    pub died_at: Option<SystemTime>,
    /// Why.
    pub reason: String,
    /// 0 for a message that was never stored, else the number of the replay that is meant.
    pub replay: i32,
    /// When it was enqueued.
    #[serde(with = "Rfc3339")]
    pub created_at: SystemTime,
    /// The size of its payload.
    pub payload_bytes: i64,
}

/// All about one parked or dead message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ParkedDetails {
    /// The columns of a list.
    #[serde(flatten)]
    pub message: ParkedMessage,
    /// When it was set aside.
    #[serde(with = "Rfc3339")]
    pub parked_at: SystemTime,
    /// Its own headers, a JSON object.
    pub headers: serde_json::Value,
    /// How many messages of its ordering key wait behind it, counted to 100,000.
    pub behind: i64,
    /// Its payload, if asked for.
    #[serde(flatten)]
    pub payload: Option<ShownPayload>,
}

impl Operator {
    /// The messages and replays that are set aside, in the order of ids, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn parked(
        &self,
        kind: ParkedKind,
        selection: &ParkedSelection,
        limit: usize,
    ) -> Result<Vec<ParkedMessage>, RelayError> {
        let Some(Scan { lanes, mut after, last }) = self.scan(selection).await? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        loop {
            let rows = self.look(kind, &lanes, after, selection).await?;
            found.extend(rows.iter().filter(is_selected).map(parked_message));
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
    pub async fn show(&self, key: &str, with_payload: bool) -> Result<Option<ParkedDetails>, RelayError> {
        let parameters: [&dyn Parameter; 3] = [&key, &with_payload, &BEHIND_MAX];
        let rows = self.query("show a message", &self.sql.show, &parameters).await?;
        Ok(rows.first().map(parked_details))
    }

    /// Retries or gives up messages and replays that are set aside, `limit` at most, a batch per
    /// transaction; returns how many. `only` leaves out all but those of a set that was shown.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole batches are done, and the same call goes on with the
    /// rest.
    pub async fn act(
        &mut self,
        action: ParkedAction,
        selection: &ParkedSelection,
        limit: Option<u64>,
        only: Option<&RowSet>,
    ) -> Result<u64, RelayError> {
        let Some(Scan { lanes, after, last }) = self.scan(selection).await? else { return Ok(0) };
        let limit = limit.unwrap_or(u64::MAX);
        let mut done = 0;
        for lane in lanes {
            let mut after = after;
            while done < limit {
                let rows = self.look(action.kind(), &[lane], after, selection).await?;
                let room = usize::try_from(limit - done).unwrap_or(usize::MAX);
                let selected = rows.iter().filter(is_selected).map(|row| row.get("id"));
                let selected = selected.filter(|id| only.is_none_or(|only| only.has(id)));
                let ids: Vec<i64> = selected.take(room).collect();
                done += self.act_in_batches(action, lane, &ids).await?;
                match rows.last() {
                    Some(row) if !is_last(&rows, last) => after = row.get("id"),
                    _ => break,
                }
            }
        }
        Ok(done)
    }

    /// Adds the messages and replays that match to a set, up to `limit`, in the order in which
    /// [`Operator::act`] takes them.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn find_parked(
        &self,
        kind: ParkedKind,
        selection: &ParkedSelection,
        limit: Option<u64>,
        found: &mut RowSet,
    ) -> Result<(), RelayError> {
        let Some(Scan { lanes, after, last }) = self.scan(selection).await? else { return Ok(()) };
        let limit = limit.unwrap_or(u64::MAX);
        for lane in lanes {
            let mut after = after;
            while found.count() < limit {
                let rows = self.look(kind, &[lane], after, selection).await?;
                for row in rows.iter().filter(is_selected) {
                    let died_at: Option<SystemTime> = row.get("dead_at");
                    if found.count() < limit {
                        let came_at = died_at.unwrap_or_else(|| row.get("parked_at"));
                        found.add(&row.get::<_, i64>("id"), came_at);
                    }
                }
                match rows.last() {
                    Some(row) if !is_last(&rows, last) => after = row.get("id"),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// The lanes and ids of the messages and replays that match.
    pub(super) async fn parked_ids(
        &self,
        kind: ParkedKind,
        selection: &ParkedSelection,
        limit: Option<u64>,
        only: Option<&RowSet>,
    ) -> Result<Vec<(i16, i64)>, RelayError> {
        let limit = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let found = self.parked(kind, selection, usize::MAX).await?;
        let ids = found.iter().map(|message| (message.lane, message.id));
        Ok(ids.filter(|(_, id)| only.is_none_or(|only| only.has(id))).take(limit).collect())
    }

    async fn act_in_batches(
        &mut self,
        action: ParkedAction,
        lane: i16,
        ids: &[i64],
    ) -> Result<u64, RelayError> {
        let mut done = 0;
        for some in ids.chunks(self.pace.batch()) {
            let acted = self.act_on(action, lane, some).await?;
            self.pace.did(acted).await;
            done += acted;
        }
        Ok(done)
    }

    /// One batch. Under the lane's lock the statement looks again at the state of each: somebody
    /// else may act as well.
    async fn act_on(&mut self, action: ParkedAction, lane: i16, ids: &[i64]) -> Result<u64, RelayError> {
        let (stamp, sql, schema) = (self.stamp.clone(), self.sql.clone(), self.schema.clone());
        let transaction = self.begin().await?;
        let name = action.kind().name();
        let parameters: [&dyn Parameter; 5] = [&lane, &ids, &stamp.operator, &stamp.note, &name];
        let done = match action {
            ParkedAction::Retry => {
                execute(&transaction, "retry messages", &sql.retry, &parameters[..4]).await?
            }
            ParkedAction::GiveUp(_) => {
                execute(&transaction, "give messages up", &sql.give_up, &parameters).await?
            }
        };
        query(&transaction, "wake the relays", &sql.wake, &[&schema.as_str()]).await?;
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(done)
    }

    async fn look(
        &self,
        kind: ParkedKind,
        lanes: &[i16],
        after: i64,
        selection: &ParkedSelection,
    ) -> Result<Vec<Row>, RelayError> {
        let subject = selection.subject.as_ref().map(|pattern| pattern.expression());
        let reason = selection.reason.as_ref().map(|reason| reason.to_lowercase());
        let ParkedSelection { id, key, ordering_key, request, reason_is, subject_is, .. } = selection;
        let (name, most) = (kind.name(), if id.is_some() { 1 } else { BATCH });
        let parameters: [&dyn Parameter; 12] = [
            &lanes,
            &after,
            &most,
            key,
            &subject,
            &reason,
            ordering_key,
            &name,
            request,
            id,
            reason_is,
            subject_is,
        ];
        self.query("look at what is set aside", &self.sql.list_parked, &parameters).await
    }

    /// The part of the table that can hold selected messages; `None` when none can.
    async fn scan(&self, selection: &ParkedSelection) -> Result<Option<Scan>, RelayError> {
        if let Some(id) = selection.id {
            return Ok(Some(Scan { lanes: self.lanes().await?, after: id - 1, last: id }));
        }
        if let Some(key) = &selection.key {
            let found = self.find_key(key, true).await?;
            return Ok(found.map(|(lane, id)| Scan { lanes: vec![lane], after: id - 1, last: id }));
        }
        let lanes = match &selection.ordering_key {
            Some(ordering_key) => {
                let rows = self.query("find a lane", &self.sql.lane_of, &[ordering_key]).await?;
                rows.iter().map(|row| row.get(0)).collect()
            }
            None => self.lanes().await?,
        };
        Ok(Some(Scan { lanes, after: selection.after, last: i64::MAX }))
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

/// How a row of the table `parked` stands, in the words of every command.
pub(super) fn parking_state(
    died_at: Option<SystemTime>,
    next_attempt_at: Option<SystemTime>,
) -> &'static str {
    match (died_at, next_attempt_at) {
        (Some(_), _) => "dead",
        (None, Some(_)) => "parked",
        (None, None) => "waiting",
    }
}

fn parked_message(row: &Row) -> ParkedMessage {
    let (died_at, next_attempt_at) = (row.get("dead_at"), row.get("next_attempt_at"));
    ParkedMessage {
        id: row.get("id"),
        lane: row.get("lane"),
        key: row.get("key"),
        state: parking_state(died_at, next_attempt_at),
        subject: row.get("subject"),
        ordering_key: row.get("ordering_key"),
        attempts: row.get("attempts"),
        next_attempt_at,
        died_at,
        reason: row.get("error"),
        replay: row.get("replay"),
        created_at: row.get("created_at"),
        payload_bytes: row.get("payload_bytes"),
    }
}

fn parked_details(row: &Row) -> ParkedDetails {
    let headers: String = row.get("headers");
    ParkedDetails {
        message: parked_message(row),
        parked_at: row.get("parked_at"),
        headers: serde_json::from_str(&headers).unwrap_or_default(),
        behind: row.get("behind"),
        payload: shown_payload(row),
    }
}
