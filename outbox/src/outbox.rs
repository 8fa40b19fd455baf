//! Calls of the SQL functions that enqueue.

use std::{ops::Range, time::SystemTime};

use oncebox_schema::{Driver, Parameter, SchemaName, Value, VersionError, check_version, statements, typed};
use tokio_postgres::Row;

use crate::{Error, InTransaction, Key, Message, due::Due, trace};

// One call of `enqueue_all` takes this many messages (the SQL function refuses more) and this many
// bytes of payload (one statement is held whole in memory, here and in PostgreSQL).
const CALL_MESSAGES_MAX: usize = 10_000;
const CALL_PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Enqueues messages inside the caller's transaction. Cheap to make; share one or make one where it
/// is used.
#[derive(Clone, Debug)]
pub struct Outbox {
    schema: SchemaName,
    sql: Statements,
    is_pooled: bool,
}

statements!(bare_sql "sql/":
    enqueue, enqueue_all, enqueue_through, enqueue_at, cancel_delayed, list_delayed
);

impl Outbox {
    /// The outbox in this PostgreSQL schema; [`Outbox::default`] uses `oncebox`.
    #[must_use]
    pub fn new(schema: SchemaName) -> Self {
        let sql = Statements::new(&schema);
        Self { schema, sql, is_pooled: false }
    }

    /// For connections through a pooler in transaction mode, such as `PgBouncer`: nothing is
    /// prepared, since the next transaction may get the session of another client. `PgBouncer` from
    /// 1.21 on, with `max_prepared_statements` above 0, does not need it. Transactions of
    /// tokio-postgres itself never do.
    ///
    /// ```
    /// let outbox = oncebox_outbox::Outbox::default().behind_pooler();
    /// ```
    #[must_use]
    pub fn behind_pooler(mut self) -> Self {
        self.is_pooled = true;
        self
    }

    /// Checks that the database has the schema version that this crate was built for. For a
    /// program's start.
    ///
    /// # Errors
    /// The schema is not installed, older or newer than this program, or PostgreSQL refused.
    pub async fn check(&self, client: &tokio_postgres::Client) -> Result<(), VersionError> {
        check_version(client, &self.schema).await
    }

    /// Enqueues a message: it exists when, and only when, `transaction` commits. Returns its id, or
    /// `None` when this very message (key, subject and payload) is enqueued already, which makes a
    /// retried request harmless.
    ///
    /// Waits while another open transaction has enqueued the same key, until that one ends.
    ///
    /// # Errors
    /// See [`Error`]; roll the transaction back.
    pub async fn enqueue<D>(
        &self,
        transaction: impl OpenTransaction<D>,
        message: &Message,
    ) -> Result<Option<i64>, Error> {
        message.check()?;
        let id = transaction.asked().enqueue(self, message).await?;
        tracing::debug!(key = message.key().as_str(), id, "enqueued");
        Ok(id)
    }

    /// Over tokio-postgres.
    pub(crate) async fn enqueue_in(
        &self,
        transaction: &impl InTransaction,
        message: &Message,
    ) -> Result<Option<i64>, Error> {
        if message.due().is_some() {
            return Ok(self.enqueue_call(transaction, std::slice::from_ref(message)).await?[0]);
        }
        let (key, subject) = (message.key().as_str(), message.subject().as_str());
        let (payload, headers) = (message.payload(), headers_json(message)?);
        let parameters: [&dyn Parameter; 5] =
            [&key, &subject, &payload, &headers, &message.ordering_key_text()];
        let rows = self.run(transaction, &self.sql.enqueue, &parameters).await?;
        Ok(self.ids(&rows)?[0])
    }

    /// Over another driver.
    pub(crate) async fn enqueue_through<D: Driver>(
        &self,
        connection: &mut D::Connection,
        message: &Message,
    ) -> Result<Option<i64>, Error> {
        let headers = headers_json(message)?;
        let (due_at, delay) = message.due().map_or((None, None), Due::in_seconds);
        let values = [
            Value::Text(Some(message.key().as_str())),
            Value::Text(Some(message.subject().as_str())),
            Value::Bytes(Some(message.payload())),
            Value::Text(Some(&headers)),
            Value::Text(message.ordering_key_text()),
            Value::Float(due_at),
            Value::Float(delay),
        ];
        let row = D::query(connection, &self.sql.enqueue_through, &values, self.is_pooled).await;
        let row = row.map_err(|source| Error::from_driver::<D>(&self.schema, source))?;
        Ok(row.and_then(|row| row.number(0)))
    }

