//! The messages that a test's own transaction has enqueued.

use std::{collections::BTreeMap, time::SystemTime};

use oncebox_schema::SchemaName;
use serde_json::{Value, from_slice, from_str};
use tokio_postgres::{Error, GenericClient};

/// A message that a transaction has enqueued.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The idempotency key.
    pub key: String,
    /// The subject that it is published to.
    pub subject: String,
    /// The ordering key, if it has one.
    pub ordering_key: Option<String>,
    /// Its own headers, without those of a trace.
    pub headers: BTreeMap<String, String>,
    /// The payload.
    pub payload: Vec<u8>,
    /// When it is sent, if it is delayed.
    pub not_before: Option<SystemTime>,
}

impl Enqueued {
    /// The payload as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        from_slice(&self.payload).unwrap_or_default()
    }
}

/// The messages that this open transaction has enqueued, in their order. So a test asserts which
/// messages its code sends, and that it sends no others, and rolls back.
///
/// # Errors
/// PostgreSQL refuses, for example because this user may not read the log.
pub async fn enqueued(transaction: &impl GenericClient) -> Result<Vec<Enqueued>, Error> {
    let sql = include_str!("enqueued.sql").replace("{schema}", &SchemaName::default().to_string());
    let rows = transaction.query(&sql, &[]).await?;
    let made = rows.iter().map(|row| {
        let headers: BTreeMap<String, String> = from_str(row.get(3)).unwrap_or_default();
        let is_own = |name: &String| !["traceparent", "tracestate"].contains(&name.as_str());
        Enqueued {
            key: row.get(0),
            subject: row.get(1),
            ordering_key: row.get(2),
            headers: headers.into_iter().filter(|(name, _)| is_own(name)).collect(),
            payload: row.get(4),
            not_before: row.get(5),
        }
    });
    Ok(made.collect())
}
