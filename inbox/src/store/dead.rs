//! What is found of a key that was not claimed. One that was given up may be freed by an operator at any moment.

use deadpool_postgres::Transaction;
use tokio_postgres::{Row, types::Type};

use super::{Claim, Status, Store, Stored, failed};
use crate::{Error, identity::Identity};

impl Store {
    /// What a row of `stored.sql` says of a key that was not claimed.
    pub(super) async fn found(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        identity: &Identity,
        row: Option<Row>,
    ) -> Result<Claim, Error> {
        match row {
            Some(row) => {
                let stored = stored(&row, identity.key.as_str())?;
                self.certain(transaction, scope, identity, stored).await
            }
            None => Ok(Claim::InFlight),
        }
    }

    /// How a key ended, of which no claim was tried. `None` also when it was given up, when its row is older than the
    /// retention or of another payload, or cannot be read: all that takes a claim to decide.
    pub(crate) async fn known(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        identity: &Identity,
    ) -> Option<Claim> {
        let look = self.ready(transaction, &self.stored).await.ok()?;
        let row = self.look(transaction, &look, scope, identity).await.ok()??;
        let stored = stored(&row, identity.key.as_str()).ok()?;
        let is_copy =
            stored.status != Status::Dead && !stored.is_expired && stored.fingerprint == identity.fingerprint;
        is_copy.then_some(Claim::Stored(stored))
    }

    /// What is found of a key, once it is certain: a dead one may be about to be freed, and then it is in flight.
    pub(super) async fn certain(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        identity: &Identity,
        stored: Stored,
    ) -> Result<Claim, Error> {
        if stored.status == Status::Dead {
            let parameters = [
                (&scope as _, Type::TEXT),
                (&identity.tenant as _, Type::TEXT),
                (&identity.key.as_str() as _, Type::TEXT),
            ];
            let row = transaction.query_typed_opt(&self.dead, &parameters).await;
            if row.map_err(failed("lock a dead key"))?.is_none() {
                return Ok(Claim::InFlight);
            }
        }
        Ok(Claim::Stored(stored))
    }
}

/// Reads a row of `stored.sql`.
pub(super) fn stored(row: &Row, key: &str) -> Result<Stored, Error> {
    Ok(Stored {
        status: Status::of(key, row.get(0))?,
        fingerprint: row.get(1),
        outcome: row.get(2),
        message_id: row.get(3),
        is_expired: row.get(4),
    })
}
