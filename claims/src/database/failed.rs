//! The classification of errors of our own statements.

use std::error::Error as StdError;

use tokio_postgres::error::SqlState;

use crate::{
    Error,
    failure::{Class, classify},
};

/// Our own statement failed: is PostgreSQL away, or did it refuse?
pub fn failed(what: &'static str) -> impl Fn(tokio_postgres::Error) -> Error {
    move |error| {
        let what = match error.code() {
            Some(&SqlState::INVALID_SQL_STATEMENT_NAME | &SqlState::DUPLICATE_PSTATEMENT) => {
                "use a prepared statement; behind a transaction pooler build the inbox with behind_pooler()"
            }
            _ => what,
        };
        let class = classify(&error);
        let source: Box<dyn StdError + Send + Sync> = error.into();
        match class {
            Class::Unavailable => Error::Unavailable(what, source),
            Class::Conflict | Class::Failed => Error::Refused(what, source),
        }
    }
}
