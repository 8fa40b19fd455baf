//! Looking at a key, and claiming it.

use tokio::time::{Instant, timeout};
use tokio_postgres::{Row, error::SqlState, types::Type};
use uuid::Uuid;

use super::{ANSWER_MAX, Holder, LeasedClaims, Name, milliseconds};
use crate::{
    Claim, Error,
    database::{Parameter, failed},
    life::{Arrival, Held, arrive},
    stored::{Stored, status_of},
};

/// A claim that was won.
#[derive(Debug)]
pub(in crate::leased) struct Won {
    pub(in crate::leased) holder: Holder,
    pub(in crate::leased) attempts: u64,
    pub(in crate::leased) taken_over: bool,
    /// A time that is not later than when the database gave the lease.
    pub(in crate::leased) since: Instant,
}

/// A key, as `found.sql` sees it.
pub(in crate::leased) struct Found {
    pub(in crate::leased) arrival: Arrival,
    /// Its end, unless that is older than the retention.
    pub(in crate::leased) stored: Option<Stored>,
    is_expired: bool,
}

impl LeasedClaims {
    /// Looks up a key, without waiting for a lock.
    pub(in crate::leased) async fn look(&self, name: &Name, fingerprint: &[u8; 32]) -> Result<Found, Error> {
        let seconds = self.database.retention_seconds();
        let row = self.query("look at a key", &self.found, &name.and([(&seconds, Type::FLOAT8)])).await?;
        Found::of(row, name, fingerprint)
    }

    /// Whether a key that looked dead is: an operator may be about to free it.
    pub(in crate::leased) async fn is_dead(&self, name: &Name) -> Result<bool, Error> {
        let row = self.query("lock a dead key", &self.dead, &name.parameters()).await?;
        Ok(row.is_some())
    }

    /// Claims a key that looked free, or takes it over. The claim is committed.
    pub(in crate::leased) async fn claim(
        &self,
        name: &Name,
        fingerprint: &[u8; 32],
        message_id: Option<i64>,
    ) -> Result<Claim<Won>, Error> {
        const WHAT: &str = "claim with a lease";
        let owner = Uuid::new_v4();
        let since = Instant::now();
        let mut transaction = self.database.begin().await?;
        let claiming = async {
            let [scope, tenant, key] = name.parameters();
            let parameters: [Parameter<'_>; 7] = [
                scope,
                tenant,
                key,
                (&&fingerprint[..], Type::BYTEA),
                (&message_id, Type::INT8),
                (&owner, Type::UUID),
                (&milliseconds(self.lease), Type::INT8),
            ];
            let claimed = match transaction.query_typed_opt(&self.claim, &parameters).await {
                // Another taker, or one who ends the key at this moment, has the row.
                Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                    return Ok(Claim::InFlight);
                }
                claimed => claimed.map_err(failed(WHAT))?,
            };
            // Once more, since it may have ended after it was looked at; from now on it cannot.
            let seconds = self.database.retention_seconds();
            let key_and_age = name.and([(&seconds, Type::FLOAT8)]);
            let row = transaction.query_typed_opt(&self.found, &key_and_age).await.map_err(failed(WHAT))?;
            let found = Found::of(row, name, fingerprint)?;
            if matches!(found.arrival, Arrival::Copy | Arrival::Mismatch) {
                return Ok(Claim::refused(found.arrival, found.stored));
            }
            let Some(claimed) = claimed else { return Ok(Claim::InFlight) };
            if found.is_expired {
                match transaction.execute_typed(&self.expire, &key_and_age).await {
                    Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                        return Ok(Claim::InFlight);
                    }
                    expired => expired.map_err(failed(WHAT))?,
                };
            }
            self.database.commit(&mut transaction).await.map_err(failed(WHAT))?;
            let holder = Holder { name: name.clone(), owner, epoch: claimed.get(0) };
            let attempts = u64::try_from(claimed.get::<_, i32>(1)).unwrap_or(1);
            Ok(Claim::Won(Won { holder, attempts, taken_over: claimed.get(2), since }))
        };
        let claimed = timeout(ANSWER_MAX, claiming).await;
        let claimed = claimed.unwrap_or_else(|elapsed| Err(Error::Unavailable(WHAT, elapsed.into())));
        if !matches!(claimed, Err(Error::Unavailable(..))) {
            transaction.release();
        }
        claimed
    }
}

impl Found {
    fn of(row: Option<Row>, name: &Name, fingerprint: &[u8; 32]) -> Result<Self, Error> {
        let Some(row) = row else {
            return Ok(Self { arrival: Arrival::Claim, stored: None, is_expired: false });
        };
        let stored = match row.get::<_, Option<&str>>("status") {
            Some(status) => Some(Stored {
                status: status_of(name.key.as_str(), status)?,
                fingerprint: row.get("fingerprint"),
                outcome: row.get("outcome"),
                message_id: row.get("message_id"),
                is_expired: row.get("is_expired"),
            }),
            None => None,
        };
        let held = row.get::<_, Option<&[u8]>>("claimed_fingerprint").map(|claimed| Held {
            is_same: claimed == fingerprint,
            is_over: !row.get::<_, bool>("is_leased"),
            is_suspect: row.get("is_suspect"),
        });
        let ended = stored.as_ref().map(|stored| stored.seen(fingerprint));
        let is_expired = ended.is_some_and(|ended| ended.is_expired);
        let stored = stored.filter(|_| !is_expired);
        Ok(Self { arrival: arrive(ended, held), stored, is_expired })
    }
}
