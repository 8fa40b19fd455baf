//! How a statement goes out: prepared once for each connection, or, with a transaction pooler, with
//! its text each time.
//!
//! A statement is prepared in a session under a name. A pooler in transaction mode lends a
//! connection another session with every transaction, where the name is unknown or, worse, that of
//! another client.

use oncebox_schema::Transaction;
use tokio_postgres::{
    Error, Row, Statement,
    types::{ToSql, Type},
};

/// A value with its type.
pub type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A statement that is ready to be sent at the first poll, so that several can be sent in their
/// order.
#[derive(Debug)]
pub enum Ready<'a> {
    /// Prepared in this session.
    Prepared(Statement),
    /// Its text.
    Text(&'a str),
}

impl<'a> Ready<'a> {
    /// Prepares it, unless connections go through a pooler.
    ///
    /// # Errors
    /// The statement cannot be prepared.
    pub async fn new(transaction: &Transaction, sql: &'a str, is_pooled: bool) -> Result<Self, Error> {
        if is_pooled {
            return Ok(Self::Text(sql));
        }
        transaction.prepare_cached(sql).await.map(Self::Prepared)
    }

    /// Returns the number of rows.
    pub async fn execute(
        &self,
        transaction: &Transaction,
        parameters: &[Parameter<'_>],
    ) -> Result<u64, Error> {
        match self {
            Self::Prepared(statement) => transaction.execute(statement, &values(parameters)).await,
            Self::Text(sql) => transaction.execute_typed(sql, parameters).await,
        }
    }

    /// Returns the rows.
    pub async fn query(
        &self,
        transaction: &Transaction,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        match self {
            Self::Prepared(statement) => transaction.query(statement, &values(parameters)).await,
            Self::Text(sql) => transaction.query_typed(sql, parameters).await,
        }
    }

    /// Returns the row, if there is one.
    pub async fn query_opt(
        &self,
        transaction: &Transaction,
        parameters: &[Parameter<'_>],
    ) -> Result<Option<Row>, Error> {
        match self {
            Self::Prepared(statement) => transaction.query_opt(statement, &values(parameters)).await,
            Self::Text(sql) => transaction.query_typed_opt(sql, parameters).await,
        }
    }
}

fn values<'a>(parameters: &[Parameter<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    parameters.iter().map(|(value, _)| *value).collect()
}
