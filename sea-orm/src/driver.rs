//! `SeaORM` as a driver.

use std::error::Error as StdError;

use oncebox_schema::{Cause, Driver, Value};
use oncebox_sqlx::Sqlx;
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, QueryResult, RuntimeErr,
    Statement, TransactionTrait,
};

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

    /// If BEGIN were cancelled, a connection with an open transaction would go back to the pool, as
    /// with [`Sqlx`]. So BEGIN runs to its end in its own task.
    #[expect(
        clippy::disallowed_methods,
        reason = "the caller may stop waiting for this task, but
    # the task must go on"
    )]
    async fn begin(&self, modes: &str) -> Result<DatabaseTransaction, DbErr> {
        let (pool, set) = (self.0.clone(), format!("SET TRANSACTION {modes}"));
        let begun = tokio::spawn(async move {
            let transaction = pool.begin().await?;
            transaction.execute_unprepared(&set).await?;
            Ok(transaction)
        });
        let died = |ended| DbErr::Conn(RuntimeErr::Internal(format!("BEGIN did not end: {ended}")));
        begun.await.unwrap_or_else(|ended| Err(died(ended)))
    }

    fn connection(transaction: &mut DatabaseTransaction) -> &mut DatabaseTransaction {
        transaction
    }

    async fn query(
        connection: &mut DatabaseTransaction,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> Result<Option<Vec<Option<String>>>, DbErr> {
        let row = connection.query_one_raw(statement(sql, values, is_pooled)?).await?;
        let columns = |row: QueryResult| {
            (0..row.column_names().len()).map(|column| row.try_get_by_index(column)).collect()
        };
        row.map(columns).transpose()
    }

    async fn batch(connection: &mut DatabaseTransaction, sql: &str) -> Result<(), DbErr> {
        connection.execute_unprepared(sql).await.map(drop)
    }

    async fn commit(transaction: DatabaseTransaction) -> Result<(), DbErr> {
        transaction.commit().await
    }

    async fn rollback(transaction: DatabaseTransaction) -> Result<(), DbErr> {
        transaction.rollback().await
    }

    async fn release(transaction: DatabaseTransaction) {
        // sqlx sends the ROLLBACK when the pool checks the connection that it gets back.
        drop(transaction);
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
        let mut begun = pin!(connection.begin("READ WRITE"));
        ending.block_on(async {
            tokio::select! {
                biased;
                _ = &mut begun => panic!("nobody has answered"),
                () = std::future::ready(()) => {}
            }
        });
        ending.shutdown_background();
        let ended = async { tokio::time::timeout(Duration::from_secs(30), begun).await };
        let error = other.block_on(ended).expect("the task has ended").expect_err("nobody has answered");
        assert_eq!(SeaOrm::cause(&error), Some(Cause::Lost), "{error}");
    }
}
