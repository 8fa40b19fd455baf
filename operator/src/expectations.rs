//! Expected arrival: messages with a subject that must be in an inbox in time, and those that are
//! not.

use std::time::Duration;

use oncebox_connect::{error::RelayError, postgres::Parameter};
use oncebox_relay::facts::{Expectation, expectation, sql};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    Operator, Result,
    rows::{FromRow, from_row},
    selection::SubjectPattern,
    time::Time,
};

/// Messages that an inbox must have in time.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a caller makes one")]
pub struct Expected {
    /// Their subjects.
    pub subject: SubjectPattern,
    /// The inbox: `service:handler`.
    pub handled_by: String,
    /// The time from the commit on: a second to 366 days, and shorter than relays keep messages.
    pub within: Duration,
    /// The database of the inbox, by its name in the relay's file; `None` for this one.
    pub inbox_database: Option<String>,
    /// Whether no consumer need have registered under that name.
    pub is_unseen: bool,
}

/// A message that is not in its inbox in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Unhandled {
    /// The inbox.
    pub handled_by: String,
    /// The message's key.
    pub key: String,
    /// Its subject.
    pub subject: String,
    /// Its lane.
    pub lane: i16,
    /// Its id.
    pub id: i64,
    /// When it was enqueued.
    pub enqueued_at: Time,
}

from_row!(Unhandled: key, subject, lane, id, handled_by = "scope", enqueued_at = "created_at");

impl FromRow for Expectation {
    fn from_row(row: &Row) -> Self {
        expectation(row)
    }
}

/// The refusals of the functions, as sentences of a command.
fn refused(error: RelayError) -> RelayError {
    match error {
        RelayError::Refused(text) => RelayError::Expect(text),
        error => error,
    }
}

impl Operator {
    /// Has relays look whether messages are in an inbox in time, from those on that are committed
    /// after their next look. Takes the place of an earlier expectation for both.
    ///
    /// # Errors
    /// The pattern, the time or the inbox is refused, with the reason; PostgreSQL went away.
    pub async fn expect(&self, expected: &Expected) -> Result<()> {
        let Expected { subject, handled_by, within, inbox_database, is_unseen } = expected;
        let (subject, within) = (subject.as_str(), within.as_secs_f64());
        let (by, note) = (&self.stamp.operator, &self.stamp.note);
        let parameters: [&dyn Parameter; 7] =
            [&subject, handled_by, &within, inbox_database, is_unseen, by, note];
        self.query("expect messages", &self.sql.expect, &parameters).await.map(drop).map_err(refused)
    }

    /// Looks whether the inbox is in this database, and keeps its keys for long enough: for an
    /// expectation whose messages are in another one, before [`expect`](Self::expect) there.
    ///
    /// # Errors
    /// The time or the inbox is refused, with the reason; PostgreSQL went away.
    pub async fn check_expected(&self, expected: &Expected) -> Result<()> {
        let Expected { handled_by, within, inbox_database, is_unseen, .. } = expected;
        let place = inbox_database.as_ref().map_or("this database".into(), |name| format!("database {name}"));
        let parameters: [&dyn Parameter; 4] = [handled_by, &within.as_secs_f64(), is_unseen, &place];
        let checked = self.query("check an expected inbox", &self.sql.check_expected, &parameters).await;
        checked.map(drop).map_err(refused)
    }

    /// Ends an expectation; false when there is none.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn expect_no_more(&self, subject: &str, handled_by: &str) -> Result<bool> {
        let (by, note) = (&self.stamp.operator, &self.stamp.note);
        let parameters: [&dyn Parameter; 4] = [&subject, &handled_by, by, note];
        let rows = self.query("end an expectation", &self.sql.expect_no_more, &parameters).await?;
        Ok(!rows.is_empty())
    }

    /// All expectations, a hundred at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn expectations(&self) -> Result<Vec<Expectation>> {
        self.all("list expectations", &self.schema.sql(sql::EXPECTATIONS), &[]).await
    }

    /// Messages that are not in their inbox in time, the oldest first; of one expectation, or all.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn unhandled(
        &self,
        subject: Option<&str>,
        handled_by: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Unhandled>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.all("list unhandled messages", &self.sql.unhandled, &[&subject, &handled_by, &limit]).await
    }
}
