//! The records of dead letters.

use std::time::Duration;

use oncebox_claims::{
    database::{Parameter, discard, failed, statement},
    failure::bounded,
};
use oncebox_schema::SchemaName;
use oncebox_schema::Transaction;
use tokio_postgres::types::Type;

use super::{Records, bigint};
use crate::{Error, Received};

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
pub(crate) struct DeadLetter {
    pub(crate) id: i64,
    pub(crate) tenant: String,
    pub(crate) key: Option<String>,
    pub(crate) reason: String,
    pub(crate) deliveries: i64,
    pub(crate) age: Duration,
}

impl Records {
    /// The dead letter of a message, if it is in a stream and has one.
    pub(crate) async fn read_dead_letter(
        &self,
        scope: &str,
        received: &Received,
    ) -> Result<Option<DeadLetter>, Error> {
        const WHAT: &str = "read a dead letter";
        let Some(origin) = received.origin() else { return Ok(None) };
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&origin.stream, Type::TEXT),
            (&bigint(origin.sequence), Type::INT8),
            (&origin.stored_at, Type::TIMESTAMPTZ),
        ];
        let object = self.database.connect().await?;
        let row =
            self.database.answered(WHAT, object.query_typed_opt(&self.dead_letters.read, &parameters)).await;
        let row = row.inspect_err(|_| discard(object))?.map_err(failed(WHAT))?;
        Ok(row.map(|row| DeadLetter {
            id: row.get("id"),
            tenant: row.get("tenant"),
            key: row.get("key"),
            reason: row.get("reason"),
            deliveries: row.get("deliveries"),
            age: Duration::from_millis(u64::try_from(row.get::<_, i64>("age_milliseconds")).unwrap_or(0)),
        }))
    }

    /// Records a dead letter.
    pub(crate) async fn record_dead_letter(
        &self,
        transaction: &Transaction,
        scope: &str,
        (tenant, key): (&str, Option<&str>),
        received: &Received,
        reason: &str,
    ) -> Result<(), Error> {
        let statement = self
            .database
            .ready(transaction, &self.dead_letters.record)
            .await
            .map_err(failed("record a dead letter"))?;
        let origin = received.origin();
        let subject = received.subject().replace('\0', "\u{fffd}");
        let parameters: [Parameter<'_>; 11] = [
            (&scope, Type::TEXT),
            (&tenant, Type::TEXT),
            (&key, Type::TEXT),
            (&subject, Type::TEXT),
            (&headers_json(received), Type::TEXT),
            (&received.payload(), Type::BYTEA),
            (&origin.map(|origin| origin.stream.as_str()), Type::TEXT),
            (&origin.map(|origin| bigint(origin.sequence)), Type::INT8),
            (&origin.map(|origin| origin.stored_at), Type::TIMESTAMPTZ),
            (&bigint(received.delivery_count()), Type::INT8),
            (&bounded(reason), Type::TEXT),
        ];
        statement.execute(transaction, &parameters).await.map_err(failed("record a dead letter"))?;
        Ok(())
    }
}

/// Headers as a JSON object; a name that occurs more than once has an array of values.
pub(crate) fn headers_json(received: &Received) -> String {
    let mut headers = serde_json::Map::new();
    for (name, value) in received.headers() {
        // jsonb takes no NUL.
        let value = serde_json::Value::from(value.replace('\0', "\u{fffd}"));
        match headers.entry(name.replace('\0', "\u{fffd}")) {
            serde_json::map::Entry::Vacant(entry) => {
                entry.insert(value);
            }
            serde_json::map::Entry::Occupied(mut entry) => match entry.get_mut() {
                serde_json::Value::Array(values) => values.push(value),
                single => *single = serde_json::Value::Array(vec![single.take(), value]),
            },
        }
    }
    serde_json::Value::Object(headers).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_any_kind_become_json() {
        let message =
            Received::new("s", "").header("a", "1").header("b", "x\0y").header("a", "2").header("a", "3");
        assert_eq!(headers_json(&message), "{\"a\":[\"1\",\"2\",\"3\"],\"b\":\"x\u{fffd}y\"}");
        assert_eq!(headers_json(&Received::new("s", "")), "{}");
    }
}
