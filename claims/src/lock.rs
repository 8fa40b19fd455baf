//! Locks on the entities that a handler works on.
//!
//! The inbox keeps copies of one message apart, by their key. Two different messages about one
//! account have different keys and run at once: where a handler reads, decides and writes, it locks
//! the account first. A duplicate never gets here, it is answered before.

use std::{error::Error as StdError, time::Duration};

use oncebox_schema::{Driver, InTransaction, SchemaName, Value};
use tokio::time::Instant;
use tokio_postgres::{error::SqlState, types::Type};

use crate::identity;

/// Each lock is an entry of the server's lock table, which has room for 64 to a connection unless
/// configured otherwise.
const LOCKS_MAX: usize = 64;
const NAME_LENGTH_MAX: usize = 255;
/// Takes locks.
const LOCK: &str = include_str!("lock/lock.sql");

/// Why the locks of entities were not taken. The transaction is aborted, except after
/// [`LockError::Names`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The names cannot be those of entities; nothing was asked of PostgreSQL.
    #[error("entity locks: {0}")]
    Names(String),
    /// Another transaction kept one of the locks for too long. Run again later; a handler that
    /// returns this error does.
    #[error(
        "one of {count} entity locks was not free after {waited:?}; pg_locks has its holder, locktype \"advisory\""
    )]
    Busy {
        /// How many locks were asked for.
        count: usize,
        /// How long it took, waits for earlier locks included.
        waited: Duration,
        /// PostgreSQL's error.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// PostgreSQL refused, or is away.
    #[error("take entity locks")]
    Postgres(#[source] Box<dyn StdError + Send + Sync>),
}

impl LockError {
    fn new(count: usize, begun: Instant, is_busy: bool, source: Box<dyn StdError + Send + Sync>) -> Self {
        match is_busy {
            true => Self::Busy { count, waited: begun.elapsed(), source },
            false => Self::Postgres(source),
        }
    }
}

/// The settings of a handler's entity locks.
#[derive(Clone, Copy, Debug)]
pub struct EntityLocks<'a> {
    /// The schema that Oncebox is installed in.
    pub schema: &'a SchemaName,
    /// How long to wait for a lock, where that is set.
    pub lock_timeout: Option<Duration>,
    /// When the handler is cut off.
    pub until: Instant,
    /// Whether nothing may be prepared.
    pub is_pooled: bool,
}

impl EntityLocks<'_> {
    /// Takes the locks of these entities until the transaction ends, see [`lock`]. PostgreSQL gives
    /// up before the handler is cut off, so that the reason is known and the connection stays
    /// usable.
    ///
    /// # Errors
    /// The errors of [`lock`].
    pub async fn take<D: Driver, N: AsRef<str>>(
        &self,
        transaction: &mut D::Transaction,
        names: impl IntoIterator<Item = N>,
    ) -> Result<(), LockError> {
        let limit = self.limit();
        let connection = D::connection(transaction);
        take_through::<D>(connection, &hashes(self.schema, names)?, Some(&limit), self.is_pooled).await
    }

    /// The same over tokio-postgres, whose transaction may be shared.
    ///
    /// # Errors
    /// The errors of [`lock`].
    pub async fn take_in<N: AsRef<str>>(
        &self,
        transaction: &impl InTransaction,
        names: impl IntoIterator<Item = N>,
    ) -> Result<(), LockError> {
        take(transaction, hashes(self.schema, names)?, Some(self.limit())).await
    }

    fn limit(&self) -> String {
        let left = self.until.saturating_duration_since(Instant::now()).mul_f64(0.9);
        let limit = self.lock_timeout.map_or(left, |limit| limit.min(left)).max(Duration::from_millis(1));
        format!("{}ms", limit.as_millis())
    }
}

/// Takes the locks of these entities until the transaction ends, for code outside of handlers that
/// works on the same entities as handlers with `Context::lock`. Give it the schema of the inboxes.
/// The wait is limited by the transaction's own `lock_timeout`; by default it is not.
///
/// ```
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// transaction.batch_execute("SET LOCAL lock_timeout = '2s'").await?;
/// oncebox_claims::lock(&transaction, &oncebox_schema::SchemaName::default(), ["account:1"]).await?;
/// transaction.execute("UPDATE account SET cents = 0 WHERE id = 1", &[]).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A name is empty or too long, or there are too many. A lock was not free within the transaction's
/// `lock_timeout`. PostgreSQL is away.
pub async fn lock<N: AsRef<str>>(
    transaction: &impl InTransaction,
    schema: &SchemaName,
    names: impl IntoIterator<Item = N>,
) -> Result<(), LockError> {
    take(transaction, hashes(schema, names)?, None).await
}

