//! A statement that goes on after its handler was given up.

use deadpool_postgres::Object;
use tokio::time::{Instant, timeout};
use tokio_postgres::types::Type;

use super::TransactionalClaims;
use crate::{
    Error,
    database::{Parameter, discard, failed},
    identity::Identity,
};

/// Ends the session that holds a key's lock; for a caller that uses another client library.
/// `end_holder.sql` has its parameters.
pub const END_HOLDER: &str = include_str!("end_holder.sql");
/// How long ending a session may take; PostgreSQL waits a second for it.
const END_MAX: std::time::Duration = std::time::Duration::from_secs(5);

impl TransactionalClaims {
    /// Ends the session that holds a key's lock since then: closing its connection would leave its
    /// statement running, and the key locked. `held` is that connection.
    pub async fn end_holder(&self, held: Object, identity: &Identity, since: Instant) -> Result<(), Error> {
        const WHAT: &str = "end a session";
        // Its place in the pool is free for the one that is needed.
        let held = Object::take(held);
        let object = self.database.connect().await?;
        let age = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 2] = [(&identity.lock, Type::INT8), (&age, Type::INT8)];
        let ended = timeout(END_MAX, object.query_typed(&self.end_holder, &parameters)).await;
        drop(held);
        match ended {
            Ok(ended) => ended.map(drop).map_err(failed(WHAT)),
            Err(elapsed) => {
                discard(object);
                Err(Error::Unavailable(WHAT, elapsed.into()))
            }
        }
    }
}
