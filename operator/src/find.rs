//! Finding messages and sagas by anything but their key, and reading lists for pages.

use std::time::SystemTime;

use oncebox_connect::error::RelayError;
use serde::Serialize;

use super::{Operator, failed, parked::rfc3339};

/// Messages that are looked at, and rows that are returned, at most.
const LOOKED_AT_MAX: i64 = 4_000;
const FOUND_MAX: i64 = 50;

/// A message that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FoundMessage {
    /// Its key.
    pub key: String,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// When it was enqueued.
    #[serde(serialize_with = "rfc3339")]
    pub created_at: SystemTime,
}

/// Messages and sagas that have a text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Found {
    /// Messages with this ordering key, subject or trace, among the newest 4,000; the newest 50.
    pub messages: Vec<FoundMessage>,
    /// The keys of sagas about this business object, 50 at most.
    pub sagas: Vec<String>,
}

impl Operator {
    /// The messages and sagas that have this text as ordering key, subject, trace or business id.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn find(&self, text: &str) -> Result<Found, RelayError> {
        let recent = &self.sql.find_recent;
        let rows = self.query("find messages", recent, &[&text, &LOOKED_AT_MAX, &FOUND_MAX]).await?;
        let messages = rows.iter().map(|row| FoundMessage {
            key: row.get("key"),
            subject: row.get("subject"),
            ordering_key: row.get("ordering_key"),
            created_at: row.get("created_at"),
        });
        let messages = messages.collect();
        let rows = self.query("find sagas", &self.sql.find_sagas, &[&text, &FOUND_MAX]).await?;
        Ok(Found { messages, sagas: rows.iter().map(|row| row.get("key")).collect() })
    }

    /// Begins to read lists for a page: until [`Operator::end_look`] PostgreSQL changes nothing,
    /// and gives each statement up after five seconds. Methods that begin transactions of their
    /// own end it.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn begin_look(&mut self) -> Result<(), RelayError> {
        let begin = format!("BEGIN;\n{};\n{}", self.sql.status_settings, self.sql.look_settings);
        self.client.batch_execute(&begin).await.map_err(failed("begin to look"))
    }

    /// Ends that.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn end_look(&self) -> Result<(), RelayError> {
        self.client.batch_execute("ROLLBACK").await.map_err(failed("end a look"))
    }
}