/// [`lock`] over another driver: for the crates of drivers, which take an open transaction only.
#[doc(hidden)]
pub async fn lock_through<D: Driver, N: AsRef<str>>(
    connection: &mut D::Connection,
    schema: &SchemaName,
    names: impl IntoIterator<Item = N>,
) -> Result<(), LockError> {
    take_through::<D>(connection, &hashes(schema, names)?, None, false).await
}

async fn take_through<D: Driver>(
    connection: &mut D::Connection,
    hashes: &[i64],
    limit: Option<&str>,
    is_pooled: bool,
) -> Result<(), LockError> {
    let begun = Instant::now();
    let values = [Value::Integers(hashes), Value::Text(limit)];
    let taken = D::query(connection, LOCK, &values, is_pooled).await;
    taken.map(drop).map_err(|error| {
        let is_busy =
            D::cause(&error).is_some_and(|cause| cause.state() == SqlState::LOCK_NOT_AVAILABLE.code());
        LockError::new(hashes.len(), begun, is_busy, error.into())
    })
}

async fn take(
    transaction: &impl InTransaction,
    hashes: Vec<i64>,
    limit: Option<String>,
) -> Result<(), LockError> {
    let begun = Instant::now();
    // With its text each time: one round trip, and no name that would mean nothing with a pooler.
    let parameters = [(&hashes as _, Type::INT8_ARRAY), (&limit as _, Type::TEXT)];
    transaction.client().execute_typed(LOCK, &parameters).await.map(drop).map_err(|error| {
        let is_busy = error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        LockError::new(hashes.len(), begun, is_busy, error.into())
    })
}

/// 64 bits for each name, apart from those of the inbox's keys, as they come: the statement puts
/// them in order. Of different names with the same hash one waits for the other, and no more.
fn hashes<N: AsRef<str>>(
    schema: &SchemaName,
    names: impl IntoIterator<Item = N>,
) -> Result<Vec<i64>, LockError> {
    let mut hashes = Vec::new();
    for (number, name) in names.into_iter().enumerate() {
        let name = name.as_ref();
        if number == LOCKS_MAX {
            return Err(LockError::Names(format!("more than {LOCKS_MAX} names; lock something coarser")));
        }
        if !(1..=NAME_LENGTH_MAX).contains(&name.len()) {
            let length = name.len();
            return Err(LockError::Names(format!("a name has {length} bytes, not 1 to {NAME_LENGTH_MAX}")));
        }
        hashes.push(identity::hash("oncebox entity 1", [schema.as_str(), name]));
    }
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use oncebox_schema::Key;

    use super::*;

    fn of(names: &[&str]) -> Result<Vec<i64>, LockError> {
        hashes(&SchemaName::default(), names)
    }

    /// And apart from the locks of keys, so that a handler never meets the lock of a message.
    #[test]
    fn an_entity_is_its_schema_and_its_name() {
        let one = of(&["a"]).unwrap();
        assert_eq!([one[0], one[0]], of(&["a", "a"]).unwrap()[..], "the same name is the same lock");
        assert_ne!(one, of(&["b"]).unwrap());
        assert_ne!(one, hashes(&"other".parse().unwrap(), ["a"]).unwrap());
        let key = identity::lock("oncebox", "", "", &"a".parse::<Key>().unwrap());
        assert_ne!(one, [key]);
    }

    #[test]
    fn names_are_bounded() {
        assert_eq!(of(&[]).unwrap(), [0_i64; 0]);
        assert_eq!(of(&[&"x".repeat(255)]).unwrap().len(), 1);
        assert!(of(&[""]).unwrap_err().to_string().contains("0 bytes"));
        assert!(of(&[&"x".repeat(256)]).unwrap_err().to_string().contains("256 bytes"));
        let many: Vec<String> = (0..64).map(|n| n.to_string()).collect();
        assert_eq!(hashes(&SchemaName::default(), &many).unwrap().len(), 64);
        let more = many.iter().chain([&many[0]]);
        assert!(hashes(&SchemaName::default(), more).unwrap_err().to_string().contains("more than 64"));
    }
}
