//! Chooses the reaction to an error; no other place does.

use std::{error::Error as StdError, fmt, io};

pub use oncebox_schema::error_chain as text;
use oncebox_schema::{Cause, Driver};
use tokio_postgres::error::{DbError, SqlState};

const REASON_LENGTH_MAX: usize = 1000;
/// Why a transaction cannot be committed in which a statement has failed.
pub const ABORTED: &str = "the handler went on after a statement had failed; the transaction was aborted";
/// Why a transaction cannot be committed that is not the one which has claimed the key.
pub const ENDED_BY_HANDLER: &str = "the handler ended the transaction by itself; it must leave COMMIT and ROLLBACK to its caller, and use a SAVEPOINT \
     to recover from an error";

/// Why a handler failed: any error, by `?`.
///
/// Everything the handler wrote is rolled back. The reaction follows from the SQLSTATE of the
/// `tokio_postgres::Error` in its chain of sources, never from its text: serialization failures and
/// deadlocks run again at once, a few times; a lost connection runs again when PostgreSQL is back,
/// without counting as an attempt, unless the message loses it again and again while others are
/// handled; everything else runs again after a growing pause, until the delivery limit makes it a
/// dead letter.
///
/// Its text is stored with the dead letter and logged, but for PostgreSQL's DETAIL: no secrets,
/// please.
///
/// ```
/// use oncebox_claims::HandlerError;
///
/// fn parse(text: &str) -> Result<i64, HandlerError> {
///     Ok(text.parse::<i64>()?)
/// }
/// assert!(parse("4711").is_ok());
/// assert_eq!(parse("x").unwrap_err().to_string(), "invalid digit found in string");
/// assert_eq!(HandlerError::message("no such customer").to_string(), "no such customer");
/// ```
pub struct HandlerError(Box<dyn StdError + Send + Sync>);

impl HandlerError {
    /// An error with only a text.
    pub fn message(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }

    /// A race against another transaction was lost, and the handler noticed it itself: run it again
    /// at once, a few times, then after the pauses of any other error.
    pub fn conflict(text: impl Into<String>) -> Self {
        Self(Box::new(Conflict(text.into())))
    }
}

/// The error of [`HandlerError::conflict`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Conflict(String);

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&*self.0))
    }
}

/// The reaction that an error calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Lost a race against another transaction: run again at once.
    Conflict,
    /// PostgreSQL is away or going away; the outcome may be unknown.
    Unavailable,
    /// Anything else.
    Failed,
}

impl HandlerError {
    /// The error itself.
    #[must_use]
    pub fn source(&self) -> &(dyn StdError + 'static) {
        &*self.0
    }

    /// The error itself.
    #[must_use]
    pub fn into_source(self) -> Box<dyn StdError + Send + Sync> {
        self.0
    }

