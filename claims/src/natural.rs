//! Effects that are idempotent by nature: three shapes of SQL, and the results of each.
//!
//! In a handler the transaction is `cx.transaction()`, and the attempt is `cx.key()`.
//!
//! The inbox keeps copies of one *message* apart. Often the same effect is asked for under another
//! key as well: two services ask for the same cancellation, an operator repeats a saga's step by
//! hand. Then the business rows themselves must say whether it happened. Each helper here is a few
//! statements in the caller's transaction, inside or outside of a handler; they use no table of
//! ours. They have three things in common: one statement both looks and writes, so nothing can
//! happen between a check and a write; the caller learns which of the cases it was; and the helper
//! reads the answer to a repetition from the rows.
//!
//! # Insert a row with a natural key: [`insert`]
//!
//! `INSERT .. ON CONFLICT (..) DO NOTHING RETURNING ..` on a unique constraint of the business: one
//! subscription to a person and a newsletter, one shipment to an order. Name the columns: without
//! them one deferrable constraint of the table makes the statement fail (55000).
//!
//! ```
//! use oncebox_claims::natural::{self, Inserted, NaturalError};
//! use tokio_postgres::Transaction;
//!
//! async fn subscribe(transaction: &Transaction<'_>, email: String) -> Result<i64, NaturalError> {
//!     let insert = "INSERT INTO subscription (email) VALUES ($1) ON CONFLICT (email) DO NOTHING RETURNING id";
//!     let existing = "SELECT id, cancelled FROM subscription WHERE email = $1 FOR UPDATE";
//!     match natural::insert(transaction, (insert, &[&email]), (existing, &[&email])).await? {
//!         // A message is enqueued here, and only here: in the same transaction, when there is something new to tell.
//!         Inserted::New(row) => Ok(row.get("id")),
//!         // DO NOTHING also skips necessary changes: a cancelled subscription is to be resumed.
//!         Inserted::Existing(row) if row.get("cancelled") => {
//!             let id: i64 = row.get("id");
//!             transaction.execute("UPDATE subscription SET cancelled = false WHERE id = $1", &[&id]).await?;
//!             Ok(id)
//!         }
//!         Inserted::Existing(row) => Ok(row.get("id")),
//!     }
//! }
//! ```
//!
//! Limits: it takes a key that the business has anyway, with every part that tells two effects
//! apart (order *and* item, or the second item is taken for a repetition of the first). Do not use
//! it for effects that may well happen twice, like adding to a cart: there use the key of the
//! request. The first caller's *answer* is not stored, only the row, which may have changed since.
//!
//! # Change a row in the right state: [`update`]
//!
//! An `UPDATE` with the state that it needs among its conditions, and the attempt that made it
//! among its assignments. The number of rows says whether it was applied; if not, a second
//! statement tells a repetition from a state that does not allow it.
//!
//! ```
//! use oncebox_claims::natural::{self, Change, NaturalError};
//! use tokio_postgres::{Transaction, types::ToSql};
//!
//! async fn release(transaction: &Transaction<'_>, attempt: &str, order: i64, item: i64) -> Result<&'static str, NaturalError> {
//!     // The reservation says how much goes back, not the message; one statement changes both rows.
//!     let update = "WITH released AS (
//!                     UPDATE reservation SET status = 'released', released_by = $3
//!                     WHERE order_id = $1 AND item = $2 AND status = 'reserved'
//!                     RETURNING item, quantity)
//!                   UPDATE stock SET free = free + released.quantity
//!                   FROM released WHERE stock.item = released.item
//!                   RETURNING released.quantity";
//!     let state = "SELECT released_by = $3, status FROM reservation WHERE order_id = $1 AND item = $2";
//!     let parameters: [&(dyn ToSql + Sync); 3] = [&order, &item, &attempt];
//!     let changed = natural::update(transaction, (update, &parameters), (state, &parameters)).await?;
//!     Ok(match changed {
//!         Change::Applied(_) => "released",
//!         Change::AlreadyApplied(_) => "released before, by this very attempt",
//!         Change::PreconditionFailed(_) => "not reserved any more: shipped, or released by somebody else",
//!         Change::Missing => "never reserved",
//!     })
//! }
//! ```
//!
//! Limits: the attempt has to be stored in the row, otherwise a repetition looks like another
//! attempt; and the row remembers only the last one.
//!
//! # Add amounts that come in any order: [`increment`]
//!
//! Increments commute, but repeated they count twice: they need a row for each event, with the
//! event's id as its key, in the same transaction. Never read, add and write back: that loses the
//! amounts that others added meanwhile.
//!
//! ```
//! use oncebox_claims::natural::{self, Increment, NaturalError};
//! use tokio_postgres::Transaction;
//!
//! async fn award(transaction: &Transaction<'_>, event: String, player: i64, xp: i64) -> Result<i64, NaturalError> {
//!     let once = "INSERT INTO award (event, player, xp) VALUES ($1, $2, $3) ON CONFLICT (event) DO NOTHING";
//!     let add = "UPDATE player SET xp = xp + $2 WHERE id = $1 RETURNING xp";
//!     let current = "SELECT xp FROM player WHERE id = $1";
//!     let awarded = natural::increment(
//!         transaction,
//!         (once, &[&event, &player, &xp]),
//!         (add, &[&player, &xp]),
//!         (current, &[&player]),
//!     )
//!     .await?;
//!     match awarded {
//!         Increment::Applied(row) | Increment::AlreadyApplied(row) => Ok(row.get(0)),
//!     }
//! }
//! ```
//!
//! Limits: the rows of events grow until you delete those that can no longer be repeated.

