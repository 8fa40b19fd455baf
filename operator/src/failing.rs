//! Messages that fail in an inbox, again and again: list, count by reason; `act` retries and buries
//! them.

mod act;

use std::time::SystemTime;

use oncebox_connect::{error::RelayError, postgres::Parameter};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    BATCH, Operator, is_selected,
    selection::{FailingId, FailingSelection},
    time::{Rfc3339, Rfc3339Option},
};

pub use act::FailingDone;

/// A message that fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct FailingMessage {
    /// Its id, which every command takes: scope, tenant and key.
    pub id: String,
    /// Whose handler fails: `service:handler`.
    pub scope: String,
    /// Whose it is; empty where there is only one tenant.
    pub tenant: String,
    /// Its key.
    pub key: String,
    /// Its subject.
    pub subject: Option<String>,
    /// The stream that the copy is in which failed last; `None` when it came from elsewhere.
    pub stream: Option<String>,
    /// Its place there.
    pub stream_sequence: Option<i64>,
    /// How many attempts at it, and at its copies, have failed.
    pub failures: i64,
    /// Why the last one failed.
    pub reason: String,
    /// When it failed.
    #[serde(with = "Rfc3339")]
    pub failed_at: SystemTime,
    /// When it is delivered again; `None` when its consumer has not said.
    #[serde(with = "Rfc3339Option")]
    pub due_at: Option<SystemTime>,
    /// Which copy failed last.
    #[serde(skip)]
    message: String,
    /// When the row of its first copy was written.
    #[serde(skip)]
    first_at: SystemTime,
    /// Whether the time of its next delivery has come.
    #[serde(skip)]
    is_due: bool,
}

impl FailingMessage {
    /// Its place in the list, for the page behind it.
    #[must_use]
    pub fn place(&self) -> [String; 3] {
        [&self.scope, &self.tenant, &self.key].map(Clone::clone)
    }
}

/// Messages that fail in one inbox for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FailingReason {
    /// Whose handler fails: `service:handler`.
    pub scope: String,
    /// Why.
    pub reason: String,
    /// How many.
    pub messages: i64,
    /// When the one failed that has not failed again for the longest time.
    #[serde(with = "Rfc3339")]
    pub oldest_at: SystemTime,
    /// When the first of them is delivered again.
    #[serde(with = "Rfc3339Option")]
    pub next_at: Option<SystemTime>,
}

impl Operator {
    /// Messages that fail, in the order of scope, tenant and key, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn failing(
        &self,
        selection: &FailingSelection,
        limit: usize,
    ) -> Result<Vec<FailingMessage>, RelayError> {
        let (mut found, mut page) = (Vec::new(), Some(Place(selection.after.clone())));
        while let Some(after) = page.filter(|_| found.len() < limit) {
            let (messages, next) = self.look_at_failing(&after, selection).await?;
            found.extend(messages);
            page = next;
        }
        found.truncate(limit);
        Ok(found)
    }

    /// How many messages fail, by inbox and reason, the most frequent first; `limit` rows at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn failing_reasons(
        &self,
        selection: &FailingSelection,
        limit: usize,
    ) -> Result<Vec<FailingReason>, RelayError> {
        let FailingSelection { key, scope, .. } = selection;
        let (subject, reason) = (selection.expression(), selection.part_of_reason());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let parameters: [&dyn Parameter; 5] = [key, scope, &subject, &reason, &limit];
        let rows = self.query("count failing messages", &self.sql.failing_reasons, &parameters).await?;
        let read = |row: &Row| FailingReason {
            scope: row.get("scope"),
            reason: row.get("reason"),
            messages: row.get("messages"),
            oldest_at: row.get("oldest_at"),
            next_at: row.get("next_at"),
        };
        Ok(rows.iter().map(read).collect())
    }

    /// The selected ones of a page, and where the next one begins.
    async fn look_at_failing(
        &self,
        Place([scope, tenant, key]): &Place,
        selection: &FailingSelection,
    ) -> Result<(Vec<FailingMessage>, Option<Place>), RelayError> {
        let (subject, reason) = (selection.expression(), selection.part_of_reason());
        let FailingSelection { reason_is, subject_is, .. } = selection;
        let of = |place: usize| selection.id.as_ref().map(|FailingId(id)| id[place].as_str());
        let meant_scope = of(0).or(selection.scope.as_deref());
        let meant_tenant = of(1);
        let meant_key = of(2).or(selection.key.as_deref());
        let parameters: [&dyn Parameter; 11] = [
            scope,
            tenant,
            key,
            &BATCH,
            &meant_key,
            &meant_scope,
            &subject,
            &reason,
            &meant_tenant,
            reason_is,
            subject_is,
        ];
        let rows = self.query("look at failing messages", &self.sql.failing, &parameters).await?;
        let is_full = rows.len() >= usize::try_from(BATCH).unwrap_or(usize::MAX);
        let next = rows.last().filter(|_| is_full).map(Place::of);
        Ok((rows.iter().filter(is_selected).map(failing_message).collect(), next))
    }
}

/// Behind which row a page begins.
#[derive(Debug)]
struct Place([String; 3]);

impl Place {
    fn of(row: &Row) -> Self {
        Self(["scope", "tenant", "key"].map(|column| row.get(column)))
    }
}

fn failing_message(row: &Row) -> FailingMessage {
    FailingMessage {
        id: FailingId(Place::of(row).0).to_string(),
        scope: row.get("scope"),
        tenant: row.get("tenant"),
        key: row.get("key"),
        subject: row.get("subject"),
        stream: row.get("stream"),
        stream_sequence: row.get("stream_sequence"),
        failures: row.get("failures"),
        reason: row.get("reason"),
        failed_at: row.get("failed_at"),
        due_at: row.get("due_at"),
        message: row.get("message"),
        first_at: row.get("first_at"),
        is_due: row.get::<_, Option<bool>>("is_due") == Some(true),
    }
}
