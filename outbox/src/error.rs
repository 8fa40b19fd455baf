//! The errors, a variant for each reaction that is open to the caller.

use std::error::Error as StdError;

use oncebox_schema::{Cause, Driver, Key, SchemaName};

/// The driver's error: tokio-postgres', or of the library to which the transaction belongs.
type Source = Box<dyn StdError + Send + Sync>;

/// Why a message was not enqueued. Roll the transaction back in each case; a variant per way to go
/// on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is enqueued already, with another subject or payload. A retry cannot help: either
    /// two messages were given one key (derive one for each), or a client used its request key for
    /// two different requests (refuse the second).
    #[error("{problem}")]
    Conflict {
        /// The key that names two messages.
        key: Key,
        /// The part that differs.
        problem: String,
        /// PostgreSQL's error.
        source: Source,
    },
    /// The message breaks a rule; the text names the field and the limit. Mend the message.
    #[error("{problem}")]
    Invalid {
        /// Which rule.
        problem: String,
        /// Set when PostgreSQL found it, not this crate.
        source: Option<Source>,
    },
    /// The payload has no JSON form.
    #[error("message \"{key}\": payload has no JSON form")]
    Serialize {
        /// The key of the message.
        key: Key,
        /// Why.
        source: serde_json::Error,
    },
    /// A deadlock or a serialization failure: run the whole transaction again.
    #[error("enqueue: {problem}; run the transaction again")]
    Retry {
        /// Which of the two.
        problem: String,
        /// PostgreSQL's error.
        source: Source,
    },
    /// Oncebox is not installed in this database under this name.
    #[error("schema \"{schema}\" has no function for enqueuing in this database: run `oncebox migrate`")]
    NotInstalled {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// PostgreSQL's error.
        source: Source,
    },
    /// The user of the connection may not enqueue.
    #[error(
        "this database user may not enqueue into schema \"{schema}\": have an administrator grant it the producers' role \
         of `oncebox migrate`, whose name ends with _producer"
    )]
    Denied {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// PostgreSQL's error.
        source: Source,
    },
    /// PostgreSQL refused for another reason, or went away.
    #[error("enqueue into schema \"{schema}\"")]
    Postgres {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// PostgreSQL's error.
        source: Source,
    },
}

impl Error {
    pub(crate) fn from_postgres(schema: &SchemaName, source: tokio_postgres::Error) -> Self {
        let refused = source
            .as_db_error()
            .map(|refused| (refused.code().code().to_owned(), refused.message().to_owned()));
        Self::new(schema, refused, source.into())
    }

    pub(crate) fn from_driver<D: Driver>(schema: &SchemaName, source: D::Error) -> Self {
        let refused = match D::cause(&source) {
            Some(Cause::Refused { state, message }) => Some((state, message)),
            _ => None,
        };
        Self::new(schema, refused, source.into())
    }

    /// By the SQLSTATE and the message, where PostgreSQL has refused.
    fn new(schema: &SchemaName, refused: Option<(String, String)>, source: Source) -> Self {
        let schema = schema.clone();
        let Some((state, problem)) = refused else { return Self::Postgres { schema, source } };
        match state.as_str() {
            "OB001" => match conflicting_key(&problem) {
                Some(key) => Self::Conflict { key, problem, source },
                None => Self::Postgres { schema, source },
            },
            "OB002" | "OB003" | "OB004" | "OB005" | "OB006" | "OB007" | "OB008" => {
                Self::Invalid { problem, source: Some(source) }
            }
            // A serialization failure, a deadlock.
            "40001" | "40P01" => Self::Retry { problem, source },
            // No such schema, no such function.
            "3F000" | "42883" => Self::NotInstalled { schema, source },
            // A privilege is missing.
            "42501" => Self::Denied { schema, source },
            _ => Self::Postgres { schema, source },
        }
    }
}

/// The key in `key "..." is already enqueued with ...`; of several messages only PostgreSQL knows
/// which it was. A key has no blanks, hence cannot imitate the words after it.
fn conflicting_key(message: &str) -> Option<Key> {
    message.strip_prefix("key \"")?.split_once("\" is already enqueued ")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_conflict() {
        let check = |message: &str, key: Option<&str>| {
            assert_eq!(conflicting_key(message).as_ref().map(Key::as_str), key, "{message}");
        };
        check("key \"a:pay\" is already enqueued with another payload", Some("a:pay"));
        check("key \"a\"b\" is already enqueued with subject \"x\", not \"y\"", Some("a\"b"));
        check("something else", None);
    }
}
