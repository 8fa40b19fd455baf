//! Writes that a handler leaves to the inbox, which sends them together with the commit.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use oncebox_schema::{Answer, Cause, Driver};
use tokio_postgres::{error::SqlState, types::ToSql};

use crate::{
    HandlerError,
    database::Database,
    driver::{Deferrable, TokioPostgres, Write},
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

impl Deferred {
    /// Encodes the values now, so that they need not live any longer and a wrong one is the
    /// handler's error.
    pub fn push(
        &self,
        statement: Deferrable,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(), HandlerError> {
        let write = Write::new(statement, parameters)?;
        let mut writes = self.writes();
        if writes.len() == WRITES_MAX {
            return Err(HandlerError::message(format!(
                "more than {WRITES_MAX} deferred writes; send arrays, or await some of the writes"
            )));
        }
        writes.push(write);
        Ok(())
    }
}

impl<D: Driver> Deferred<D> {
    /// Takes all writes out.
    pub(super) fn take(&self) -> Vec<D::Write> {
        std::mem::take(&mut *self.writes())
    }

    /// Sends all, in the transaction that was begun or not at all: see `guard.sql`. With a pooler
    /// the guard is answered first, since the writes could reach another session than the one that
    /// it has ended.
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

/// The first error of a guard and of the writes after it.
fn first_error<D: Driver>(answers: Vec<Answer<D>>) -> Result<(), CommitError> {
    answers.into_iter().enumerate().try_for_each(|(index, answer)| match answer {
        Ok(_) => Ok(()),
        Err(error) if index == 0 => Err(of_guard::<D>(error)),
        Err(error) => Err(CommitError::through::<D>(error)),
    })
}

/// Why the guard has failed: it divides by zero outside of a transaction of ours.
pub(super) fn of_guard<D: Driver>(error: D::Error) -> CommitError {
    let cause = D::cause(&error);
    match cause.as_ref().map_or("", Cause::state) == SqlState::DIVISION_BY_ZERO.code() {
        true => CommitError::Refused(ENDED_BY_HANDLER.to_owned()),
        false => CommitError::through::<D>(error),
    }
}
