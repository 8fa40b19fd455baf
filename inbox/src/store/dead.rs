//! Keys that were given up, and may be freed by an operator at any moment.

use deadpool_postgres::Transaction;
use tokio_postgres::types::Type;

use super::{Claim, Status, Store, Stored, failed};
use crate::{Error, identity::Identity};

impl Store {
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
