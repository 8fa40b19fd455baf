//! Messages that fail in an inbox, again and again: list, count by reason; `act` retries and buries
//! them.

mod act;

use std::time::SystemTime;

use oncebox_connect::postgres::Parameter;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    Operator, Result,
    rows::from_row,
    selection::{FailingId, Place, Selection},
    time::Time,
};

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
    pub failed_at: Time,
    /// When it is delivered again; `None` when its consumer has not said.
    pub due_at: Option<Time>,
    /// Which copy failed last.
    #[serde(skip)]
    message: String,
    /// When the row of its first copy was written, or an operator had it run: the token of a dry
    /// run before does not stand for it any more.
    #[serde(skip)]
    came_at: SystemTime,
    /// Whether the time of its next delivery has come.
    #[serde(skip)]
    is_due: bool,
}

impl FailingMessage {
    /// Its place in the list, for the page after it.
    #[must_use]
    pub fn place(&self) -> Place {
        Place::Key([&self.scope, &self.tenant, &self.key].map(Clone::clone))
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
    pub oldest_at: Time,
    /// When the first of them is delivered again.
    pub next_at: Option<Time>,
}

impl Operator {
    /// Messages that fail, in the order of scope, tenant and key, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn failing(&self, of: &Selection, limit: usize) -> Result<Vec<FailingMessage>> {
        self.list(of, limit, |_| true).await
    }

    /// How many messages fail, by inbox and reason, the most frequent first; `limit` rows at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn failing_reasons(&self, of: &Selection, limit: usize) -> Result<Vec<FailingReason>> {
        let Selection { key, scope, .. } = of;
        let (subject, reason) = (of.expression(), of.part_of_reason());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let parameters: [&dyn Parameter; 5] = [key, scope, &subject, &reason, &limit];
        self.all("count failing messages", &self.sql.failing_reasons, &parameters).await
    }
}

fn place(row: &Row) -> [String; 3] {
    ["scope", "tenant", "key"].map(|column| row.get(column))
}

from_row!(FailingReason: scope, reason, messages, oldest_at, next_at);
from_row!(FailingMessage:
    scope, tenant, key, subject, stream, stream_sequence, failures, reason, failed_at, due_at, message, came_at;
    row =>
    id: FailingId(place(row)).to_string(),
    is_due: row.get::<_, Option<bool>>("is_due") == Some(true));