    /// Enqueues messages in the order given, in few round trips. Returns for each the same as
    /// [`Outbox::enqueue`].
    ///
    /// Any number of messages: more than 10,000, or more than 16 MiB of payloads, are sent in
    /// several calls within the transaction. Two transactions that enqueue the same keys in
    /// different order may deadlock; PostgreSQL then ends one of them with [`Error::Retry`].
    ///
    /// # Errors
    /// See [`Error`]; roll the transaction back, since some of the messages may have been enqueued
    /// in it.
    pub async fn enqueue_all(
        &self,
        transaction: &impl InTransaction,
        messages: &[Message],
    ) -> Result<Vec<Option<i64>>, Error> {
        messages.iter().try_for_each(Message::check)?;
        let mut ids = Vec::with_capacity(messages.len());
        let sizes: Vec<usize> = messages.iter().map(|message| message.payload().len()).collect();
        for call in calls(&sizes) {
            ids.extend(self.enqueue_call(transaction, &messages[call]).await?);
        }
        tracing::debug!(messages = ids.len(), "enqueued");
        Ok(ids)
    }

    async fn enqueue_call(
        &self,
        transaction: &impl InTransaction,
        messages: &[Message],
    ) -> Result<Vec<Option<i64>>, Error> {
        let keys: Vec<&str> = messages.iter().map(|message| message.key().as_str()).collect();
        let subjects: Vec<&str> = messages.iter().map(|message| message.subject().as_str()).collect();
        let payloads: Vec<&[u8]> = messages.iter().map(Message::payload).collect();
        let headers = messages.iter().map(headers_json).collect::<Result<Vec<String>, Error>>()?;
        let ordering_keys: Vec<Option<&str>> = messages.iter().map(Message::ordering_key_text).collect();
        let due = || messages.iter().map(Message::due);
        let times: Vec<Option<SystemTime>> = due().map(|due| due.and_then(Due::time)).collect();
        let seconds: Vec<Option<f64>> = due().map(|due| due.and_then(Due::seconds)).collect();
        let mut parameters: Vec<&dyn Parameter> = vec![&keys, &subjects, &payloads, &headers, &ordering_keys];
        let mut sql = &self.sql.enqueue_all;
        if due().any(|due| due.is_some()) {
            parameters.extend([&times as &dyn Parameter, &seconds]);
            sql = &self.sql.enqueue_at;
        }
        let ids = self.ids(&self.run(transaction, sql, &parameters).await?)?;
        assert_eq!(ids.len(), messages.len(), "one row answers for each message");
        Ok(ids)
    }

    async fn run(
        &self,
        transaction: &impl InTransaction,
        sql: &str,
        parameters: &[&(dyn Parameter + '_)],
    ) -> Result<Vec<Row>, Error> {
        let rows = transaction.run(sql, &typed(parameters), self.is_pooled).await;
        rows.map_err(|source| self.failed(source))
    }

    fn ids(&self, rows: &[Row]) -> Result<Vec<Option<i64>>, Error> {
        let ids: Result<_, _> = rows.iter().map(|row| row.try_get(0)).collect();
        ids.map_err(|source| self.failed(source))
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.sql
    }

    fn failed(&self, source: tokio_postgres::Error) -> Error {
        Error::from_postgres(&self.schema, source)
    }
}

/// An open transaction of a client library of PostgreSQL, borrowed: `&transaction` of
/// tokio-postgres, deadpool-postgres, and of handlers over them, see [`InTransaction`]; `&mut
/// transaction` of sqlx, `SeaORM` and diesel-async, for which the crates `oncebox-sqlx`,
/// `oncebox-sea-orm` and `oncebox-diesel` implement it.
///
/// `D` tells the client libraries apart, and follows from the transaction.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no open transaction, in which a message could be enqueued",
    label = "not an open transaction",
    note = "begin one, write your rows in it, and pass `&transaction` (tokio-postgres, deadpool-postgres) or `&mut \
            transaction` (sqlx, SeaORM, diesel-async)",
    note = "for sqlx, SeaORM and diesel-async, depend on oncebox-sqlx, oncebox-sea-orm or oncebox-diesel"
)]
pub trait OpenTransaction<D>: Send {
    #[doc(hidden)]
    type Asked: Ask;

