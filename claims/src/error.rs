//! Why the inbox could not deal with a message, or a consumer could not go on.

use std::{error::Error as StdError, fmt};

type Source = Box<dyn StdError + Send + Sync>;

/// Why the inbox could not deal with a message, or a consumer could not start. Nothing of the
/// message is committed, except that after [`Error::Unavailable`] it may be: the next run finds
/// out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// PostgreSQL cannot be reached, has no connection to spare, or went away; also when the answer
    /// to COMMIT was lost. Run the message again: it is replayed when it was committed.
    #[error("{0}: PostgreSQL is not available")]
    Unavailable(&'static str, #[source] Source),
    /// PostgreSQL refused one of our own statements.
    #[error("{0}: PostgreSQL refused")]
    Refused(&'static str, #[source] Source),
    /// The scope is in use in the other mode: leased where this process claims keys in its
    /// transaction, or the other way round. Use another scope, or change this one's mode
    /// deliberately, see `Builder::leased`.
    #[error(
        "scope \"{scope}\" is in use in the other mode, not in mode \"{mode}\": use another scope; or stop all processes of this \
         one and run SELECT {schema}.change_inbox_mode('{scope}', '{mode}')"
    )]
    OtherMode {
        /// The scope.
        scope: String,
        /// The mode of this process: `transaction` or `lease`.
        mode: &'static str,
        /// The schema that the tables are in.
        schema: String,
    },
    /// A row of the inbox has a status that this program does not know.
    #[error(
        "the inbox row of key \"{key}\" has status \"{status}\", which this version does not know: use a newer Oncebox"
    )]
    UnknownStatus {
        /// The key.
        key: String,
        /// The status found.
        status: String,
    },
    /// The handler's reply type cannot decode the stored reply.
    #[error("the stored reply of key \"{key}\" does not decode: has the handler's reply type changed?")]
    StoredReply {
        /// The key.
        key: String,
        /// The error of serde.
        source: serde_json::Error,
    },
    /// The schema is missing, or older or newer than this program.
    #[error(transparent)]
    Version(#[from] oncebox_schema::VersionError),
    /// The builder was given values that cannot work.
    #[error(transparent)]
    Invalid(#[from] InvalidSettings),
    /// The JetStream stream or consumer cannot be set up.
    #[error("{0}")]
    Broker(String, #[source] Source),
}

/// An inbox, a consumer, or a layer before HTTP handlers was set up with values that cannot work:
/// all mistakes at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSettings(pub Vec<String>);

impl fmt::Display for InvalidSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid settings: {}", self.0.join("; "))
    }
}

impl StdError for InvalidSettings {}
