//! The classification of errors of our own statements.

use std::error::Error as StdError;

use oncebox_schema::{BeginError, Cause, Driver};
use tokio::time::error::Elapsed;
use tokio_postgres::error::SqlState;

use super::TokioPostgres;
use crate::{
    Error,
    failure::{Class, of_cause},
};

/// Our own statement failed: is PostgreSQL away, or did it refuse?
pub fn failed(what: &'static str) -> impl Fn(tokio_postgres::Error) -> Error {
    move |error| failed_to_begin::<TokioPostgres>(what, error.into())
}

/// The same of an error of this driver.
pub fn failed_through<D: Driver>(what: &'static str) -> impl Fn(D::Error) -> Error {
    move |error| failed_to_begin::<D>(what, error.into())
}

/// The same of an error of this driver, or of its pool.
pub(super) fn failed_to_begin<D: Driver>(what: &'static str, error: BeginError) -> Error {
    let cause = match error.is::<Elapsed>() {
        true => Some(Cause::Lost),
        false => D::cause(&*error as &(dyn StdError + 'static)),
    };
    let what = match cause.as_ref().map_or("", Cause::state) {
        state if is_of_prepared(state) => {
            "use a prepared statement; behind a transaction pooler build the inbox with behind_pooler()"
        }
        _ => what,
    };
    match cause.map_or(Class::Failed, |cause| of_cause(&cause)) {
        Class::Unavailable => Error::Unavailable(what, error),
        Class::Conflict | Class::Failed => Error::Refused(what, error),
    }
}

fn is_of_prepared(state: &str) -> bool {
    [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT]
        .iter()
        .any(|of_prepared| of_prepared.code() == state)
}