    #[doc(hidden)]
    fn asked(self) -> Self::Asked;
}

/// The questions of an outbox to a transaction, over each client library.
#[doc(hidden)]
pub trait Ask: Send {
    fn enqueue(
        self,
        outbox: &Outbox,
        message: &Message,
    ) -> impl Future<Output = Result<Option<i64>, Error>> + Send;

    /// The one text that a statement answers with, whose parameters are a key and a number or only
    /// the key.
    fn text(
        self,
        outbox: &Outbox,
        sql: &str,
        key: &Key,
        number: Option<i64>,
    ) -> impl Future<Output = Result<String, Error>> + Send;
}

/// A transaction of tokio-postgres.
#[doc(hidden)]
#[derive(Debug)]
pub struct Direct<'a, T>(&'a T);

impl<'a, T: InTransaction> OpenTransaction<()> for &'a T {
    type Asked = Direct<'a, T>;

    fn asked(self) -> Direct<'a, T> {
        Direct(self)
    }
}

impl<T: InTransaction> Ask for Direct<'_, T> {
    async fn enqueue(self, outbox: &Outbox, message: &Message) -> Result<Option<i64>, Error> {
        outbox.enqueue_in(self.0, message).await
    }

    async fn text(self, outbox: &Outbox, sql: &str, key: &Key, number: Option<i64>) -> Result<String, Error> {
        let name = key.as_str();
        let parameters: [&dyn Parameter; 2] = [&name, &number];
        let given = &parameters[..1 + usize::from(number.is_some())];
        let rows = outbox.run(self.0, sql, given).await?;
        rows[0].try_get(0).map_err(|source| outbox.failed(source))
    }
}

/// The connection of a transaction, with its driver: the crates for drivers implement
/// [`OpenTransaction`] with it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Through<'a, D: Driver>(pub &'a mut D::Connection);

impl<D: Driver> Ask for Through<'_, D> {
    async fn enqueue(self, outbox: &Outbox, message: &Message) -> Result<Option<i64>, Error> {
        outbox.enqueue_through::<D>(self.0, message).await
    }

    async fn text(self, outbox: &Outbox, sql: &str, key: &Key, number: Option<i64>) -> Result<String, Error> {
        let values = [Value::Text(Some(key.as_str())), Value::Integer(number)];
        let given = &values[..1 + usize::from(number.is_some())];
        let row = D::query(self.0, sql, given, outbox.is_pooled).await;
        let row = row.map_err(|source| Error::from_driver::<D>(&outbox.schema, source))?;
        Ok(row.as_ref().and_then(|row| row.text(0)).unwrap_or_default().to_owned())
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new(SchemaName::default())
    }
}

fn headers_json(message: &Message) -> Result<String, Error> {
    serde_json::to_string(&trace::with_context(message))
        .map_err(|source| Error::Serialize { key: message.key().clone(), source })
}

/// Splits messages with payloads of these sizes into calls within the two limits; a call has at
/// least one message.
fn calls(sizes: &[usize]) -> Vec<Range<usize>> {
    let mut calls = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, size) in sizes.iter().enumerate() {
        if at > start && (at - start == CALL_MESSAGES_MAX || bytes + size > CALL_PAYLOAD_BYTES_MAX) {
            calls.push(start..at);
            (start, bytes) = (at, 0);
        }
        bytes += size;
    }
    if start < sizes.len() {
        calls.push(start..sizes.len());
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_keep_both_limits_and_the_order() {
        assert!(calls(&[]).is_empty());
        assert_eq!(calls(&[1; 10_000]), vec![0..10_000]);
        assert_eq!(calls(&[1; 20_001]), vec![0..10_000, 10_000..20_000, 20_000..20_001]);
        let half = CALL_PAYLOAD_BYTES_MAX / 2;
        assert_eq!(calls(&[half, half, 1, half]), vec![0..2, 2..4]);
        assert_eq!(calls(&[CALL_PAYLOAD_BYTES_MAX + 1, 1]), vec![0..1, 1..2]);
    }

    #[test]
    fn statements_travel_without_comments_and_with_their_schema() {
        let outbox = Outbox::new("billing".parse().unwrap());
        for sql in [&outbox.sql.enqueue, &outbox.sql.enqueue_all] {
            assert!(
                !sql.contains("--") && !sql.contains('{') && sql.contains("\"billing\".enqueue"),
                "{sql}"
            );
        }
    }
}
