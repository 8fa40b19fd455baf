//! The contract of Oncebox: SQL migrations and their migrator, keys, subjects, the broker's message
//! ids.
//!
//! Everything that a producer, the relay and a consumer must agree on lives here and nowhere else.
//! The SQL side of the same contract is in `schema/migrations`; one table of test vectors
//! (`schema/vectors/keys.tsv`) holds both sides to the same grammar.
//!
//! ```
//! use oncebox_schema::Key;
//!
//! let request = Key::root("order:4711")?;               // a client's key, escaped
//! let payment = request.step("process-payment")?;
//! assert_eq!(payment.as_str(), "order%3A4711:process-payment");
//! assert_eq!(payment.undo()?.as_str(), "order%3A4711:process-payment:undo");
//! # Ok::<(), oncebox_schema::KeyError>(())
//! ```

mod driver;
mod error_chain;
mod json;
mod key;
mod message_id;
mod migrate;
mod migrations;
mod name;
mod parameter;
mod recording;
pub mod script;
mod subject;
mod transaction;
mod version;
mod wake;

pub use driver::{Answer, BeginError, Cause, Columns, Driver, NoWrite, Statement, Value};
pub use error_chain::error_chain;
pub use json::to_json;
pub use key::{Key, KeyError};
pub use message_id::{Digest, MessageId, Sending};
#[doc(hidden)]
pub use migrate::migrate_beyond;
pub use migrate::{
    Lanes, MigrateError, Migrated, installed_lanes, installed_version, migrate, migrate_with_roles,
};
pub use migrations::LATEST_VERSION;
pub use name::{InvalidRolePrefix, InvalidSchemaName, RolePrefix, SchemaName};
#[doc(hidden)]
pub use parameter::{Kind, Parameter, typed, untyped};
#[doc(hidden)]
pub use recording::Recording;
pub use subject::{InvalidSubject, Subject, covers};
pub use transaction::{InTransaction, Transaction};
pub use version::{OLDEST_VERSION, VersionError, check_version, check_version_through};
pub use wake::{WAKE_SUBJECTS, wake_subject};
