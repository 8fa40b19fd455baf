//! `SeaORM` as a driver.

use std::{error::Error as StdError, sync::Arc, time::Duration};

use oncebox_inbox::Exclusive;
use oncebox_schema::{Answer, BeginError, Cause, Columns, Driver, NoWrite, Value};
use oncebox_sqlx::{Sqlx, columns};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, QueryResult, RuntimeErr,
    Statement, TransactionTrait,
};
use tokio::time::timeout;

/// A connection of `SeaORM`, which is a pool, in the form that an inbox takes.
#[derive(Clone, Debug)]
pub struct SeaOrm(DatabaseConnection);

impl From<DatabaseConnection> for SeaOrm {
    fn from(connection: DatabaseConnection) -> Self {
        Self(connection)
    }
}

impl Driver for SeaOrm {
    const NAME: &'static str = "SeaORM";

    type Connection = DatabaseTransaction;
    type Transaction = DatabaseTransaction;
    type Error = DbErr;
    type Write = NoWrite;

    /// If BEGIN were cancelled, a connection with an open transaction would go back to the pool, as
    /// with [`Sqlx`]. So BEGIN runs to its end in its own task.
    #[expect(
        clippy::disallowed_methods,
        reason = "the caller may stop waiting for this task, but
    # the task must go on"
    )]
    async fn begin(
        &self,
        within: Duration,
        begin: &str,
        statements: &[oncebox_schema::Statement<'_, Self>],
        is_pooled: bool,
    ) -> Result<(DatabaseTransaction, Vec<Answer<Self>>), BeginError> {
        let (pool, set) = (self.0.clone(), begin.replacen("BEGIN", "SET TRANSACTION", 1));
        let begun = tokio::spawn(async move {
            let transaction = pool.begin().await?;
            // Without modes there is nothing to set.
            if set != "SET TRANSACTION" {
                transaction.execute_unprepared(&set).await?;
            }
            Ok(transaction)
        });
        let died = |ended| DbErr::Conn(RuntimeErr::Internal(format!("BEGIN did not end: {ended}")));
        let mut transaction = timeout(within, begun).await?.unwrap_or_else(|ended| Err(died(ended)))?;
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
        if is_pooled {
            statement(sql, values, is_pooled)?;
        }
        let pool = Sqlx::from(self.0.get_postgres_connection_pool().clone());
        pool.alone(within, sql, values, is_pooled).await
    }

    fn connection(transaction: &mut DatabaseTransaction) -> &mut DatabaseTransaction {
        transaction
    }

    async fn query(
        connection: &mut DatabaseTransaction,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> Result<Option<Columns>, DbErr> {
        let row = connection.query_one_raw(statement(sql, values, is_pooled)?).await?;
        let Some(row) = row.as_ref().and_then(QueryResult::try_as_pg_row) else { return Ok(None) };
        columns(row).map(Some).map_err(|error| DbErr::Query(RuntimeErr::SqlxError(Arc::new(error))))
    }

    async fn batch(connection: &mut DatabaseTransaction, sql: &str) -> Result<(), DbErr> {
        connection.execute_unprepared(sql).await.map(drop)
    }

    async fn write(_: &mut DatabaseTransaction, write: &NoWrite) -> Result<(), DbErr> {
        match *write {}
    }

    async fn rollback(transaction: DatabaseTransaction) -> Result<(), DbErr> {
        transaction.rollback().await
    }

    async fn release(transaction: DatabaseTransaction) {
        // sqlx sends the ROLLBACK when the pool checks the connection that it gets back.
        drop(transaction);
    }

    fn connections_max(&self) -> Option<usize> {
        usize::try_from(self.0.get_postgres_connection_pool().options().get_max_connections()).ok()
    }

    fn cause(error: &(dyn StdError + 'static)) -> Option<Cause> {
        let Some(error) = error.downcast_ref::<DbErr>() else { return Sqlx::cause(error) };
        Some(match error {
            // `Internal` is what SeaORM itself says of a connection: it is disconnected.
            DbErr::ConnectionAcquire(_) | DbErr::Conn(RuntimeErr::Internal(_)) => Cause::Lost,
            DbErr::Conn(RuntimeErr::SqlxError(error))
            | DbErr::Exec(RuntimeErr::SqlxError(error))
            | DbErr::Query(RuntimeErr::SqlxError(error)) => Sqlx::cause(&**error).unwrap_or(Cause::Other),
            _ => Cause::Other,
        })
    }
}

impl Exclusive for SeaOrm {}

fn statement(sql: &str, values: &[Value<'_>], is_pooled: bool) -> Result<Statement, DbErr> {
    if is_pooled {
        let remedy = "SeaORM prepares every statement: set statement_cache_capacity(0) of its pool with \
                      map_sqlx_postgres_opts, and leave behind_pooler() out";
        return Err(DbErr::Custom(remedy.to_owned()));
    }
    let values = values.iter().map(|value| of_value(*value)).collect::<Result<Vec<_>, _>>()?;
    Ok(Statement::from_sql_and_values(DbBackend::Postgres, sql, values))
}

fn of_value(value: Value<'_>) -> Result<sea_orm::Value, DbErr> {
    Ok(match value {
        Value::Text(text) => text.map(str::to_owned).into(),
        Value::Bytes(bytes) => bytes.map(<[u8]>::to_vec).into(),
        Value::Integer(number) => number.into(),
        Value::Float(number) => number.into(),
        Value::Integers(numbers) => numbers.to_vec().into(),
        _ => {
            return Err(DbErr::Custom(
                "this version does not know the type of a value: use the same version of all Oncebox crates"
                    .to_owned(),
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, pin::pin, time::Duration};

    use sea_orm::{SqlxPostgresConnector, sqlx::postgres::PgPoolOptions};
    use tokio::runtime::Runtime;

    use super::*;

    /// The runtime of the task ends while a server does not answer the BEGIN.
    #[test]
    fn a_begin_whose_task_dies_has_lost_its_connection() {
        let (ending, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
        let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("postgres://user@{}/database", silent.local_addr().unwrap());
        let pool = ending.block_on(async { PgPoolOptions::new().connect_lazy(&url) }).unwrap();
        let connection = SeaOrm::from(SqlxPostgresConnector::from_sqlx_postgres_pool(pool));
        let mut begun = pin!(connection.begin(Duration::from_secs(60), "BEGIN READ WRITE", &[], false));
        ending.block_on(async {
            tokio::select! {
                biased;
                _ = &mut begun => panic!("nobody has answered"),
                () = std::future::ready(()) => {}
            }
        });
        ending.shutdown_background();
        let ended = async { timeout(Duration::from_secs(30), begun).await };
        let error = other.block_on(ended).expect("the task has ended").expect_err("nobody has answered");
        assert_eq!(SeaOrm::cause(&*error), Some(Cause::Lost), "{error}");
    }
}
