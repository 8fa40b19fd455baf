//! Canaries: retries in steps of 1, 10, 100 and the rest, which relays take. Commands begin, list,
//! stop and continue them.

use std::time::Duration;

use oncebox_connect::{postgres::Parameter, words::counted};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    DeadLetter, Operator, ParkedMessage, Result,
    action::{Acting, Listed, Verb},
    rows::from_row,
    selection::Selection,
    shown::RowSet,
    time::Time,
};

/// How long a retried row may be without a verdict, unless an operator says otherwise.
pub const CANARY_WITHIN: Duration = Duration::from_secs(600);

/// A canary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Canary {
    /// Its number.
    pub id: i64,
    /// `letter` for dead letters of inboxes, `message` for dead messages of the outbox.
    pub kind: String,
    /// `running`; `failed`, it stopped by itself; `stopped`, an operator stopped it; `done`.
    pub state: String,
    /// How many rows it had when it began.
    pub selected: i32,
    /// Rows that are still to be retried.
    pub waiting: i32,
    /// Rows that were retried and have no verdict yet.
    pub watched: i32,
    /// Rows that were handled, or stored by a stream.
    pub good: i32,
    /// Rows that failed again.
    pub failed: i32,
    /// Rows that an operator or another canary retried or discarded first.
    pub skipped: i32,
    /// Why it stopped, and at which row.
    pub reason: Option<String>,
    /// Why its next row could not be retried when that was last tried.
    pub fault: Option<String>,
    /// The database's user who began it, or had it go on.
    pub database_user: String,
    /// Who that is by their own word.
    pub operator: Option<String>,
    /// Why.
    pub note: Option<String>,
    /// When it began.
    pub began_at: Time,
    /// When it ended or stopped.
    pub ended_at: Option<Time>,
}

impl Canary {
    /// `dead letters` or `dead messages`.
    #[must_use]
    pub fn things(&self) -> &'static str {
        if self.kind == "letter" { "dead letters" } else { "dead messages" }
    }

    /// The problem and its remedy, of one that stopped by itself or cannot go on.
    pub(super) fn problem(&self) -> Option<(String, String)> {
        let (id, rest) = (self.id, self.waiting + self.watched);
        match (self.state.as_str(), &self.fault) {
            ("failed", _) if rest > 0 => Some((
                format!(
                    "canary {id} stopped before {}: {}",
                    counted(rest, self.things().trim_end_matches('s')),
                    self.reason.as_deref().unwrap_or_default()
                ),
                format!(
                    "mend the cause, then `oncebox canary continue {id}`; or give the rest up: `oncebox canary stop {id}`"
                ),
            )),
            ("running", Some(fault)) => Some((
                format!("canary {id} cannot retry its next row: {fault}"),
                format!("mend the cause: it is tried again; or stop it: `oncebox canary stop {id}`"),
            )),
            _ => None,
        }
    }
}

from_row!(Canary:
    id, kind, state, selected, waiting, watched, good, failed, skipped, reason, fault, database_user, operator,
    note, began_at, ended_at);

impl Operator {
    /// The canaries, the newest first, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn canaries(&self, limit: i64) -> Result<Vec<Canary>> {
        self.all("list canaries", &self.sql.canaries, &[&limit]).await
    }

    /// Begins a canary of all rows that are selected, `limit` at most, and returns its id; `None`
    /// where nothing is selected. All selections are of one kind. `only` leaves out all rows but
    /// those of a set that was shown.
    pub(crate) async fn begin_canary(
        &mut self,
        verb: Verb,
        selections: &[Selection],
        limit: u64,
        only: Option<&RowSet>,
        within: Duration,
    ) -> Result<Option<i64>> {
        let (mut lanes, mut ids): (Vec<i16>, Vec<i64>) = Default::default();
        let kind = if verb == Verb::RetryDead { "message" } else { "letter" };
        for of in selections {
            let room = usize::try_from(limit - ids.len() as u64).unwrap_or(usize::MAX);
            let acting = Acting { verb, of, resender: None, is_canary: true };
            if verb == Verb::RetryDead {
                let is_meant = |row: &ParkedMessage| only.is_none_or(|only| only.has(&row.name(&acting)));
                let found = self.list(of, room, is_meant).await?;
                lanes.extend(found.iter().map(|row| row.lane));
                ids.extend(found.iter().map(|row| row.id));
            } else {
                let is_meant = |row: &DeadLetter| only.is_none_or(|only| only.has(&row.name(&acting)));
                ids.extend(self.list(of, room, is_meant).await?.iter().map(|row| row.id));
            }
        }
        if ids.is_empty() {
            return Ok(None);
        }
        let parameters: [&dyn Parameter; 4] = [&kind, &lanes, &ids, &within.as_secs_f64()];
        let rows = self.change("begin a canary", |sql| &sql.begin_canary, &parameters, false).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    /// Stops a canary; of one that stopped by itself `status` says nothing any more. False when it
    /// has ended, or there is none.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn stop_canary(&mut self, id: i64) -> Result<bool> {
        let rows = self.change("stop a canary", |sql| &sql.stop_canary, &[&id], false).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    /// Goes on with the rest of a canary that has stopped, one row first. False when it has not
    /// stopped, or nothing is left.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn continue_canary(&mut self, id: i64) -> Result<bool> {
        let rows = self.change("continue a canary", |sql| &sql.continue_canary, &[&id], false).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }
}
