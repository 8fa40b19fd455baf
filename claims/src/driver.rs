//! tokio-postgres, with the pool of deadpool-postgres, as a driver: statements are sent before
//! those in front of them are answered.
//!
//! libpq calls this pipeline mode
//! (<https://www.postgresql.org/docs/current/libpq-pipeline-mode.html>).

use std::{error::Error as StdError, future::Future, pin::Pin, task::Poll, time::Duration};

use bytes::BytesMut;
use deadpool_postgres::{Pool, PoolError};
use futures_util::future::{MaybeDone, maybe_done, poll_fn};
use oncebox_schema::{Answer, BeginError, Cause, Columns, Driver, Transaction, Value};
use tokio::time::timeout;
use tokio_postgres::{
    Error, Row,
    types::{FromSql, IsNull, ToSql, Type, to_sql_checked},
};

use crate::failure::cause_of;

mod ready;
mod write;

pub use ready::{Parameter, Ready};
pub use write::{Deferrable, Write};

/// tokio-postgres, over a pool of deadpool-postgres.
#[derive(Clone, Debug)]
pub struct TokioPostgres(pub(crate) Pool);

impl From<Pool> for TokioPostgres {
    fn from(pool: Pool) -> Self {
        Self(pool)
    }
}

/// A statement of ours.
type Statement<'a> = oncebox_schema::Statement<'a, TokioPostgres>;
/// An answer that is waited for.
type Pending<'a> = MaybeDone<Pin<Box<dyn Future<Output = Answer<TokioPostgres>> + Send + 'a>>>;

impl Driver for TokioPostgres {
    const NAME: &'static str = "tokio-postgres";
    const PIPELINES: bool = true;

    type Connection = Transaction;
    type Transaction = Transaction;
    type Error = Error;
    type Write = Write;

