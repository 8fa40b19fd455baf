//! The messages that a test's own transaction has enqueued.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use oncebox_schema::{Driver, SchemaName};
use serde::Deserialize;
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

/// A message as the statement has it.
#[derive(Deserialize)]
struct Told {
    key: String,
    subject: String,
    ordering_key: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    payload: String,
    not_before: Option<u64>,
}

/// The messages that this open transaction has enqueued, in their order. So a test asserts which
/// messages its code sends, and that it sends no others, and rolls back.
///
/// # Errors
/// PostgreSQL refuses, for example because this user may not read the log.
pub async fn enqueued(transaction: &impl GenericClient) -> Result<Vec<Enqueued>, Error> {
    let told: String = transaction.query_one(&sql(), &[]).await?.try_get(0)?;
    Ok(read(&told))
}

/// The same over another driver: `enqueued_over::<Sqlx>(&mut transaction)`.
///
/// # Errors
/// As [`enqueued`].
pub async fn enqueued_over<D: Driver>(transaction: &mut D::Connection) -> Result<Vec<Enqueued>, D::Error> {
    let row = D::query(transaction, &sql(), &[], false).await?;
    Ok(read(row.as_ref().and_then(|row| row.text(0)).unwrap_or_default()))
}

fn sql() -> String {
    include_str!("enqueued.sql").replace("{schema}", &SchemaName::default().to_string())
}

fn read(told: &str) -> Vec<Enqueued> {
    let told: Vec<Told> = from_str(told).expect("the statement answers with an array of messages");
    let is_own = |name: &String| !["traceparent", "tracestate"].contains(&name.as_str());
    let made = told.into_iter().map(|told| Enqueued {
        key: told.key,
        subject: told.subject,
        ordering_key: told.ordering_key,
        headers: told.headers.unwrap_or_default().into_iter().filter(|(name, _)| is_own(name)).collect(),
        payload: of_hexadecimal(&told.payload),
        not_before: told.not_before.map(|since| UNIX_EPOCH + Duration::from_micros(since)),
    });
    made.collect()
}

fn of_hexadecimal(text: &str) -> Vec<u8> {
    let digit = |digit: u8| u8::try_from(char::from(digit).to_digit(16).unwrap_or(0)).unwrap_or(0);
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
