//! sqlx as a driver.

use std::{error::Error as StdError, time::Duration};

use oncebox_inbox::Exclusive;
use oncebox_schema::{Answer, BeginError, Cause, Columns, Driver, NoWrite, Statement, Value};
use sqlx::{
    AssertSqlSafe, Error, PgConnection, PgPool, Postgres, Row, ValueRef,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use tokio::time::timeout;

use crate::Transaction;

/// A pool of sqlx, in the form that an inbox takes.
#[derive(Clone, Debug)]
pub struct Sqlx(PgPool);

impl From<PgPool> for Sqlx {
    fn from(pool: PgPool) -> Self {
        Self(pool)
    }
}

impl Driver for Sqlx {
    const NAME: &'static str = "sqlx";

    type Connection = PgConnection;
    type Transaction = Transaction;
    type Error = Error;
    type Write = NoWrite;

    /// sqlx knows of a transaction only once BEGIN is answered. If it is cancelled before, the
    /// connection goes back to the pool with an open transaction, and the next user would write
    /// into that. So BEGIN runs to its end in its own task, which drops the transaction if no task
    /// waits for it any more. It waits for a connection no longer than the pool's own
    /// `acquire_timeout`.
    #[expect(
        clippy::disallowed_methods,
        reason = "the caller may stop waiting for this task, but
    # the task must go on"
    )]
    async fn begin(
        &self,
        within: Duration,
        begin: &str,
        statements: &[Statement<'_, Self>],
        is_pooled: bool,
    ) -> Result<(Transaction, Vec<Answer<Self>>), BeginError> {
        let (pool, begin) = (self.0.clone(), AssertSqlSafe(begin.to_owned()));
        let begun = tokio::spawn(async move { pool.begin_with(begin).await });
        let mut transaction = timeout(within, begun).await?.unwrap_or(Err(Error::WorkerCrashed))?;
        let answers = Self::send(&mut transaction, statements, is_pooled).await;
        Ok((transaction, answers))
    }

    async fn alone(
        &self,
        within: Duration,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> Result<Option<Columns>, BeginError> {
        let mut connection = timeout(within, self.0.acquire()).await??;
        let answer = Self::query(&mut connection, sql, values, is_pooled).await;
        if answer.is_err() {
            // It may be broken, and then says so.
            let _ = connection.close().await;
        }
        Ok(answer?)
    }

    fn connection(transaction: &mut Transaction) -> &mut PgConnection {
        transaction
    }

    async fn query(
        connection: &mut PgConnection,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> Result<Option<Columns>, Error> {
        let row = statement(sql, values, is_pooled)?.fetch_optional(connection).await?;
        row.as_ref().map(columns).transpose()
    }

    async fn batch(connection: &mut PgConnection, sql: &str) -> Result<(), Error> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
    }

    async fn write(_: &mut PgConnection, write: &NoWrite) -> Result<(), Error> {
        match *write {}
    }

    async fn rollback(transaction: Transaction) -> Result<(), Error> {
        transaction.rollback().await
    }

    async fn release(transaction: Transaction) {
        // sqlx sends the ROLLBACK when the pool checks the connection that it gets back.
        drop(transaction);
    }

    fn connections_max(&self) -> Option<usize> {
        usize::try_from(self.0.options().get_max_connections()).ok()
    }

    fn cause(error: &(dyn StdError + 'static)) -> Option<Cause> {
        Some(match error.downcast_ref::<Error>()? {
            Error::Database(refused) => Cause::Refused {
                state: refused.code().unwrap_or_default().into_owned(),
                message: refused.message().to_owned(),
            },
            // A connection that breaks in the middle of a message gives an error of the protocol.
            Error::Io(_)
            | Error::Tls(_)
            | Error::Protocol(_)
            | Error::PoolTimedOut
            | Error::PoolClosed
            | Error::WorkerCrashed
            | Error::BeginFailed => Cause::Lost,
            _ => Cause::Other,
        })
    }
}

impl Exclusive for Sqlx {}

/// The columns of a row of our own statements, as PostgreSQL has sent them.
pub fn columns(row: &PgRow) -> Result<Columns, Error> {
    let column = |column| {
        let value = row.try_get_raw(column)?;
        if value.is_null() {
            return Ok(None);
        }
        value.as_bytes().map(|bytes| Some(bytes.to_vec())).map_err(Error::Decode)
    };
    (0..row.len()).map(column).collect::<Result<_, _>>().map(Columns)
}

/// Prepares one of our own statements, and binds its parameters.
fn statement<'a>(
    sql: &str,
    values: &'a [Value<'_>],
    is_pooled: bool,
) -> Result<Query<'a, Postgres, PgArguments>, Error> {
    values.iter().try_fold(sqlx::query(AssertSqlSafe(sql)).persistent(!is_pooled), |query, value| {
        Ok(match *value {
            Value::Text(text) => query.bind(text),
            Value::Bytes(bytes) => query.bind(bytes),
            Value::Integer(number) => query.bind(number),
            Value::Float(number) => query.bind(number),
            Value::Integers(numbers) => query.bind(numbers),
            _ => return Err(Error::InvalidArgument(
                "this version does not know the type of a value: use the same version of all Oncebox crates"
                    .to_owned(),
            )),
        })
    })
}
