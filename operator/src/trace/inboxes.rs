//! How keys stand in the inboxes of a database.

use oncebox_connect::postgres::typed;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::{Row, Transaction, error::SqlState};

use crate::{
    BATCH, Result, failed,
    rows::{FromRow as _, from_row},
    statements::Statements,
    time::Time,
};

/// Inboxes that are looked into, at most.
const INBOXES_MAX: i64 = 100;

/// A key of a message from elsewhere, and how it stands in an inbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedKey {
    /// The key.
    pub key: String,
    /// How it stands.
    #[serde(flatten)]
    pub inbox: TracedInbox,
}

/// How a key stands in an inbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedInbox {
    /// The database that it is in, where several are looked into and the message is in another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// Whose inbox: `service:handler`.
    pub scope: String,
    /// Whose key; empty where there is only one tenant.
    pub tenant: String,
    /// `completed`, `rejected`, `edited` (an edit of it came in its place) or `dead`: given up,
    /// there may be a dead letter; or `failing`, `snoozed`, `leased` (a process works on it), or
    /// `unknown`: an effect outside the database may have happened, and the next attempt finds out;
    /// or `behind`: it waits for others of its ordering key.
    pub status: String,
    /// When the inbox settled it.
    pub settled_at: Option<Time>,
    /// It is the key of an HTTP request, once that is settled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<TracedRequest>,
    /// How it fails, while it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<TracedFailure>,
    /// Until when its handler has put it off, while it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snooze: Option<TracedSnooze>,
    /// Its place in the line of its ordering key, while that is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<TracedLine>,
    /// Its claim under a lease, while it is not settled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<TracedLease>,
    /// Its effects outside the database that the inbox remembers, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<TracedEffect>,
}

/// A request with an `Idempotency-Key` that was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedRequest {
    /// The status of the response; `None` when none is stored.
    pub status: Option<i32>,
}

/// A message that its handler has put off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedSnooze {
    /// Why, in the handler's words.
    pub reason: String,
    /// When it is delivered again.
    pub until: Option<Time>,
    /// Since when it has been put off again and again.
    pub since: Time,
    /// How often.
    pub times: i64,
}

/// The place of a message in the line of its ordering key, which a dead letter has stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedLine {
    /// The ordering key.
    pub ordering_key: String,
    /// Since when it waits, or when it was retried.
    pub since: Time,
    /// Whether it is its turn: the consumer runs it.
    pub is_due: bool,
    /// How many messages wait before it, 1,000 at most.
    pub ahead: i64,
    /// The dead letter that stops the line; `None` when it was retried, or discarded.
    pub letter: Option<i64>,
    /// The key of that.
    pub letter_key: Option<String>,
    /// Its reason.
    pub reason: Option<String>,
}

impl TracedLine {
    /// Where it stands, in words.
    #[must_use]
    pub fn what(&self) -> String {
        let name = &self.ordering_key;
        match (self.is_due, self.letter) {
            (true, _) => format!("the next to run of ordering key {name}"),
            (false, Some(letter)) => format!("behind dead letter {letter} of ordering key {name}"),
            (false, None) => format!("in the line of ordering key {name}"),
        }
    }
}

/// A claim under a lease that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedLease {
    /// The process that has, or had, it.
    pub owner: Option<String>,
    /// No other process may claim the key before: the end of the lease, or of the pause after a
    /// failure.
    pub until: Option<Time>,
    /// That time is over, and no process has claimed the key again: its owner is suspended, or has
    /// died.
    pub is_over: bool,
    /// When the key was first claimed.
    pub since: Time,
    /// How many attempts have begun.
    pub attempts: i64,
    /// Why the last attempt failed, or its effect is unknown.
    pub reason: Option<String>,
}

/// An effect outside the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedEffect {
    /// Its step.
    pub step: String,
    /// `started`: it may have happened; `done`: it has; `rejected`: it never will.
    pub state: String,
    /// When it began.
    pub started_at: Time,
}

/// How a message fails in an inbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracedFailure {
    /// How many attempts have failed.
    pub failures: i64,
    /// Why the last one failed.
    pub reason: String,
    /// When it failed.
    pub failed_at: Time,
    /// When the message is delivered again; `None` when its consumer has not said.
    pub next_at: Option<Time>,
}