    async fn begin(
        &self,
        within: Duration,
        begin: &str,
        statements: &[Statement<'_>],
        is_pooled: bool,
    ) -> Result<(Transaction, Vec<Answer<Self>>), BeginError> {
        let transaction = Transaction::on(timeout(within, self.0.get()).await??);
        // Prepared before, so that BEGIN and the statements go out together.
        let ready = match prepare(&transaction, statements, is_pooled).await {
            Ok(ready) => ready,
            Err(error) => return Ok((transaction, vec![Err(error)])),
        };
        let sent = send(&transaction, statements, &ready);
        let (begun, answers) = futures_util::join!(transaction.batch_execute(begin), sent);
        begun?;
        Ok((transaction, answers))
    }

    async fn alone(
        &self,
        within: Duration,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> Result<Option<Columns>, BeginError> {
        // Dropped before a good answer, it closes the connection.
        let mut connection = Transaction::on(timeout(within, self.0.get()).await??);
        let row = Self::query(&mut connection, sql, values, is_pooled).await?;
        connection.set_over();
        Ok(row)
    }

    fn connection(transaction: &mut Transaction) -> &mut Transaction {
        transaction
    }

    async fn query(
        connection: &mut Transaction,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> Result<Option<Columns>, Error> {
        query(connection, &Ready::new(connection, sql, is_pooled).await?, values).await
    }

    async fn batch(connection: &mut Transaction, sql: &str) -> Result<(), Error> {
        connection.batch_execute(sql).await
    }

    async fn write(connection: &mut Transaction, write: &Write) -> Result<(), Error> {
        write.execute(connection).await
    }

    async fn send(
        transaction: &mut Transaction,
        statements: &[Statement<'_>],
        is_pooled: bool,
    ) -> Vec<Answer<Self>> {
        match prepare(transaction, statements, is_pooled).await {
            Ok(ready) => send(transaction, statements, &ready).await,
            Err(error) => vec![Err(error)],
        }
    }

    async fn rollback(transaction: Transaction) -> Result<(), Error> {
        transaction.batch_execute("ROLLBACK").await?;
        transaction.set_over();
        Ok(())
    }

    async fn release(transaction: Transaction) {
        transaction.release();
    }

    async fn close(transaction: Transaction) {
        transaction.close();
    }

    fn set_over(transaction: &Transaction) {
        transaction.set_over();
    }

    fn is_lost(transaction: &Transaction) -> bool {
        transaction.is_closed()
    }

    fn connections_max(&self) -> Option<usize> {
        Some(self.0.status().max_size)
    }

    fn is_awaited(&self) -> bool {
        self.0.status().waiting > 0
    }

    fn is_busy(&self) -> bool {
        let status = self.0.status();
        status.waiting > 0 || (status.available == 0 && status.size >= status.max_size)
    }

    fn cause(error: &(dyn StdError + 'static)) -> Option<Cause> {
        match error.downcast_ref::<PoolError>() {
            Some(PoolError::Backend(error)) => return Some(cause_of(error)),
            Some(_) => return Some(Cause::Lost),
            None => {}
        }
        error.downcast_ref::<Error>().map(cause_of)
    }
}

/// Prepares the statements that have parameters, so that the first poll of each future sends it.
async fn prepare<'a>(
    transaction: &Transaction,
    statements: &[Statement<'a>],
    is_pooled: bool,
) -> Result<Vec<Option<Ready<'a>>>, Error> {
    let mut ready = Vec::with_capacity(statements.len());
    for statement in statements {
        ready.push(match statement {
            oncebox_schema::Statement::Query(sql, _) => Some(Ready::new(transaction, sql, is_pooled).await?),
            _ => None,
        });
    }
    Ok(ready)
}

/// Sends all at the first poll, and takes the answers, up to the first error.
async fn send(
    transaction: &Transaction,
    statements: &[Statement<'_>],
    ready: &[Option<Ready<'_>>],
) -> Vec<Answer<TokioPostgres>> {
    let mut pending: Vec<Pending<'_>> = statements
        .iter()
        .zip(ready)
        .map(|(statement, ready)| maybe_done(ask(transaction, statement, ready.as_ref())))
        .collect();
    poll_fn(|cx| {
        for answer in &mut pending {
            // A finished one stays there until it is taken below.
            let _ = Pin::new(answer).poll(cx);
        }
        Poll::Ready(())
    })
    .await;
    let mut answers = Vec::with_capacity(pending.len());
    let mut is_refused = false;
    for mut answer in pending {
        (&mut answer).await;
        let answer = Pin::new(&mut answer).take_output().expect("it was awaited just now");
        if !is_refused {
            is_refused = answer.is_err();
            answers.push(answer);
        }
    }
    answers
}

fn ask<'a>(
    transaction: &'a Transaction,
    statement: &'a Statement<'_>,
    ready: Option<&'a Ready<'_>>,
) -> Pin<Box<dyn Future<Output = Answer<TokioPostgres>> + Send + 'a>> {
    match (statement, ready) {
        (oncebox_schema::Statement::Query(_, values), Some(ready)) => {
            Box::pin(query(transaction, ready, values))
        }
        (oncebox_schema::Statement::Batch(sql) | oncebox_schema::Statement::Query(sql, _), _) => {
            Box::pin(async { transaction.batch_execute(sql).await.map(|()| None) })
        }
        (oncebox_schema::Statement::Write(write), _) => {
            Box::pin(async { write.execute(transaction).await.map(|()| None) })
        }
    }
}

async fn query(
    transaction: &Transaction,
    ready: &Ready<'_>,
    values: &[Value<'_>],
) -> Result<Option<Columns>, Error> {
    let bound: Vec<Bound<'_>> = values.iter().map(Bound).collect();
    let parameters: Vec<Parameter<'_>> =
        bound.iter().map(|bound| (bound as &(dyn ToSql + Sync), bound.sql_type())).collect();
    let row = ready.query_opt(transaction, &parameters).await?;
    row.map(|row| columns(&row)).transpose()
}

fn columns(row: &Row) -> Result<Columns, Error> {
    let column = |column| row.try_get::<_, Option<Raw>>(column).map(|raw| raw.map(|Raw(bytes)| bytes));
    (0..row.len()).map(column).collect::<Result<_, _>>().map(Columns)
}

/// A column as it came.
struct Raw(Vec<u8>);

impl FromSql<'_> for Raw {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(raw.to_vec()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A value as a parameter.
#[derive(Debug)]
struct Bound<'a>(&'a Value<'a>);

impl Bound<'_> {
    fn sql_type(&self) -> Type {
        match self.0 {
            Value::Bytes(_) => Type::BYTEA,
            Value::Integer(_) => Type::INT8,
            Value::Float(_) => Type::FLOAT8,
            Value::Integers(_) => Type::INT8_ARRAY,
            _ => Type::TEXT,
        }
    }
}

impl ToSql for Bound<'_> {
    fn to_sql(&self, sql_type: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self.0 {
            Value::Text(text) => text.to_sql(sql_type, out),
            Value::Bytes(bytes) => bytes.to_sql(sql_type, out),
            Value::Integer(number) => number.to_sql(sql_type, out),
            Value::Float(number) => number.to_sql(sql_type, out),
            Value::Integers(numbers) => numbers.to_sql(sql_type, out),
            other => Err(format!("this version does not know a value of type {other:?}").into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
