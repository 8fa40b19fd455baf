//! The records of messages that wait for a dead letter of their ordering key.

use std::time::{Duration, SystemTime};

use oncebox_schema::{Columns, Driver, SchemaName, Value};

use super::{Message, Origin, Records, copy_values, dead_letters::headers_json};
use crate::{Error, database::statement, identity::Identity};

/// The statements, as this schema has them.
#[derive(Debug)]
pub(super) struct Statements {
    follow: String,
    wait: String,
    next: String,
    end: String,
}

impl Statements {
    pub(super) fn new(schema: &SchemaName) -> Self {
        Self {
            follow: statement(schema, include_str!("lines/follow.sql")),
            wait: statement(schema, include_str!("lines/wait.sql")),
            next: statement(schema, include_str!("lines/next.sql")),
            end: statement(schema, include_str!("lines/end.sql")),
        }
    }
}

/// Where a message with an ordering key stands before its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing is before it.
    Free,
    /// It waits in the database.
    Behind,
    /// As many wait there as may.
    Full,
}

/// The place of a message in the line of its ordering key, and since when it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InLine {
    id: i64,
    since: i64,
}

impl InLine {
    /// The number of the message; later ones have higher numbers.
    #[must_use]
    pub fn id(&self) -> i64 {
        self.id
    }
}

/// A message that waited in a line, as it came.
#[derive(Debug)]
pub struct Waiting {
    /// Its place.
    pub place: InLine,
    /// The subject.
    pub subject: String,
    /// The headers, of which a name may occur more than once.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Vec<u8>,
    /// Where the stream had it.
    pub origin: Origin,
}

/// The message that a line has come to.
#[derive(Debug)]
pub enum Head {
    /// It is to be run.
    Due(Box<Waiting>),
    /// Lines are stopped, and nothing is to run.
    Stopped,
    /// No line is stopped.
    None,
}

impl<D: Driver> Records<D> {
    /// Says how many messages may wait for a dead letter; whether any line is stopped.
    pub async fn follow_lines(&self, scope: &str, behind_max: Option<u32>) -> Result<bool, Error> {
        let values = [Value::Text(Some(scope)), Value::Integer(behind_max.map(i64::from))];
        let row = self.database.alone("follow stopped lines", &self.lines.follow, &values).await?;
        Ok(row.is_some_and(|row| row.is_true(0)))
    }

    /// Puts a message into the line of the dead letter of its ordering key, if there is one.
    pub async fn wait_in_line(
        &self,
        scope: &str,
        identity: &Identity,
        message: Message<'_>,
    ) -> Result<Place, Error> {
        if message.origin.is_none() {
            return Ok(Place::Free);
        }
        let [scope, tenant, key, stream, sequence, stored_at] = copy_values(scope, identity, message);
        let (subject, headers) = (message.subject(), headers_json(message.headers));
        let values = [
            scope,
            key,
            Value::Bytes(Some(message.kept_payload())),
            Value::Text(Some(&subject)),
            Value::Text(Some(&headers)),
            tenant,
            stream,
            sequence,
            stored_at,
        ];
        let row = self.database.alone("wait behind a dead letter", &self.lines.wait, &values).await?;
        Ok(match row.as_ref().and_then(|row| row.text(0)) {
            Some("free") => Place::Free,
            Some("behind") => Place::Behind,
            _ => Place::Full,
        })
    }

    /// The next message above this id that is to run from a line.
    pub async fn next_in_line(&self, scope: &str, stream: &str, after: i64) -> Result<Head, Error> {
        let values = [Value::Text(Some(scope)), Value::Text(Some(stream)), Value::Integer(Some(after))];
        let row = self.database.alone("look at stopped lines", &self.lines.next, &values).await?;
        Ok(match row {
            None => Head::None,
            Some(mut row) => waiting(&mut row, stream).map_or(Head::Stopped, |due| Head::Due(Box::new(due))),
        })
    }

    /// Takes a message out of its line that has ended.
    pub async fn end_in_line(&self, scope: &str, InLine { id, since }: InLine) -> Result<(), Error> {
        let values = [Value::Text(Some(scope)), Value::Integer(Some(id)), Value::Integer(Some(since))];
        self.database.alone("move a line on", &self.lines.end, &values).await.map(drop)
    }
}

fn waiting(row: &mut Columns, stream: &str) -> Option<Waiting> {
    let place = InLine { id: row.number(0)?, since: row.number(1)? };
    let stored = Duration::from_micros(row.number(6)?);
    let origin = Origin {
        stream: stream.to_owned(),
        sequence: row.number(5)?,
        stored_at: SystemTime::UNIX_EPOCH + stored,
    };
    let named: serde_json::Map<String, serde_json::Value> = serde_json::from_str(row.text(3)?).ok()?;
    let mut headers = Vec::new();
    for (name, value) in named {
        let values = match value {
            serde_json::Value::Array(values) => values,
            single => vec![single],
        };
        let texts = values.iter().map(|value| value.as_str().unwrap_or_default().to_owned());
        headers.extend(texts.map(|text| (name.clone(), text)));
    }
    let subject = row.text(2)?.to_owned();
    Some(Waiting { place, subject, headers, payload: row.take(4)?, origin })
}
