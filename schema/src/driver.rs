//! The interface to other client libraries of PostgreSQL: what our statements need of them.
//!
//! Statements of ours that go through a driver have parameters of four types, named by casts, and
//! answer with one row of texts. So a driver is a few lines, and what the statements mean stands in
//! one place for all drivers.

use std::{error::Error as StdError, fmt};

/// A client library of PostgreSQL, with whatever it takes its connections from.
pub trait Driver: Clone + Send + Sync + 'static {
    /// What it is called in the log.
    const NAME: &'static str;

    /// What statements are sent through.
    type Connection: Send;

    /// A transaction of its own, as handlers get it.
    type Transaction: Send;

    /// Its errors.
    type Error: StdError + Send + Sync + 'static;

    /// Takes a connection, and sends BEGIN or SET TRANSACTION with these transaction modes, and the
    /// statements behind them, in one message of the simple protocol: claims know their transaction
    /// by these.
    fn begin(&self, modes: &str) -> impl Future<Output = Result<Self::Transaction, Self::Error>> + Send;

    /// What the statements of a transaction are sent through.
    fn connection(transaction: &mut Self::Transaction) -> &mut Self::Connection;

    /// Sends a statement, and returns the columns of its row, if it returns one. `is_pooled` says
    /// that the next transaction may get another session, so that nothing may be prepared under a
    /// name.
    fn query(
        connection: &mut Self::Connection,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> impl Future<Output = Result<Option<Vec<Option<String>>>, Self::Error>> + Send;

    /// Sends statements without parameters, in one message of the simple protocol.
    fn batch(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Sends COMMIT.
    fn commit(transaction: Self::Transaction) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Sends ROLLBACK, and gives the connection back once it is answered.
    fn rollback(transaction: Self::Transaction) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Gives the connection back, whose transaction is empty: the caller need not wait for the
    /// answer to a ROLLBACK, as long as the next user of the connection does.
    fn release(transaction: Self::Transaction) -> impl Future<Output = ()> + Send;

    /// What the driver's error comes from; `None` for an error of another type than the driver's.
    fn cause(error: &(dyn StdError + 'static)) -> Option<Cause>;
}

/// What stands behind an error of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// PostgreSQL answered with an error.
    Refused {
        /// The SQLSTATE.
        state: String,
        /// Its message, without DETAIL and HINT.
        message: String,
    },
    /// There is no connection, or it is lost.
    Lost,
    /// The driver itself refused.
    Other,
}

/// A parameter of a statement.
#[derive(Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// A text.
    Text(Option<&'a str>),
    /// A bytea.
    Bytes(Option<&'a [u8]>),
    /// A bigint.
    Integer(Option<i64>),
    /// A double precision.
    Float(Option<f64>),
}

/// Types only: payloads must never reach a log.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytea",
            Self::Integer(_) => "bigint",
            Self::Float(_) => "double precision",
        })
    }
}
