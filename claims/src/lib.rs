//! Claims each key once: the code that the inbox and the HTTP layer share.
//!
//! A key is claimed in PostgreSQL before its message is handled, and its outcome is stored in the
//! same place. There are two ways to claim one: [`transactional`], in the transaction of the
//! handler, which commits or rolls back both; and [`leased`], for effects outside the database,
//! committed before the handler runs and held for a time that is renewed. Both store the outcome in
//! the same table, so that a duplicate is answered in the same way.
//!
//! Services use `oncebox-inbox` for messages or `oncebox-http` for requests; both re-export the
//! parts of this crate that their users need. It knows neither NATS nor HTTP.
//!
//! | module | content |
//! |---|---|
//! | [`identity`] | the identity of a key, and the lock that stands for it |
//! | [`life`] | the decisions about a key: claim, copy, mismatch, attempt, retry, bury; pure |
//! | [`transactional`] | claims in a transaction: one, one after the commit of another, many at once |
//! | [`leased`] | claims under a lease, and the effects that are remembered under it |
//! | [`records`] | attempts, snoozes, dead letters, and lines that wait for them |
//! | [`handler_call`] | calling the code of a user |
//! | [`retention`] | deleting rows that are older than their retention |
//! | [`failure`] | the reaction to an error, and how long to wait before the next attempt |
//! | [`database`] | connections, transactions, and how a statement goes out |
//! | [`metrics`] | counts and times, in the text format of Prometheus |
//! | [`natural`], [`lock()`] | for handlers: effects that are idempotent by nature; locks on entities |

pub mod backoff;
mod claim;
pub mod database;
mod driver;
mod error;
pub mod failure;
pub mod handler_call;
pub mod identity;
pub mod leased;
pub mod life;
pub mod limits;
mod lock;
pub mod metrics;
pub mod natural;
pub mod records;
pub mod reply;
pub mod retention;
pub mod stored;
pub mod transactional;

pub use claim::{Claim, TransactionId};
pub use error::{Error, InvalidSettings};
pub use failure::HandlerError;
#[doc(hidden)]
pub use lock::lock_through;
pub use lock::{EntityLocks, LockError, lock};
