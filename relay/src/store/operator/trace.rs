//! Where a message and its steps are.

use std::time::SystemTime;

use serde::Serialize;
use tokio_postgres::{Row, error::SqlState};

use super::{
    Operator,
    dead::{rfc3339, rfc3339_option},
    failed, query,
};
use crate::{relay::RelayError, store::parameter::typed};

/// Rows of the audit table that a trace holds, at most.
const AUDIT_MAX: i64 = 1_000;

/// A message, those of the steps below its key, and what operators did to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Trace {
    /// The key that was asked for.
    pub key: String,
    /// The message with this key, if it is stored, then those below it, in the order of their keys.
    pub messages: Vec<TracedMessage>,
    /// There are more below it.
    pub is_cut: bool,
    /// The newest 1,000 rows of the audit table for these keys, newest first; `None` when this role may not read it.
    pub audit: Option<Vec<AuditRow>>,
}

/// Where one message is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TracedMessage {
    /// Its key.
    pub key: String,
    /// `due` (committed, not yet published), `settled` (a stream stored it), `parked` (set aside, tried again),
    /// `waiting` (behind another of its ordering key), `dead` or `discarded`.
    pub state: &'static str,
    /// Its place in the log.
    pub id: i64,
    /// Its lane.
    pub lane: i16,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// When it was enqueued.
    #[serde(serialize_with = "rfc3339")]
    pub created_at: SystemTime,
    /// While it, or its replay, is set aside.
    pub parked: Option<TracedParking>,
    /// The last time that it was asked for again.
    pub replay: Option<TracedReplay>,
}

/// How a message is set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TracedParking {
    /// How often it was tried in vain.
    pub attempts: i32,
    /// Why it is set aside.
    pub reason: String,
    /// Since when.
    #[serde(serialize_with = "rfc3339")]
    pub parked_at: SystemTime,
    /// When it is tried again.
    #[serde(serialize_with = "rfc3339_option")]
    pub next_attempt_at: Option<SystemTime>,
    /// When it was given up.
    #[serde(serialize_with = "rfc3339_option")]
    pub died_at: Option<SystemTime>,
    /// The key of the message that it waits behind.
    pub behind: Option<String>,
}

/// A replay of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TracedReplay {
    /// Its `Nats-Msg-Id` has `rN` with this number before the key.
    pub number: i32,
    /// `parked`, `waiting` or `dead` as above, or `done`: sent, or discarded.
    pub state: &'static str,
    /// The name of the request.
    pub request: String,
    /// When it was asked for.
    #[serde(serialize_with = "rfc3339")]
    pub requested_at: SystemTime,
}

/// What an operator did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AuditRow {
    /// When.
    #[serde(serialize_with = "rfc3339")]
    pub happened_at: SystemTime,
    /// Who, as the database knows it.
    pub database_user: String,
    /// Who, by their own word.
    pub operator: Option<String>,
    /// Why, by their own word.
    pub note: Option<String>,
    /// `retry`, `discard` or `replay`.
    pub action: String,
    /// The message's key.
    pub key: Option<String>,
    /// Why the message was dead; for a replay the name of the request.
    pub reason: Option<String>,
}

impl Operator {
    /// Where the message with this key is, and `steps_max` of those below it, 1 to 100,000.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn trace(&mut self, key: &str, steps_max: u32) -> Result<Trace, RelayError> {
        let sql = self.sql.clone();
        let transaction = self.begin().await?;
        // One more shows that there are more.
        let rows =
            query(&transaction, "trace a key", &sql.trace, &[&key, &(i64::from(steps_max) + 1)]).await?;
        let mut messages: Vec<TracedMessage> = rows.iter().map(traced_message).collect();
        let is_first = messages.first().is_some_and(|message| message.key == key);
        let room = steps_max as usize + usize::from(is_first);
        let is_cut = messages.len() > room;
        messages.truncate(room);
        // The key itself too: what was done to a message outlives it.
        let keys: Vec<&str> =
            std::iter::once(key).chain(messages.iter().map(|message| message.key.as_str())).collect();
        let audit = match transaction.query_typed(&sql.trace_audit, &typed(&[&keys, &AUDIT_MAX])).await {
            Ok(rows) => Some(rows.iter().map(audit_row).collect()),
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => None,
            Err(error) => return Err(failed("read the audit table")(error)),
        };
        Ok(Trace { key: key.to_owned(), messages, is_cut, audit })
    }
}

fn traced_message(row: &Row) -> TracedMessage {
    let parked = row.get::<_, Option<i32>>("attempts").map(|attempts| TracedParking {
        attempts,
        reason: row.get("error"),
        parked_at: row.get("parked_at"),
        next_attempt_at: row.get("next_attempt_at"),
        died_at: row.get("dead_at"),
        behind: row.get("behind"),
    });
    let parking = parked.as_ref().map(|parked| match (parked.died_at, parked.next_attempt_at) {
        (Some(_), _) => "dead",
        (None, Some(_)) => "parked",
        (None, None) => "waiting",
    });
    let parked_replay = row.get::<_, Option<i32>>("parked_replay");
    // A replay is set aside in the place of its message, which a stream has stored.
    let (own, replayed) = if parked_replay == Some(0) { (parking, None) } else { (None, parking) };
    TracedMessage {
        key: row.get("key"),
        state: match own {
            Some(parking) => parking,
            None if row.get("is_discarded") => "discarded",
            None if row.get("is_settled") => "settled",
            None => "due",
        },
        id: row.get("id"),
        lane: row.get("lane"),
        subject: row.get("subject"),
        ordering_key: row.get("ordering_key"),
        created_at: row.get("created_at"),
        parked,
        replay: row.get::<_, Option<i32>>("replay").map(|number| TracedReplay {
            number,
            state: replayed.unwrap_or("done"),
            request: row.get("request"),
            requested_at: row.get("requested_at"),
        }),
    }
}

fn audit_row(row: &Row) -> AuditRow {
    AuditRow {
        happened_at: row.get("happened_at"),
        database_user: row.get("database_user"),
        operator: row.get("operator"),
        note: row.get("note"),
        action: row.get("action"),
        key: row.get("key"),
        reason: row.get("reason"),
    }
}
