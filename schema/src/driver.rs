//! The interface to client libraries of PostgreSQL, with only the functions that our statements
//! need.
//!
//! Statements of ours that go through a driver have parameters of five types, named by casts, and
//! answer with at most one row, whose columns are texts or byteas. So a driver is a few lines, and
//! each statement stands in one place for all drivers.

use std::{error::Error as StdError, fmt, time::Duration};

/// Ends a session in any state that a handler has left: one whose role was changed may not end
/// itself before that is taken back.
const END_SESSION: &str =
    "ROLLBACK; RESET SESSION AUTHORIZATION; SELECT pg_terminate_backend(pg_backend_pid())";

/// A client library of PostgreSQL, with the pool that it takes its connections from.
pub trait Driver: Clone + fmt::Debug + Send + Sync + 'static {
    /// Its name in the log.
    const NAME: &'static str;

    /// Whether [`Driver::send`] sends each statement before those in front of it are answered.
    const PIPELINES: bool = false;

    /// The connection that statements are sent through.
    type Connection: Send;

    /// A transaction that owns its connection, as handlers get it.
    type Transaction: Send + Sync;

    /// Its errors.
    type Error: StdError + Send + Sync + 'static;

    /// A write that a handler leaves to the commit; [`NoWrite`] where nothing can be left.
    type Write: Send + Sync;

    /// Takes a connection, for which it waits no longer than `within`; sends `begin`, which is
    /// BEGIN with transaction modes and the statements after them, in one message of the simple
    /// protocol; then sends these statements as [`Driver::send`] does.
    fn begin(
        &self,
        within: Duration,
        begin: &str,
        statements: &[Statement<'_, Self>],
        is_pooled: bool,
    ) -> impl Future<Output = Result<(Self::Transaction, Vec<Answer<Self>>), BeginError>> + Send;

    /// Takes a connection, for which it waits no longer than `within`, and sends one statement
    /// outside of a transaction block: it is committed by itself. Returns the columns of its row.
    /// If it fails, the connection is closed: a handler may have left its session without rights.
    fn alone(
        &self,
        within: Duration,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> impl Future<Output = Result<Option<Columns>, BeginError>> + Send;

    /// The connection of a transaction.
    fn connection(transaction: &mut Self::Transaction) -> &mut Self::Connection;

    /// Sends a statement, and returns the columns of its row, if it returns one. `is_pooled` says
    /// that the next transaction may get another session, so that nothing may be prepared under a
    /// name.
    fn query(
        connection: &mut Self::Connection,
        sql: &str,
        values: &[Value<'_>],
        is_pooled: bool,
    ) -> impl Future<Output = Result<Option<Columns>, Self::Error>> + Send;

    /// Sends statements without parameters, in one message of the simple protocol.
    fn batch(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Sends a write that a handler has left to the commit.
    fn write(
        connection: &mut Self::Connection,
        write: &Self::Write,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Sends statements in their order, and returns their answers up to the first error. After it,
    /// no statement has an effect that our own statements would not refuse. All that can fail in
    /// the client fails before anything is sent.
    fn send(
        transaction: &mut Self::Transaction,
        statements: &[Statement<'_, Self>],
        is_pooled: bool,
    ) -> impl Future<Output = Vec<Answer<Self>>> + Send {
        async move {
            let mut answers = Vec::with_capacity(statements.len());
            for statement in statements {
                let connection = Self::connection(transaction);
                let answer = match statement {
                    Statement::Batch(sql) => Self::batch(connection, sql).await.map(|()| None),
                    Statement::Query(sql, values) => Self::query(connection, sql, values, is_pooled).await,
                    Statement::Write(write) => Self::write(connection, write).await.map(|()| None),
                };
                let is_error = answer.is_err();
                answers.push(answer);
                if is_error {
                    break;
                }
            }
            answers
        }
    }

    /// Sends ROLLBACK, and gives the connection back once it is answered.
    fn rollback(transaction: Self::Transaction) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Gives the connection back, whose transaction has written nothing: the caller need not wait
    /// for the answer to a ROLLBACK, as long as the next user of the connection does.
    fn release(transaction: Self::Transaction) -> impl Future<Output = ()> + Send;

    /// Ends the session, whose state is unknown or of no use to others.
    fn close(mut transaction: Self::Transaction) -> impl Future<Output = ()> + Send {
        async move {
            // The session ends before it answers.
            let _ = Self::batch(Self::connection(&mut transaction), END_SESSION).await;
            Self::release(transaction).await;
        }
    }

    /// Says that the transaction is committed and no other is open after it: COMMIT without AND
    /// CHAIN is sent to a driver that pipelines only.
    fn set_over(_transaction: &Self::Transaction) {}

    /// Whether the connection is known to be lost.
    fn is_lost(_transaction: &Self::Transaction) -> bool {
        false
    }

    /// The largest number of connections of the pool, if it has one.
    fn connections_max(&self) -> Option<usize> {
        None
    }

    /// Whether another task waits for a connection.
    fn is_awaited(&self) -> bool {
        false
    }

    /// Whether a message would have to wait for a connection if one were taken now.
    fn is_busy(&self) -> bool {
        false
    }

    /// The cause of an error of the driver; `None` for an error of another type than the driver's.
    fn cause(error: &(dyn StdError + 'static)) -> Option<Cause>;
}

/// Why a transaction cannot begin, or a statement alone fails: an error of the pool or of the
/// driver, or tokio's `Elapsed`.
pub type BeginError = Box<dyn StdError + Send + Sync>;

/// The answer to a statement: the columns of its row, if it returned one.
pub type Answer<D> = Result<Option<Columns>, <D as Driver>::Error>;

/// A statement of ours.
pub enum Statement<'a, D: Driver> {
    /// Statements without parameters, in one message of the simple protocol.
    Batch(&'a str),
    /// A statement with its parameters.
    Query(&'a str, &'a [Value<'a>]),
    /// A write that a handler has left to the commit.
    Write(&'a D::Write),
}

/// Without parameters: payloads must never reach a log.
impl<D: Driver> fmt::Debug for Statement<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Batch(sql) | Self::Query(sql, _) => sql,
            Self::Write(_) => "a write of the handler",
        })
    }
}

/// The write of a driver that leaves none to the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoWrite {}

/// The columns of a row, as PostgreSQL has sent them: of a text its bytes, of a bytea too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns(pub Vec<Option<Vec<u8>>>);

impl Columns {
    /// A column that is a bytea; `None` for NULL.
    #[must_use]
    pub fn bytes(&self, column: usize) -> Option<&[u8]> {
        self.0.get(column)?.as_deref()
    }

    /// A column that is a text; `None` for NULL.
    #[must_use]
    pub fn text(&self, column: usize) -> Option<&str> {
        std::str::from_utf8(self.bytes(column)?).ok()
    }

    /// A column that is a number, cast to text; `None` for NULL.
    #[must_use]
    pub fn number<N: std::str::FromStr>(&self, column: usize) -> Option<N> {
        self.text(column)?.parse().ok()
    }

    /// A column that is a boolean, cast to text: `true` or `false`.
    #[must_use]
    pub fn is_true(&self, column: usize) -> bool {
        self.text(column) == Some("true")
    }

    /// Takes a bytea out.
    #[must_use]
    pub fn take(&mut self, column: usize) -> Option<Vec<u8>> {
        self.0.get_mut(column)?.take()
    }
}

/// The cause of an error of a driver.
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

impl Cause {
    /// The SQLSTATE that PostgreSQL refused with; empty where it did not.
    #[must_use]
    pub fn state(&self) -> &str {
        match self {
            Self::Refused { state, .. } => state,
            Self::Lost | Self::Other => "",
        }
    }
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
    /// A bigint[].
    Integers(&'a [i64]),
}

/// Types only: payloads must never reach a log.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytea",
            Self::Integer(_) => "bigint",
            Self::Float(_) => "double precision",
            Self::Integers(_) => "bigint[]",
        })
    }
}
