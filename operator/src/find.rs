//! Finding messages and sagas by anything but their key, and reading lists for pages.

use oncebox_connect::postgres::Parameter;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Operator, Result, failed,
    payload::{ShownPayload, shown_payload},
    rows::from_row,
    time::{Time, enqueued_at},
};

/// Messages that are looked at, and rows that are returned, at most.
const LOOKED_AT_MAX: i64 = 4_000;
const FOUND_MAX: usize = 50;
/// The bytes of a payload that a page shows at most.
pub const PAYLOAD_BYTES_MAX: i32 = 64 * 1024;

/// A message that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct FoundMessage {
    /// Its key.
    pub key: String,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// When it was enqueued.
    pub created_at: Time,
}

/// Messages and sagas that have a text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Found {
    /// Messages with this ordering key, subject or trace, among the newest 4,000; the newest 50.
    pub messages: Vec<FoundMessage>,
    /// The keys of sagas about this business object, up to 50.
    pub sagas: Vec<String>,
    /// Whether there are more than these.
    pub has_more: bool,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MessageContent {
    /// The message.
    #[serde(flatten)]
    pub message: FoundMessage,
    /// Its own headers, a JSON object.
    pub headers: serde_json::Value,
    /// The size of its payload.
    pub payload_bytes: i64,
    /// The beginning of its payload, if asked for.
    #[serde(flatten)]
    pub payload: Option<ShownPayload>,
}

impl Operator {
    /// The content of the message with this key, in the log or delayed; of its payload, if asked
    /// for, the first 64 KiB. `None` when there is none.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn message(&self, key: &str, with_payload: bool) -> Result<Option<MessageContent>> {
        let parameters: [&dyn Parameter; 3] = [&key, &with_payload, &PAYLOAD_BYTES_MAX];
        Ok(self.all("read a message", &self.sql.message, &parameters).await?.pop())
    }

    /// The messages and sagas that have this text as ordering key, subject, trace or business id.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn find(&self, text: &str) -> Result<Found> {
        // One more shows that there are more.
        let (recent, most) = (&self.sql.find_recent, FOUND_MAX as i64 + 1);
        let mut messages: Vec<FoundMessage> =
            self.all("find messages", recent, &[&text, &LOOKED_AT_MAX, &most]).await?;
        let rows = self.query("find sagas", &self.sql.find_sagas, &[&text, &most]).await?;
        let mut sagas: Vec<String> = rows.iter().map(|row| row.get("key")).collect();
        let has_more = messages.len().max(sagas.len()) > FOUND_MAX;
        messages.truncate(FOUND_MAX);
        sagas.truncate(FOUND_MAX);
        Ok(Found { messages, sagas, has_more })
    }

    /// Begins to read lists for a page: until [`Operator::end_look`] PostgreSQL changes nothing,
    /// and gives each statement up after five seconds. Methods that begin transactions of their
    /// own end it.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn begin_look(&mut self) -> Result<()> {
        let begin = format!("BEGIN;\n{};\n{}", self.sql.status_settings, self.sql.look_settings);
        self.client.batch_execute(&begin).await.map_err(failed("begin to look"))
    }

    /// Ends that.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn end_look(&self) -> Result<()> {
        self.client.batch_execute("ROLLBACK").await.map_err(failed("end a look"))
    }
}

from_row!(FoundMessage: key, subject, ordering_key; row => created_at: Time(enqueued_at(row)));
from_row!(MessageContent: payload_bytes; row =>
    message: FoundMessage::from_row(row),
    headers: serde_json::from_str(row.get("headers")).unwrap_or_default(),
    payload: shown_payload(row));