/// Under a savepoint: a role that may not look into inboxes still sees the rest.
pub(super) async fn inboxes(
    transaction: &Transaction<'_>,
    sql: &Statements,
    keys: &[String],
    below: Option<&str>,
) -> Result<Vec<TracedKey>> {
    let (keys, rows_max) = (keys.to_vec(), BATCH * 10);
    transaction.batch_execute("SAVEPOINT inboxes").await.map_err(failed("set a savepoint"))?;
    let looking = async {
        let settled = typed(&[&keys, &INBOXES_MAX, &rows_max, &below]);
        let settled = transaction.query_typed(&sql.trace_inboxes, &settled).await?;
        let others = typed(&[&keys, &below, &INBOXES_MAX, &rows_max]);
        let failing = transaction.query_typed(&sql.trace_failing, &others).await?;
        let open = transaction.query_typed(&sql.trace_open, &others).await?;
        let behind = typed(&[&keys, &below, &rows_max]);
        let behind = transaction.query_typed(&sql.trace_behind, &behind).await?;
        let mut found: Vec<TracedKey> = settled.iter().map(settled_key).collect();
        failing.iter().for_each(|row| add_failure(&mut found, row));
        open.iter().for_each(|row| add_open(&mut found, row));
        behind.iter().for_each(|row| add_line(&mut found, row));
        Ok(found)
    };
    match looking.await {
        Ok(found) => Ok(found),
        Err(error) if tokio_postgres::Error::code(&error) == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            let back = transaction.batch_execute("ROLLBACK TO SAVEPOINT inboxes").await;
            back.map(|()| Vec::new()).map_err(failed("go back to a savepoint"))
        }
        Err(error) => Err(failed("look into the inboxes")(error)),
    }
}

from_row!(TracedFailure: failures, reason, failed_at, next_at = "due_at");
from_row!(TracedLine:
    ordering_key, is_due, ahead, reason, since = "created_at", letter = "head_id", letter_key = "head_key");

fn settled_key(row: &Row) -> TracedKey {
    let mut traced = key(row, row.get("status"));
    traced.inbox.settled_at = row.get("created_at");
    traced.inbox.request =
        row.get::<_, bool>("is_request").then(|| TracedRequest { status: row.get("http_status") });
    traced
}

/// Of a key with several copies the newest failure counts.
fn add_failure(found: &mut Vec<TracedKey>, row: &Row) {
    let failure = TracedFailure::from_row(row);
    let inbox = of_row(found, row, "failing");
    if inbox.failure.as_ref().is_none_or(|known| known.failed_at <= failure.failed_at) {
        inbox.failure = Some(failure);
    }
}

/// A lease says more than a failure, and a snooze more than both.
fn add_open(found: &mut Vec<TracedKey>, row: &Row) {
    let state: &str = row.get("state");
    let (since, until, times) = (row.get("since"), row.get("until"), row.get("times"));
    match row.get("kind") {
        "effect" => {
            let (step, state) = (row.get("step"), state.to_owned());
            let inbox = of_row(found, row, if state == "started" { "unknown" } else { "failing" });
            inbox.effects.push(TracedEffect { step, state, started_at: since });
        }
        "lease" => {
            let status = match state {
                "running" => "leased",
                "unknown" => "unknown",
                _ => "failing",
            };
            let inbox = of_row(found, row, status);
            if inbox.settled_at.is_none() && inbox.status != "snoozed" {
                inbox.status = status.to_owned();
            }
            let (owner, reason) = (row.get("owner"), row.get("reason"));
            let is_over = row.get("is_over");
            inbox.lease = Some(TracedLease { owner, until, is_over, since, attempts: times, reason });
        }
        _ => {
            let inbox = of_row(found, row, "snoozed");
            if inbox.settled_at.is_none() {
                inbox.status = "snoozed".to_owned();
            }
            inbox.snooze = Some(TracedSnooze { reason: row.get("reason"), until, since, times });
        }
    }
}

/// One that runs again may fail again: that says more.
fn add_line(found: &mut Vec<TracedKey>, row: &Row) {
    of_row(found, row, "behind").line = Some(TracedLine::from_row(row));
}

/// The inbox that a row is of; one that is not known yet gets this status.
fn of_row<'a>(found: &'a mut Vec<TracedKey>, row: &Row, status: &str) -> &'a mut TracedInbox {
    let new = key(row, status.to_owned());
    let is_same = |known: &TracedKey| {
        known.key == new.key && known.inbox.scope == new.inbox.scope && known.inbox.tenant == new.inbox.tenant
    };
    let place = found.iter().position(is_same).unwrap_or_else(|| {
        found.push(new);
        found.len() - 1
    });
    &mut found[place].inbox
}

fn key(row: &Row, status: String) -> TracedKey {
    let (scope, tenant) = (row.get("scope"), row.get("tenant"));
    let inbox = TracedInbox { scope, tenant, status, ..TracedInbox::default() };
    TracedKey { key: row.get("key"), inbox }
}
