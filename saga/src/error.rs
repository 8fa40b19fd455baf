//! The errors, a variant for each reaction that is open to the caller.

use oncebox_schema::{Key, VersionError};

/// Why a saga was not started, or an orchestrator does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The orchestrator was built without this definition.
    #[error(
        "saga \"{name}\", version {version}, is not registered with this orchestrator: add it with definition(..)"
    )]
    NotRegistered {
        /// The definition's name.
        name: String,
        /// Its version.
        version: u16,
    },
    /// An argument cannot be used; nothing was done.
    #[error("{0}")]
    Invalid(String),
    /// A saga of this type and business id began with other data; nothing was done.
    #[error("saga \"{key}\" has business id \"{business_id}\" already, and began with other data")]
    OtherData {
        /// The business id.
        business_id: String,
        /// The key of the one that is there.
        key: String,
    },
    /// Another saga has the key; nothing was done.
    #[error("key \"{0}\" is that of another saga: choose another root key")]
    KeyTaken(Key),
    /// A command of the saga is in the outbox already: its business id, or its key, belonged to a
    /// saga which retention has deleted, and the participants would answer for that saga. Nothing
    /// of the start is kept: the transaction is aborted.
    #[error(
        "command \"{0}\" was sent before, for a saga that is gone: start this one with a business id, or a key, that \
         was never used"
    )]
    AlreadySent(Key),
    /// Two transactions met. Roll back, and run the transaction again.
    #[error("the saga \"{0}\" changed or went away meanwhile: run the transaction again")]
    Retry(Key),
    /// Sagas are in flight that this program could not go on with.
    #[error(
        "sagas in flight have no definition here, or one with another graph: {}. Register the definition that they \
         began with, and give a changed one a new version", .0.join(", ")
    )]
    InFlight(Vec<String>),
    /// The instance's code or data does not work; nothing was done.
    #[error("saga \"{key}\": {problem}")]
    Definition {
        /// The saga.
        key: Key,
        /// The part that does not work.
        problem: String,
    },
    /// The database has not the schema that this crate works with.
    #[error(transparent)]
    Schema(#[from] VersionError),
    /// A command could not be enqueued; roll the transaction back.
    #[error("enqueue the commands of a saga")]
    Outbox(#[from] oncebox_outbox::Error),
    /// The consumer of the answers ended.
    #[error("consume the answers of participants")]
    Consumer(#[from] oncebox_inbox::Error),
    /// PostgreSQL refused, or went away.
    #[error("{doing}")]
    Postgres {
        /// The operation.
        doing: &'static str,
        /// PostgreSQL's error.
        source: tokio_postgres::Error,
    },
}

/// The text for a value that `to_json` refuses; serde's own text may quote the value.
pub(crate) const NO_JSON: &str =
    "has no JSON form: a map whose keys are not texts, a number that is infinite or NaN, or the like";

/// For `map_err`.
pub(crate) fn failed(doing: &'static str) -> impl Fn(tokio_postgres::Error) -> Error {
    move |source| Error::Postgres { doing, source }
}
