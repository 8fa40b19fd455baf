//! Looking at a key without claiming it, or after the claim was lost. One that was given up may be
//! freed by an operator at any moment.

use deadpool_postgres::Object;
use oncebox_schema::Transaction;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use super::{Claim, TransactionalClaims};
use crate::{
    Error,
    database::{Parameter, failed},
    identity::Identity,
    stored::{Status, Stored},
};

impl TransactionalClaims {
    /// What is stored for a key: one round trip, no transaction. `None` does not say that the key
    /// is free: it says only that the caller should try to claim it.
    pub async fn peek(
        &self,
        object: &Object,
        scope: &str,
        identity: &Identity,
    ) -> Result<Option<Stored>, Error> {
        let what = "read the stored outcome";
        let key = identity.key.as_str();
        let seconds = self.database.retention_seconds();
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&key, Type::TEXT),
            (&seconds, Type::FLOAT8),
        ];
        let found = if self.database.is_pooled() {
            object.query_typed_opt(&self.stored, &parameters).await
        } else {
            let statement = object.prepare_cached(&self.stored).await.map_err(failed(what))?;
            let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
            object.query_opt(&statement, &values).await
        };
        let found = found.map_err(failed(what))?.map(|row| stored(&row, key)).transpose()?;
        Ok(found.filter(|stored| !stored.is_expired))
    }

    /// The state of a key that was not claimed, from a row of `stored.sql`.
    pub(super) async fn found(
        &self,
        transaction: &Transaction,
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

    /// Reads how a key ended, without trying to claim it. `None` also when the key was given up,
    /// when its row is older than the retention or of another payload, or when the row cannot be
    /// read: only a claim can decide these cases.
    pub async fn known(&self, transaction: &Transaction, scope: &str, identity: &Identity) -> Option<Claim> {
        let look = self.database.ready(transaction, &self.stored).await.ok()?;
        let row = self.look(transaction, &look, scope, identity).await.ok()??;
        let stored = stored(&row, identity.key.as_str()).ok()?;
        let is_copy =
            stored.status != Status::Dead && !stored.is_expired && stored.fingerprint == identity.fingerprint;
        is_copy.then_some(Claim::Stored(stored))
    }

    /// What is found of a key, once it is certain: a dead one may be about to be freed, and then it
    /// is in flight.
    pub(super) async fn certain(
        &self,
        transaction: &Transaction,
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
fn stored(row: &Row, key: &str) -> Result<Stored, Error> {
    Ok(Stored {
        status: Status::of(key, row.get(0))?,
        fingerprint: row.get(1),
        outcome: row.get(2),
        message_id: row.get(3),
        is_expired: row.get(4),
    })
}
