//! The records of dead letters.

use std::time::Duration;

use oncebox_schema::{Columns, Driver, SchemaName, Value};

use super::{Message, Records, bigint};
use crate::{
    Error,
    database::{failed_through, statement},
    failure::bounded,
    identity::fingerprint,
};

/// The statements, as this schema has them.
#[derive(Debug)]
pub(super) struct Statements {
    record: String,
    read: String,
}

impl Statements {
    pub(super) fn new(schema: &SchemaName) -> Self {
        Self {
            record: statement(schema, include_str!("dead_letters/record.sql")),
            read: statement(schema, include_str!("dead_letters/read.sql")),
        }
    }
}

/// A dead letter, as its row has it; without the message itself.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Its number.
    pub id: i64,
    /// Who its key belongs to.
    pub tenant: String,
    /// Its key, if it has a valid one.
    pub key: Option<String>,
    /// Why it was given up.
    pub reason: String,
    /// How often it was delivered.
    pub deliveries: i64,
    /// How long ago it was recorded.
    pub age: Duration,
}

impl<D: Driver> Records<D> {
    /// The dead letter of a message, if it is in a stream and has one.
    pub async fn read_dead_letter(
        &self,
        scope: &str,
        message: Message<'_>,
    ) -> Result<Option<DeadLetter>, Error> {
        if message.origin.is_none() {
            return Ok(None);
        }
        let [stream, sequence, stored_at] = message.place_values();
        let values = [Value::Text(Some(scope)), stream, sequence, stored_at];
        let row = self.database.alone("read a dead letter", &self.dead_letters.read, &values).await?;
        let text = |row: &Columns, column| row.text(column).map(str::to_owned);
        Ok(row.map(|row| DeadLetter {
            id: row.number(0).unwrap_or(0),
            tenant: text(&row, 1).unwrap_or_default(),
            key: text(&row, 2),
            reason: text(&row, 3).unwrap_or_default(),
            deliveries: row.number(4).unwrap_or(0),
            age: Duration::from_millis(row.number(5).unwrap_or(0)),
        }))
    }

    /// Records a dead letter.
    pub async fn record_dead_letter(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        (tenant, key): (&str, Option<&str>),
        message: Message<'_>,
        reason: &str,
    ) -> Result<(), Error> {
        let [stream, sequence, stored_at] = message.place_values();
        let (subject, headers, reason) = (message.subject(), headers_json(message.headers), bounded(reason));
        let fingerprint = message.is_fetched.then(|| fingerprint(message.payload));
        let values = [
            Value::Text(Some(scope)),
            Value::Text(Some(tenant)),
            Value::Text(key),
            Value::Text(Some(&subject)),
            Value::Text(Some(&headers)),
            Value::Bytes(Some(message.kept_payload())),
            stream,
            sequence,
            stored_at,
            Value::Integer(Some(bigint(message.deliveries))),
            Value::Text(Some(&reason)),
            Value::Bytes(fingerprint.as_ref().map(|bytes| &bytes[..])),
        ];
        let recorded = self.database.query(transaction, &self.dead_letters.record, &values).await;
        recorded.map(drop).map_err(failed_through::<D>("record a dead letter"))
    }
}

/// Headers as a JSON object; a name that occurs more than once has an array of values.
pub(super) fn headers_json(headers: &[(String, String)]) -> String {
    let mut object = serde_json::Map::new();
    for (name, value) in headers {
        // jsonb takes no NUL.
        let value = serde_json::Value::from(value.replace('\0', "\u{fffd}"));
        match object.entry(name.replace('\0', "\u{fffd}")) {
            serde_json::map::Entry::Vacant(entry) => {
                entry.insert(value);
            }
            serde_json::map::Entry::Occupied(mut entry) => match entry.get_mut() {
                serde_json::Value::Array(values) => values.push(value),
                single => *single = serde_json::Value::Array(vec![single.take(), value]),
            },
        }
    }
    serde_json::Value::Object(object).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_any_kind_become_json() {
        let headers = [("a", "1"), ("b", "x\0y"), ("a", "2"), ("a", "3")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(headers_json(&headers), "{\"a\":[\"1\",\"2\",\"3\"],\"b\":\"x\u{fffd}y\"}");
        assert_eq!(headers_json(&[]), "{}");
    }
}
