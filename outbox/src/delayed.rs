//! Messages that must not be sent before a time: enqueue, list, cancel.

use std::time::SystemTime;

use tokio_postgres::{Row, types::Type};

use crate::{Error, InTransaction, Key, Message, Outbox, due::Due, outbox::headers_json};

/// A message that waits for its time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delayed {
    /// Its key.
    pub key: String,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// When it is due.
    pub not_before: SystemTime,
    /// When it was enqueued.
    pub created_at: SystemTime,
}

impl Outbox {
    /// Gives a delayed message up: when `transaction` commits, it will never be sent. `false` when
    /// no message of this key is delayed: it was never enqueued, was cancelled, or is in the log,
    /// and perhaps sent, since its time came.
    ///
    /// # Errors
    /// See [`Error`]; roll the transaction back.
    pub async fn cancel_delayed(&self, transaction: &impl InTransaction, key: &Key) -> Result<bool, Error> {
        let rows = transaction
            .run(&self.statements().cancel_delayed, &[(&key.as_str(), Type::TEXT)], self.is_pooled())
            .await;
        rows.and_then(|rows| rows[0].try_get(0)).map_err(|source| self.failed(source))
    }

    /// The delayed message with this key, and those of the steps below it, in the order of their
    /// keys: `most` of them, 10,000 at most.
    ///
    /// # Errors
    /// See [`Error`]; roll the transaction back.
    pub async fn list_delayed(
        &self,
        transaction: &impl InTransaction,
        key: &Key,
        most: u16,
    ) -> Result<Vec<Delayed>, Error> {
        let rows = transaction
            .run(
                &self.statements().list_delayed,
                &[(&key.as_str(), Type::TEXT), (&i32::from(most), Type::INT4)],
                self.is_pooled(),
            )
            .await;
        let rows = rows.and_then(|rows| rows.iter().map(delayed).collect::<Result<Vec<_>, _>>());
        rows.map_err(|source| self.failed(source))
    }

    /// Some of these are delayed.
    pub(crate) async fn enqueue_some_delayed(
        &self,
        transaction: &impl InTransaction,
        messages: &[Message],
    ) -> Result<Vec<Row>, Error> {
        let keys: Vec<&str> = messages.iter().map(|message| message.key().as_str()).collect();
        let subjects: Vec<&str> = messages.iter().map(|message| message.subject().as_str()).collect();
        let payloads: Vec<&[u8]> = messages.iter().map(Message::payload).collect();
        let headers = messages.iter().map(headers_json).collect::<Result<Vec<String>, Error>>()?;
        let ordering_keys: Vec<Option<&str>> = messages.iter().map(Message::ordering_key_text).collect();
        let due: Vec<Option<Due>> = messages.iter().map(Message::due).collect();
        let times: Vec<Option<SystemTime>> = due.iter().map(|due| due.and_then(Due::time)).collect();
        let seconds: Vec<Option<f64>> = due.iter().map(|due| due.and_then(Due::seconds)).collect();
        let rows = transaction
            .run(
                &self.statements().enqueue_at,
                &[
                    (&keys, Type::TEXT_ARRAY),
                    (&subjects, Type::TEXT_ARRAY),
                    (&payloads, Type::BYTEA_ARRAY),
                    (&headers, Type::TEXT_ARRAY),
                    (&ordering_keys, Type::TEXT_ARRAY),
                    (&times, Type::TIMESTAMPTZ_ARRAY),
                    (&seconds, Type::FLOAT8_ARRAY),
                ],
                self.is_pooled(),
            )
            .await;
        rows.map_err(|source| self.failed(source))
    }
}

fn delayed(row: &Row) -> Result<Delayed, tokio_postgres::Error> {
    Ok(Delayed {
        key: row.try_get("key")?,
        subject: row.try_get("subject")?,
        ordering_key: row.try_get("ordering_key")?,
        not_before: row.try_get("not_before")?,
        created_at: row.try_get("created_at")?,
    })
}
