//! sqlx as a driver.

use std::error::Error as StdError;

use oncebox_schema::{Cause, Driver, Value};
use sqlx::{AssertSqlSafe, Error, PgConnection, PgPool, Postgres, Row, postgres::PgArguments, query::Query};

use crate::Transaction;

/// A pool of sqlx's, as an inbox takes it.
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

    /// sqlx knows of a transaction only once BEGIN is answered. Cancelled before, it would put back
    /// a connection whose transaction stays open, and the pool's next user would write into it. So
    /// a task of its own sees BEGIN through, and drops the transaction that nobody waits for. It
    /// waits for a connection no longer than the pool's own `acquire_timeout`.
    #[expect(clippy::disallowed_methods, reason = "who awaits this task may give up, but it must go on")]
    async fn begin(&self, modes: &str) -> Result<Transaction, Error> {
        let (pool, begin) = (self.0.clone(), AssertSqlSafe(format!("BEGIN {modes}")));
        let begun = tokio::spawn(async move { pool.begin_with(begin).await });
        begun.await.unwrap_or(Err(Error::WorkerCrashed))
    }

    fn connection(transaction: &mut Transaction) -> &mut PgConnection {
        transaction
    }

    async fn query(
        connection: &mut PgConnection,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> Result<Vec<Option<String>>, Error> {
        let row = statement(sql, values, is_pooled)?.fetch_one(connection).await?;
        (0..row.len()).map(|column| row.try_get(column)).collect()
    }

    async fn execute(
        connection: &mut PgConnection,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> Result<u64, Error> {
        Ok(statement(sql, values, is_pooled)?.execute(connection).await?.rows_affected())
    }

    async fn batch(connection: &mut PgConnection, sql: &str) -> Result<(), Error> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
    }

    async fn commit(transaction: Transaction) -> Result<(), Error> {
        transaction.commit().await
    }

    async fn rollback(transaction: Transaction) -> Result<(), Error> {
        transaction.rollback().await
    }

    async fn release(transaction: Transaction) {
        // The ROLLBACK goes out with the question that the pool asks of what it gets back.
        drop(transaction);
    }

    fn cause(error: &(dyn StdError + 'static)) -> Option<Cause> {
        Some(match error.downcast_ref::<Error>()? {
            Error::Database(refused) => Cause::Refused {
                state: refused.code().unwrap_or_default().into_owned(),
                message: refused.message().to_owned(),
            },
            // A line that breaks in the middle of a message is an error of the protocol.
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

/// A statement of Oncebox's own, whose values are parameters.
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
            _ => return Err(Error::InvalidArgument("a value of a type that came later".to_owned())),
        })
    })
}
