//! Where a message and its steps are, and the saga that sends them.

mod inboxes;

use oncebox_connect::postgres::typed;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::{Row, error::SqlState};

use self::inboxes::inboxes;
pub use self::inboxes::{
    TracedEffect, TracedFailure, TracedInbox, TracedKey, TracedLease, TracedLine, TracedRequest, TracedSnooze,
};
use super::{
    AuditRow, Operator, Result, failed,
    parked::parking_state,
    rows::{FromRow as _, from_row, query, values},
    sagas::SagaProgress,
    time::{Time, enqueued_at},
};

/// Rows of the audit table that a trace holds, at most.
const AUDIT_MAX: i64 = 1_000;

/// A message, the messages of the steps below its key, and the actions of operators on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Trace {
    /// The key that was asked for.
    pub key: String,
    /// The message with this key, if it is stored, then those below it, in the order of their keys.
    /// A key that was used again, once the older message held it no more, stands here for each of
    /// them, the newest first.
    pub messages: Vec<TracedMessage>,
    /// There are more below it.
    pub is_cut: bool,
    /// How the key stands in inboxes of this database although none of its messages has it, and
    /// which keys below it fail there: the message is from another database, or the key is that of
    /// an HTTP request.
    pub inboxes: Vec<TracedKey>,
    /// The sagas with this key, or below it, and how far they are.
    pub sagas: Vec<SagaProgress>,
    /// The newest 1,000 rows of the audit table for these keys, newest first; `None` when this role
    /// may not read it.
    pub audit: Option<Vec<AuditRow>>,
}

/// Where one message is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedMessage {
    /// Its key.
    pub key: String,
    /// `delayed` (waits for its time), `due` (committed, not yet published), `settled` (a stream
    /// stored it), `parked` (set aside, tried again), `waiting` (for another of its ordering key,
    /// or with others of which a few are tried), `dead` or `discarded`.
    pub state: &'static str,
    /// Its place in the log; one that is delayed gets another when it is due.
    pub id: i64,
    /// Its lane; -1 while it is delayed.
    pub lane: i16,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// When it was enqueued.
    pub created_at: Time,
    /// When it is due, while it is delayed.
    pub not_before: Option<Time>,
    /// While it, or its replay, is set aside.
    pub parked: Option<TracedParking>,
    /// The last time that it was asked for again.
    pub replay: Option<TracedReplay>,
    /// How its key stands in the inboxes of this database; empty too when this role may not look
    /// into them.
    pub inboxes: Vec<TracedInbox>,
}

/// How a message is set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedParking {
    /// How often it was tried in vain.
    pub attempts: i32,
    /// Why it is set aside.
    pub reason: String,
    /// The reason as a word that does not change, such as `no-stream`; `None` for a message that
    /// was enqueued with an id below the floor of its lane.
    pub cause: Option<String>,
    /// Since when.
    pub parked_at: Time,
    /// When it is tried again.
    pub next_attempt_at: Option<Time>,
    /// When it was given up.
    pub died_at: Option<Time>,
    /// The key of the message that it waits for.
    pub behind: Option<String>,
}

/// A replay of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedReplay {
    /// Its `Nats-Msg-Id` has `rN` with this number before the key.
    pub number: i32,
    /// `parked`, `waiting` or `dead` as above, `cancelled` (an operator gave it up) or `done` (a
    /// stream stored it).
    pub state: &'static str,
    /// The name of the request.
    pub request: String,
    /// When it was asked for.
    pub requested_at: Time,
}

impl Operator {
    /// Where the message with this key is, and `steps_max` of those below it, 1 to 100,000.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn trace(&mut self, key: &str, steps_max: u32) -> Result<Trace> {
        let sql = self.sql.clone();
        let edits = self.edited_keys(key).await?;
        let transaction = self.begin().await?;
        // One more shows that there are more.
        let rows =
            query(&transaction, "trace a key", &sql.trace, &[&key, &(i64::from(steps_max) + 1)]).await?;
        let mut messages: Vec<TracedMessage> = rows.iter().map(traced_message).collect();
        let room = steps_max as usize + messages.iter().filter(|message| message.key == key).count();
        let is_cut = messages.len() > room;
        messages.truncate(room);
        // The key itself too: its message may be elsewhere, and the audit outlives the message.
        let known = messages.iter().map(|message| message.key.clone()).filter(|known| known != key);
        let mut keys: Vec<String> = std::iter::once(key.to_owned()).chain(known).collect();
        let mut elsewhere = Vec::new();
        for TracedKey { key, inbox } in inboxes(&transaction, &sql, &keys, Some(key)).await? {
            match messages.iter_mut().find(|message| message.key == key) {
                Some(message) => message.inboxes.push(inbox),
                None => elsewhere.push(TracedKey { key, inbox }),
            }
        }
        // An edit of a dead letter is in no outbox.
        keys.extend(edits);
        let audit = match transaction.query_typed(&sql.trace_audit, &typed(&[&keys, &AUDIT_MAX])).await {
            Ok(rows) => Some(values(&rows)),
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => None,
            Err(error) => return Err(failed("read the audit table")(error)),
        };
        drop(transaction);
        let sagas = self.traced_sagas(key).await?;
        Ok(Trace { key: key.to_owned(), messages, is_cut, inboxes: elsewhere, sagas, audit })
    }

    /// How these keys stand in the inboxes of this database, those of messages from elsewhere too;
    /// none when this role may not look into them.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn trace_inboxes(&mut self, keys: &[String]) -> Result<Vec<TracedKey>> {
        let sql = self.sql.clone();
        let transaction = self.begin().await?;
        inboxes(&transaction, &sql, keys, None).await
    }
}

from_row!(TracedParking:
    attempts, reason = "error", cause, parked_at, next_attempt_at, died_at = "dead_at", behind);

fn traced_message(row: &Row) -> TracedMessage {
    let parked = row.get::<_, Option<i32>>("attempts").map(|_| TracedParking::from_row(row));
    let parking = parked.as_ref().map(|parked| parking_state(parked.died_at, parked.next_attempt_at));
    let parked_replay = row.get::<_, Option<i32>>("parked_replay");
    // A replay is set aside in the place of its message, which a stream has stored.
    let not_before = row.get::<_, Option<Time>>("not_before");
    let (own, replayed) = if parked_replay == Some(0) { (parking, None) } else { (None, parking) };
    TracedMessage {
        key: row.get("key"),
        state: match own {
            Some(parking) => parking,
            None if not_before.is_some() => "delayed",
            None if row.get("is_discarded") => "discarded",
            None if row.get::<_, Option<bool>>("is_settled") == Some(true) => "settled",
            None => "due",
        },
        id: row.get("id"),
        lane: row.get("lane"),
        subject: row.get("subject"),
        ordering_key: row.get::<_, Option<String>>("ordering_key").or(row.get("delayed_ordering_key")),
        created_at: Time(enqueued_at(row)),
        not_before,
        parked,
        replay: row.get::<_, Option<i32>>("replay").map(|number| TracedReplay {
            number,
            state: replayed.unwrap_or(if row.get("is_cancelled") { "cancelled" } else { "done" }),
            request: row.get("request"),
            requested_at: row.get("requested_at"),
        }),
        inboxes: Vec::new(),
    }
}
