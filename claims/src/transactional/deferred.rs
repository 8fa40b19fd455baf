//! Writes that a handler leaves to the inbox, which sends them together with the commit.

use std::{
    error::Error as StdError,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::BytesMut;
use oncebox_schema::{Answer, Cause, Driver, Transaction};
use tokio_postgres::{
    Error, Statement,
    error::SqlState,
    types::{Format, IsNull, ToSql, Type, to_sql_checked},
};

use crate::{
    HandlerError,
    database::{Database, TokioPostgres},
    failure::{CommitError, ENDED_BY_HANDLER},
};

/// How many writes one message, or set of messages, may defer.
const WRITES_MAX: usize = 1_000;

/// The deferred writes of one message, or of a set of messages, in the order in which they will be
/// sent.
pub struct Deferred<D: Driver = TokioPostgres>(Mutex<Vec<D::Write>>);

impl<D: Driver> Default for Deferred<D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<D: Driver> fmt::Debug for Deferred<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deferred").field(&self.writes().len()).finish()
    }
}

/// A write over tokio-postgres, with its encoded parameters.
pub struct Write {
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
}

impl<D: Driver> Deferred<D> {
    /// Takes all writes out.
    pub(super) fn take(&self) -> Vec<D::Write> {
        std::mem::take(&mut *self.writes())
    }

    /// Sends all, in the transaction that was begun or not at all: see `guard.sql`. Behind a pooler
    /// the guard is answered first, since what follows could reach another session than the one
    /// that it has ended.
    ///
    /// # Errors
    /// The handler has ended the transaction; PostgreSQL refuses a write, or is away.
    pub async fn write(
        &self,
        database: &Database<D>,
        transaction: &mut D::Transaction,
    ) -> Result<(), CommitError> {
        let writes = self.take();
        if writes.is_empty() {
            return Ok(());
        }
        let mut statements = vec![database.guard()];
        if database.is_pooled() {
            first_error::<D>(database.send(transaction, &statements).await)?;
            statements.clear();
        }
        let is_guarded = !statements.is_empty();
        statements.extend(writes.iter().map(oncebox_schema::Statement::Write));
        let answers = database.send(transaction, &statements).await;
        if is_guarded {
            return first_error::<D>(answers);
        }
        answers.into_iter().try_for_each(|answer| answer.map(drop).map_err(CommitError::through::<D>))
    }

    fn writes(&self) -> MutexGuard<'_, Vec<D::Write>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first error of a guard and of what was sent behind it.
fn first_error<D: Driver>(answers: Vec<Answer<D>>) -> Result<(), CommitError> {
    answers.into_iter().enumerate().try_for_each(|(index, answer)| match answer {
        Ok(_) => Ok(()),
        Err(error) if index == 0 => Err(of_guard::<D>(error)),
        Err(error) => Err(CommitError::through::<D>(error)),
    })
}

impl Write {
    pub(crate) async fn execute(&self, transaction: &Transaction) -> Result<(), Error> {
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
pub(super) fn of_guard<D: Driver>(error: D::Error) -> CommitError {
    let cause = D::cause(&error);
    match cause.as_ref().map_or("", Cause::state) == SqlState::DIVISION_BY_ZERO.code() {
        true => CommitError::Refused(ENDED_BY_HANDLER.to_owned()),
        false => CommitError::through::<D>(error),
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
