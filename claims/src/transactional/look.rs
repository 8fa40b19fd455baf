//! Looking at a key without claiming it, or after the claim was lost. One that was given up may be
//! freed by an operator at any moment.

use oncebox_schema::{Columns, Driver};

use super::{Claim, TransactionalClaims, claim::name_values};
use crate::{
    Error,
    database::failed_through,
    identity::Identity,
    stored::{Status, Stored},
};

const WHAT: &str = "read the stored outcome";

impl<D: Driver> TransactionalClaims<D> {
    /// Reads the stored outcome of a key, in a transaction of its own. `None` does not say that the
    /// key is free: it says only that the caller should try to claim it.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn peek(&self, scope: &str, identity: &Identity) -> Result<Option<Stored>, Error> {
        self.database.check().await?;
        let row = self.database.alone(WHAT, &self.stored, &self.look_values(scope, identity)).await?;
        kept(row, identity)
    }

    /// Begins the transaction of a handler, and looks at a key in it: returns its outcome like
    /// [`TransactionalClaims::peek`].
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn begin_and_peek(
        &self,
        scope: &str,
        identity: &Identity,
    ) -> Result<(D::Transaction, Option<Stored>), Error> {
        self.database.check().await?;
        let values = self.look_values(scope, identity);
        let look = [oncebox_schema::Statement::Query(&self.stored, &values)];
        let (transaction, answers) = self.database.begin_for_handler(&look).await?;
        let answer = answers.into_iter().next().unwrap_or(Ok(None)).map_err(failed_through::<D>(WHAT));
        match answer.and_then(|row| kept(row, identity)) {
            Ok(stored) => Ok((transaction, stored)),
            Err(error) => {
                self.database.close(transaction).await;
                Err(error)
            }
        }
    }

    /// The state of a key that was not claimed, from a row of `stored.sql`.
    pub(super) async fn found(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        identity: &Identity,
        row: Option<Columns>,
    ) -> Result<Claim, Error> {
        match row {
            Some(row) => {
                let stored = stored(row, identity.key.as_str())?;
                self.certain(transaction, scope, identity, stored).await
            }
            None => Ok(Claim::InFlight),
        }
    }

    /// Reads how a key ended, without trying to claim it. `None` also when the key was given up,
    /// when its row is older than the retention or of another payload, or when the row cannot be
    /// read: only a claim can decide these cases.
    pub async fn known(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        identity: &Identity,
    ) -> Option<Claim> {
        let row = self.look(transaction, scope, identity).await.ok()??;
        let stored = stored(row, identity.key.as_str()).ok()?;
        let is_copy =
            stored.status != Status::Dead && !stored.is_expired && stored.answers(&identity.fingerprint);
        is_copy.then_some(Claim::Stored(stored))
    }

    /// The result for a stored key, once it is certain: a dead one may be about to be freed, and
    /// then it is in flight.
    pub(super) async fn certain(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        identity: &Identity,
        stored: Stored,
    ) -> Result<Claim, Error> {
        if stored.status == Status::Dead {
            let row = self.database.query(transaction, &self.dead, &name_values(scope, identity)).await;
            if row.map_err(failed_through::<D>("lock a dead key"))?.is_none() {
                return Ok(Claim::InFlight);
            }
        }
        Ok(Claim::Stored(stored))
    }
}

fn kept(row: Option<Columns>, identity: &Identity) -> Result<Option<Stored>, Error> {
    let found = row.map(|row| stored(row, identity.key.as_str())).transpose()?;
    Ok(found.filter(|stored| !stored.is_expired))
}

/// Reads a row of `stored.sql`.
fn stored(mut row: Columns, key: &str) -> Result<Stored, Error> {
    Ok(Stored {
        status: Status::of(key, row.text(0).unwrap_or_default())?,
        fingerprint: row.take(1).unwrap_or_default(),
        outcome: row.take(2),
        message_id: row.number(3),
        is_expired: row.is_true(4),
    })
}
