//! A statement that goes on after its handler was given up.

use oncebox_schema::{Driver, Value};
use tokio::time::Instant;

use super::TransactionalClaims;
use crate::{Error, identity::Identity};

impl<D: Driver> TransactionalClaims<D> {
    /// Ends the session that holds a key's lock since then: closing its connection leaves its
    /// statement running, and the key locked. That connection is closed already: its place in the
    /// pool is free for the one that is needed.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn end_holder(&self, identity: &Identity, since: Instant) -> Result<(), Error> {
        let age = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
        let values = [Value::Integer(Some(identity.lock)), Value::Integer(Some(age))];
        self.database.alone("end a session", &self.end_holder, &values).await.map(drop)
    }
}