use oncebox_schema::InTransaction;
use tokio_postgres::{Row, types::ToSql};

/// How often an insertion is tried against a row that is there for it, but gone for the query after
/// it.
const ROUNDS: u32 = 3;

/// A statement with its parameters.
pub type Query<'a> = (&'a str, &'a [&'a (dyn ToSql + Sync)]);

/// Why a helper could not tell. Roll back: its writes may be half of an effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NaturalError {
    /// PostgreSQL refused, or is away.
    #[error("run a statement")]
    Postgres(#[from] tokio_postgres::Error),
    /// A statement does not fit the helper.
    #[error("{0}")]
    Misuse(&'static str),
}

/// The result of [`insert`].
#[derive(Debug)]
pub enum Inserted {
    /// The row is new: the result of the insertion.
    New(Row),
    /// There was one: the result of the second query.
    Existing(Row),
}

/// Inserts a row unless there is one. `insert` is an `INSERT .. ON CONFLICT (..) DO NOTHING
/// RETURNING ..` of one row; when it returns nothing, `existing` reads the row that was in the way.
///
/// It waits for another transaction that is inserting the same row, and then finds the row. If the
/// row is deleted before it is read, the insertion is tried again.
///
/// # Errors
/// `existing` does not find the row in the way of `insert`: do both have the same key? PostgreSQL
/// refused, or is away.
pub async fn insert(
    transaction: &impl InTransaction,
    insert: Query<'_>,
    existing: Query<'_>,
) -> Result<Inserted, NaturalError> {
    for _ in 0..ROUNDS {
        if let Some(row) = transaction.client().query_opt(insert.0, insert.1).await? {
            return Ok(Inserted::New(row));
        }
        if let Some(row) = transaction.client().query_opt(existing.0, existing.1).await? {
            return Ok(Inserted::Existing(row));
        }
    }
    Err(NaturalError::Misuse(
        "the row that is in the way of the insertion is not found; have both the same key?",
    ))
}

/// The result of [`update`].
#[derive(Debug)]
pub enum Change {
    /// The row was in the right state, and is changed: the result of the update.
    Applied(Row),
    /// This attempt was applied before: the result of the second query.
    AlreadyApplied(Row),
    /// The row is in another state, and unchanged: the result of the second query.
    PreconditionFailed(Row),
    /// There is no such row.
    Missing,
}

/// Changes a row that is in the right state. `update` is an `UPDATE .. WHERE <key> AND <state>
/// RETURNING ..` that changes at most one row; when it changes none, `state` reads the row by its
/// key: in its first column, a boolean, whether this very attempt changed it before; NULL means no.
///
/// The row is read after the update: when others change it at the same time, it may be further than
/// the update found it.
///
/// # Errors
/// The first column of `state` is not boolean. More than one row was changed, or found. PostgreSQL
/// refused, or is away.
pub async fn update(
    transaction: &impl InTransaction,
    update: Query<'_>,
    state: Query<'_>,
) -> Result<Change, NaturalError> {
    if let Some(row) = transaction.client().query_opt(update.0, update.1).await? {
        return Ok(Change::Applied(row));
    }
    let Some(row) = transaction.client().query_opt(state.0, state.1).await? else {
        return Ok(Change::Missing);
    };
    match row.try_get::<_, Option<bool>>(0) {
        Ok(Some(true)) => Ok(Change::AlreadyApplied(row)),
        Ok(Some(false) | None) => Ok(Change::PreconditionFailed(row)),
        Err(_) => Err(NaturalError::Misuse(
            "the first column of the query for the state is not boolean: it tells whether this attempt did it",
        )),
    }
}

/// The result of [`increment`].
#[derive(Debug)]
pub enum Increment {
    /// Added: the result of the increment.
    Applied(Row),
    /// This event was added before: the result of the last query.
    AlreadyApplied(Row),
}

/// Adds once per event. `event` is an `INSERT .. ON CONFLICT (..) DO NOTHING` of a row with the
/// event's id; when it inserts, `increment`, an `UPDATE .. RETURNING ..`, changes one row; when it
/// does not, `current` reads that row.
///
/// # Errors
/// The row that is to be changed, or read, is not there: then the event must not be recorded
/// either, so roll back. PostgreSQL refused, or is away.
pub async fn increment(
    transaction: &impl InTransaction,
    event: Query<'_>,
    increment: Query<'_>,
    current: Query<'_>,
) -> Result<Increment, NaturalError> {
    let missing = NaturalError::Misuse("the row to be incremented is not there");
    match transaction.client().execute(event.0, event.1).await? {
        0 => {
            let row = transaction.client().query_opt(current.0, current.1).await?;
            row.map(Increment::AlreadyApplied).ok_or(missing)
        }
        1 => {
            let row = transaction.client().query_opt(increment.0, increment.1).await?;
            row.map(Increment::Applied).ok_or(missing)
        }
        _ => Err(NaturalError::Misuse("the statement for the event inserts more than one row")),
    }
}
