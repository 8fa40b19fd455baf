//! Diesel, with diesel-async, as a driver.

use std::{error::Error as StdError, fmt, time::Duration};

use diesel::{
    OptionalExtension,
    result::{DatabaseErrorInformation, DatabaseErrorKind, Error as DieselError},
};
use diesel_async::{
    AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
    pooled_connection::deadpool::{Pool, PoolError},
};
use oncebox_inbox::Exclusive;
use oncebox_schema::{Answer, BeginError, Cause, Columns, Driver, NoWrite, Value};
use tokio::time::timeout;

use crate::{
    statement::{RowColumns, Statement},
    transaction::Transaction,
};

/// The SQLSTATEs of errors that diesel does not distinguish, found by the beginning of the message
/// and a text that follows it. Messages of PostgreSQL are in English only where `lc_messages` is;
/// messages of Oncebox always are.
const MESSAGES: [(&str, &str, &str); 12] = [
    ("deadlock detected", "", "40P01"),
    ("canceling statement due to lock timeout", "", "55P03"),
    ("terminating connection due to administrator command", "", "57P01"),
    ("the database system is ", "", "57P03"),
    ("current transaction is aborted, ", "", "25P02"),
    ("cursor \"oncebox_claim\" does not exist", "", "34000"),
    ("schema \"", "\" does not exist", "3F000"),
    ("relation \"", ".migration\" does not exist", "42P01"),
    ("function ", ") does not exist", "42883"),
    ("key \"", "\" is already enqueued with ", "OB001"),
    ("key \"", " is not claimed by this transaction, or settled already", "OB010"),
    ("scope \"", "\" claims its keys under a lease", "OB010"),
];

/// A pool of diesel-async, in the form that an inbox takes.
#[derive(Clone)]
pub struct Diesel(Pool<AsyncPgConnection>);

impl From<Pool<AsyncPgConnection>> for Diesel {
    fn from(pool: Pool<AsyncPgConnection>) -> Self {
        Self(pool)
    }
}

impl fmt::Debug for Diesel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Diesel")
    }
}

/// Why a statement has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool has no connection.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A statement failed.
    #[error(transparent)]
    Statement(#[from] DieselError),
}

impl Driver for Diesel {
    const NAME: &'static str = "diesel";

    type Connection = AsyncPgConnection;
    type Transaction = Transaction;
    type Error = Error;
    type Write = NoWrite;

    async fn begin(
        &self,
        within: Duration,
        begin: &str,
        statements: &[oncebox_schema::Statement<'_, Self>],
        is_pooled: bool,
    ) -> Result<(Transaction, Vec<Answer<Self>>), BeginError> {
        let object = timeout(within, self.0.get()).await?.map_err(Error::Pool)?;
        let mut transaction = Transaction::new(object);
        let begun = AnsiTransactionManager::begin_transaction_sql(&mut *transaction, begin).await;
        begun.map_err(Error::Statement)?;
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
        // Dropped before a good answer, it closes the connection.
        let mut connection = Transaction::new(timeout(within, self.0.get()).await?.map_err(Error::Pool)?);
        let row = Self::query(&mut connection, sql, values, is_pooled).await?;
        connection.finish();
        Ok(row)
    }

    fn connection(transaction: &mut Transaction) -> &mut AsyncPgConnection {
        transaction
    }

    async fn query(
        connection: &mut AsyncPgConnection,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> Result<Option<Columns>, Error> {
        let row = statement(sql, values, is_pooled)?.get_result(connection).await.optional()?;
        Ok(row.map(|RowColumns(columns)| columns))
    }

    async fn batch(connection: &mut AsyncPgConnection, sql: &str) -> Result<(), Error> {
        Ok(connection.batch_execute(sql).await?)
    }

    async fn write(_: &mut AsyncPgConnection, write: &NoWrite) -> Result<(), Error> {
        match *write {}
    }

    async fn rollback(mut transaction: Transaction) -> Result<(), Error> {
        AnsiTransactionManager::rollback_transaction(&mut *transaction).await?;
        transaction.finish();
        Ok(())
    }

    async fn release(transaction: Transaction) {
        // If the ROLLBACK fails, the connection is closed and does not go back to the pool.
        let _ = Self::rollback(transaction).await;
    }

    fn connections_max(&self) -> Option<usize> {
        Some(self.0.status().max_size)
    }

    fn is_awaited(&self) -> bool {
        self.0.status().waiting > 0
    }

    fn cause(error: &(dyn StdError + 'static)) -> Option<Cause> {
        match error.downcast_ref::<Error>() {
            Some(Error::Pool(_)) => Some(Cause::Lost),
            Some(Error::Statement(error)) => Some(of_diesel(error)),
            None => error.downcast_ref::<DieselError>().map(of_diesel),
        }
    }
}

impl Exclusive for Diesel {}

fn statement<'a>(
    sql: &'a str,
    values: &'a [Value<'a>],
    is_pooled: bool,
) -> Result<Statement<'a>, DieselError> {
    if is_pooled {
        let remedy = "diesel prepares statements under names, which a pooler in transaction mode must know of: set \
                      its max_prepared_statements above 0, and leave behind_pooler() out";
        return Err(DieselError::QueryBuilderError(remedy.into()));
    }
    Ok(Statement { sql, values })
}

