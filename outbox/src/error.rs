//! What can go wrong, by what the caller can do about it.

use oncebox_schema::{Key, SchemaName};
use tokio_postgres::error::SqlState;

/// Why a message was not enqueued. Roll the transaction back, whichever it is; a variant per way to
/// go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is enqueued already, with another subject or payload. A retry cannot help: either
    /// two messages were given one key (derive one for each), or a client used its request key for
    /// two different requests (refuse the second).
    #[error("{}", message_of(source))]
    Conflict {
        /// The key that names two messages.
        key: Key,
        /// What PostgreSQL said.
        source: tokio_postgres::Error,
    },
    /// The message breaks a rule; the text names the field and the limit. Mend the message.
    #[error("{problem}")]
    Invalid {
        /// Which rule.
        problem: String,
        /// Set when PostgreSQL found it, not this crate.
        source: Option<tokio_postgres::Error>,
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
    #[error("enqueue: {}; run the transaction again", message_of(source))]
    Retry {
        /// What PostgreSQL said.
        source: tokio_postgres::Error,
    },
    /// Oncebox is not installed in this database under this name.
    #[error("schema \"{schema}\" has no function for enqueuing in this database: run `oncebox migrate`")]
    NotInstalled {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// What PostgreSQL said.
        source: tokio_postgres::Error,
    },
    /// PostgreSQL refused for another reason, or went away.
    #[error("enqueue into schema \"{schema}\"")]
    Postgres {
        /// The PostgreSQL schema.
        schema: SchemaName,
        /// What PostgreSQL said.
        source: tokio_postgres::Error,
    },
}

impl Error {
    pub(crate) fn from_postgres(schema: &SchemaName, source: tokio_postgres::Error) -> Self {
        let schema = schema.clone();
        let Some(state) = source.code() else { return Self::Postgres { schema, source } };
        match state.code() {
            "OB001" => match conflicting_key(&message_of(&source)) {
                Some(key) => Self::Conflict { key, source },
                None => Self::Postgres { schema, source },
            },
            "OB002" | "OB003" | "OB004" | "OB005" | "OB006" | "OB007" | "OB008" => {
                Self::Invalid { problem: message_of(&source), source: Some(source) }
            }
            _ if *state == SqlState::T_R_SERIALIZATION_FAILURE
                || *state == SqlState::T_R_DEADLOCK_DETECTED =>
            {
                Self::Retry { source }
            }
            _ if *state == SqlState::INVALID_SCHEMA_NAME || *state == SqlState::UNDEFINED_FUNCTION => {
                Self::NotInstalled { schema, source }
            }
            _ => Self::Postgres { schema, source },
        }
    }
}

/// The message alone: the whole error would repeat it behind "db error".
fn message_of(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |db| db.message().to_owned())
}

/// The key in `key "..." is already enqueued with ...`; of several messages only PostgreSQL knows
/// which it was. A key has no blanks, hence cannot imitate what follows it.
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
