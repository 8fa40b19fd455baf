//! Writes that a handler leaves to the inbox, which sends them together with the commit.
//!
//! This is what libpq calls pipeline mode: a statement is sent before the answer to the one before
//! it has come (<https://www.postgresql.org/docs/current/libpq-pipeline-mode.html>).

use std::{
    error::Error as StdError,
    fmt,
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use bytes::BytesMut;
use futures_util::future::{OptionFuture, maybe_done, poll_fn};
use oncebox_schema::Transaction;
use tokio_postgres::{
    Error, Statement,
    error::SqlState,
    types::{Format, IsNull, ToSql, Type, to_sql_checked},
};

use crate::{
    HandlerError,
    database::{Database, Ready},
    failure::{CommitError, ENDED_BY_HANDLER},
};

/// How many writes one message, or set of messages, may defer.
const WRITES_MAX: usize = 1_000;

/// The deferred writes of one message, or of a set of messages, in the order in which they will be
/// sent.
#[derive(Debug, Default)]
pub struct Deferred(Mutex<Vec<Write>>);

struct Write {
    statement: Deferrable,
    parameters: Vec<Encoded>,
}

/// The statement of a deferred write.
#[derive(Debug)]
pub enum Deferrable {
    /// A statement that is prepared in this session.
    Prepared(Statement),
    /// The statement's text, and the types of its parameters.
    Text(String, Vec<Type>),
}

impl Deferrable {
    fn types(&self) -> &[Type] {
        match self {
            Self::Prepared(statement) => statement.params(),
            Self::Text(_, types) => types,
        }
    }
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write").field("parameters", &self.parameters.len()).finish_non_exhaustive()
    }
}

impl Deferred {
    /// Encodes the values now, so that they need not live any longer and what is wrong with them is
    /// the handler's error.
    pub fn push(
        &self,
        statement: Deferrable,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(), HandlerError> {
        let (types, given) = (statement.types(), parameters.len());
        if types.len() != given {
            let wanted = types.len();
            return Err(HandlerError::message(format!(
                "a deferred write has {given} parameters; its statement takes {wanted}"
            )));
        }
        let encoded = parameters.iter().zip(types).enumerate().map(|(index, (value, sql_type))| {
            Encoded::new(*value, sql_type).map_err(|problem| {
                HandlerError::message(format!("parameter ${} of a deferred write: {problem}", index + 1))
            })
        });
        let parameters = encoded.collect::<Result<_, _>>()?;
        let mut writes = self.writes();
        if writes.len() == WRITES_MAX {
            return Err(HandlerError::message(format!(
                "more than {WRITES_MAX} deferred writes; send arrays, or await some of the writes"
            )));
        }
        writes.push(Write { statement, parameters });
        Ok(())
    }

    /// Whether nothing is deferred.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes().is_empty()
    }

    /// Sends all, in the transaction that was begun or not at all: see `guard.sql`. Behind a pooler
    /// the guard is answered first, since what follows could reach another session than the one
    /// that it has ended.
    ///
    /// # Errors
    /// The handler has ended the transaction; PostgreSQL refuses a write, or is away.
    pub async fn write(&self, database: &Database, transaction: &Transaction) -> Result<(), CommitError> {
        if self.is_empty() {
            return Ok(());
        }
        let guard = database.guard(transaction).await.map_err(CommitError::of)?;
        if database.is_pooled() {
            guard.execute(transaction, &[]).await.map_err(of_guard)?;
            return self.send(transaction, None).await;
        }
        self.send(transaction, Some(&guard)).await
    }

    /// Sends the guard and all writes at the first poll, and takes the answers; the first error,
    /// behind which nothing has an effect.
    pub(super) async fn send(
        &self,
        transaction: &Transaction,
        guard: Option<&Ready<'_>>,
    ) -> Result<(), CommitError> {
        let writes = std::mem::take(&mut *self.writes());
        let guard = OptionFuture::from(guard.map(|guard| guard.execute(transaction, &[])));
        let mut guard = Box::pin(maybe_done(guard));
        let mut sent: Vec<_> =
            writes.iter().map(|write| Box::pin(maybe_done(write.execute(transaction)))).collect();
        poll_fn(|cx| {
            let _ = guard.as_mut().poll(cx);
            for answer in &mut sent {
                // What is ready stays there until it is taken below.
                let _ = answer.as_mut().poll(cx);
            }
            Poll::Ready(())
        })
        .await;
        guard.as_mut().await;
        let guarded = guard.as_mut().take_output().flatten().transpose().map(drop);
        let mut written = Ok(());
        for mut answer in sent {
            answer.as_mut().await;
            written = written.and(answer.as_mut().take_output().unwrap_or(Ok(())));
        }
        guarded.map_err(of_guard).and(written.map_err(CommitError::of))
    }

    fn writes(&self) -> MutexGuard<'_, Vec<Write>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write {
    async fn execute(&self, transaction: &Transaction) -> Result<(), Error> {
        let parameters: Vec<&(dyn ToSql + Sync)> =
            self.parameters.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        match &self.statement {
            Deferrable::Prepared(statement) => transaction.execute(statement, &parameters).await,
            Deferrable::Text(sql, types) => {
                let typed: Vec<_> = parameters.into_iter().zip(types.iter().cloned()).collect();
                transaction.execute_typed(sql, &typed).await
            }
        }
        .map(drop)
    }
}

/// Why the guard has failed: it divides by zero outside of a transaction of ours.
fn of_guard(error: Error) -> CommitError {
    match error.code() {
        Some(&SqlState::DIVISION_BY_ZERO) => CommitError::Refused(ENDED_BY_HANDLER.to_owned()),
        _ => CommitError::of(error),
    }
}

/// A value as it goes over the wire.
struct Encoded {
    format: Format,
    /// `None` for NULL.
    bytes: Option<BytesMut>,
}

impl Encoded {
    fn new(value: &(dyn ToSql + Sync), sql_type: &Type) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        let mut bytes = BytesMut::new();
        let bytes = match value.to_sql_checked(sql_type, &mut bytes)? {
            IsNull::Yes => None,
            IsNull::No => Some(bytes),
        };
        Ok(Self { format: value.encode_format(sql_type), bytes })
    }
}

/// The value is left out, since it may be a secret.
impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded").finish_non_exhaustive()
    }
}

impl ToSql for Encoded {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        Ok(match &self.bytes {
            Some(bytes) => {
                out.extend_from_slice(bytes);
                IsNull::No
            }
            None => IsNull::Yes,
        })
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        self.format
    }

    to_sql_checked!();
}