fn of_diesel(error: &DieselError) -> Cause {
    match error {
        // An error without an SQLSTATE means that the connection broke or was closed.
        DieselError::DatabaseError(
            DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection,
            _,
        )
        | DieselError::BrokenTransactionManager => Cause::Lost,
        DieselError::DatabaseError(kind, refused) => Cause::Refused {
            state: state(kind, &**refused).to_owned(),
            message: refused.message().to_owned(),
        },
        _ => Cause::Other,
    }
}

/// The SQLSTATE, if it can be found; empty for errors that are all handled alike.
fn state(kind: &DatabaseErrorKind, refused: &dyn DatabaseErrorInformation) -> &'static str {
    match kind {
        DatabaseErrorKind::UniqueViolation => "23505",
        DatabaseErrorKind::ForeignKeyViolation => "23503",
        DatabaseErrorKind::NotNullViolation => "23502",
        DatabaseErrorKind::CheckViolation => "23514",
        DatabaseErrorKind::ExclusionViolation => "23P01",
        DatabaseErrorKind::RestrictViolation => "23001",
        DatabaseErrorKind::SerializationFailure => "40001",
        DatabaseErrorKind::ReadOnlyTransaction => "25006",
        _ => {
            let message = refused.message();
            let is_it = |(begin, part, _): &&(&str, &str, &str)| {
                message.strip_prefix(*begin).is_some_and(|rest| rest.contains(*part))
            };
            MESSAGES.iter().find(is_it).map_or("", |(_, _, state)| state)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error about the handler's own tables, or an error text that only contains one of ours,
    /// gets no state.
    #[test]
    fn a_message_has_its_state_and_no_other() {
        let check = |message: &str, expected: &str| {
            assert_eq!(state(&DatabaseErrorKind::Unknown, &message.to_owned()), expected, "{message}");
        };
        check("schema \"nowhere\" does not exist", "3F000");
        check("relation \"charge\" does not exist", "");
        check("relation \"nowhere.migration\" does not exist", "42P01");
        check("column \"cents\" of relation \"charge\" does not exist", "");
        check("function nowhere.register_scope(text, interval, interval) does not exist", "42883");
        check("key \"a:pay\" is already enqueued with another payload", "OB001");
        check("deadlock detected", "40P01");
        check("the dispatcher says: deadlock detected", "");
        check("current transaction is aborted, commands ignored until end of transaction block", "25P02");
        check("scope \"a:b\" claims its keys under a lease", "OB010");
    }
}