    /// The reaction that it calls for.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class_through(|_| None)
    }

    /// The reaction that it calls for, where `known` reads the errors of another driver.
    #[must_use]
    pub fn class_through(&self, known: impl Fn(&(dyn StdError + 'static)) -> Option<Cause>) -> Class {
        let mut next: Option<&(dyn StdError + 'static)> = Some(&*self.0);
        while let Some(error) = next {
            if let Some(postgres) = error.downcast_ref::<tokio_postgres::Error>() {
                return classify(postgres);
            }
            // Of an error that was boxed by `anyhow` only the sources can be told by their type.
            if let Some(refused) = error.downcast_ref::<DbError>() {
                return of_state(refused.code());
            }
            if error.is::<Conflict>() {
                return Class::Conflict;
            }
            if let Some(cause) = known(error) {
                return of_cause(&cause);
            }
            next = error.source();
        }
        Class::Failed
    }
}

/// The reaction that an error of the driver calls for.
#[must_use]
pub fn classify(error: &tokio_postgres::Error) -> Class {
    if let Some(state) = error.code() {
        return of_state(state);
    }
    let broken = error.is_closed() || error.source().is_some_and(<dyn StdError>::is::<io::Error>);
    if broken { Class::Unavailable } else { Class::Failed }
}

/// The cause of an error of tokio-postgres.
pub(crate) fn cause_of(error: &tokio_postgres::Error) -> Cause {
    match error.as_db_error() {
        Some(refused) => {
            Cause::Refused { state: refused.code().code().to_owned(), message: refused.message().to_owned() }
        }
        None if classify(error) == Class::Unavailable => Cause::Lost,
        None => Cause::Other,
    }
}

/// The reaction to an error of another driver, by its cause.
#[must_use]
pub fn of_cause(cause: &Cause) -> Class {
    match cause {
        Cause::Refused { state, .. } => of_state(&SqlState::from_code(state)),
        Cause::Lost => Class::Unavailable,
        _ => Class::Failed,
    }
}

fn of_state(state: &SqlState) -> Class {
    match *state {
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => Class::Conflict,
        SqlState::READ_ONLY_SQL_TRANSACTION => Class::Unavailable, // a former primary, demoted
        // 08 connection, 53 resources, 57P shutdown or recovery; 57014 is a cancelled statement,
        // so class 57 is not listed here.
        ref other if ["08", "53", "57P"].iter().any(|class| other.code().starts_with(class)) => {
            Class::Unavailable
        }
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => Class::Failed,
        _ => Class::Failed,
    }
}

/// Why a transaction is not known to be committed.
#[derive(Debug)]
pub enum CommitError {
    /// The connection was lost: it may be committed, and the next attempt finds out.
    Lost(Box<dyn StdError + Send + Sync>),
    /// It lost a race against another transaction; in words.
    Conflict(String),
    /// PostgreSQL refused, mostly because of the handler's own statements; in words.
    Refused(String),
}

impl CommitError {
    /// The same as an error of the handler.
    #[must_use]
    pub fn into_handler_error(self) -> HandlerError {
        match self {
            Self::Lost(error) => HandlerError(error),
            Self::Conflict(reason) => HandlerError::conflict(reason),
            Self::Refused(reason) => HandlerError::message(reason),
        }
    }

    /// The meaning of an error at the end of a transaction.
    #[must_use]
    pub fn of(error: tokio_postgres::Error) -> Self {
        Self::with(&cause_of(&error), error.into())
    }

    /// The same of an error of this driver.
    #[must_use]
    pub fn through<D: Driver>(error: D::Error) -> Self {
        Self::with(&D::cause(&error).unwrap_or(Cause::Other), error.into())
    }

    fn with(cause: &Cause, error: Box<dyn StdError + Send + Sync>) -> Self {
        match of_cause(cause) {
            Class::Unavailable => Self::Lost(error),
            Class::Conflict => Self::Conflict(text(&*error)),
            Class::Failed if cause.state() == SqlState::IN_FAILED_SQL_TRANSACTION.code() => {
                Self::Refused(ABORTED.to_owned())
            }
            // The cursor of the claim has ended with the claim's transaction.
            Class::Failed if cause.state() == SqlState::INVALID_CURSOR_NAME.code() => {
                Self::Refused(ENDED_BY_HANDLER.to_owned())
            }
            Class::Failed => Self::Refused(text(&*error)),
        }
    }
}

/// A reason as the tables take it: 1 to 1000 bytes, no NUL.
pub fn bounded(reason: &str) -> String {
    let clean = reason.replace('\0', "\u{fffd}");
    let end =
        (0..=clean.len().min(REASON_LENGTH_MAX)).rev().find(|end| clean.is_char_boundary(*end)).unwrap_or(0);
    if end == 0 { "no reason given".to_owned() } else { clean[..end].to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By SQLSTATE, not by text.
    #[test]
    fn states_have_classes() {
        let check =
            |code: &str, expected| assert_eq!(of_state(&SqlState::from_code(code)), expected, "{code}");
        check("40001", Class::Conflict);
        check("40P01", Class::Conflict);
        for code in ["08006", "53300", "57P01", "57P03", "25006"] {
            check(code, Class::Unavailable);
        }
        for code in ["23505", "57014", "55P03", "25P02", "25P03", "XX000"] {
            check(code, Class::Failed);
        }
    }

    #[test]
    fn an_error_without_sql_state_is_a_failure() {
        let wrapped = HandlerError::from(io::Error::other("a file of the handler's own"));
        assert_eq!(wrapped.class(), Class::Failed);
        assert_eq!(HandlerError::message("40001 deadlock connection").class(), Class::Failed);
        assert_eq!(HandlerError::conflict("too late").class(), Class::Conflict);
    }

    #[test]
    fn reasons_are_bounded() {
        assert_eq!(bounded(""), "no reason given");
        assert_eq!(bounded("a\0b"), "a\u{fffd}b");
        assert_eq!(bounded(&"ä".repeat(600)).len(), 1000);
        assert_eq!(bounded(&format!("x{}", "ä".repeat(600))).len(), 999);
    }
}
