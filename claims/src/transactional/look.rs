//! Looking at a key without claiming it, or after the claim was lost. One that was given up may be
//! freed by an operator at any moment.

use oncebox_schema::{Columns, Driver};

use super::{TransactionalClaims, claim::name_values};
use crate::{
    Claim, Error,
    database::failed_through,
    identity::Identity,
    life::{Arrival, arrive},
    stored::{Status, Stored, arrival, status_of},
};

const WHAT: &str = "read the stored outcome";

impl<D: Driver> TransactionalClaims<D> {
    /// The answer to a key that has ended, in a transaction of its own. `None` does not say that
    /// the key is free: it says only that the caller should try to claim it.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn peek(&self, scope: &str, identity: &Identity) -> Result<Option<Claim>, Error> {
        self.database.check().await?;
        let row = self.database.alone(WHAT, &self.stored, &self.look_values(scope, identity)).await?;
        ended(row, identity)
    }

    /// Begins the transaction of a handler, and looks at a key in it, like
    /// [`TransactionalClaims::peek`].
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn begin_and_peek<W>(
        &self,
        scope: &str,
        identity: &Identity,
    ) -> Result<(D::Transaction, Option<Claim<W>>), Error> {
        self.database.check().await?;
        let values = self.look_values(scope, identity);
        let look = [oncebox_schema::Statement::Query(&self.stored, &values)];
        let (transaction, answers) = self.database.begin_for_handler(&look).await?;
        let answer = answers.into_iter().next().unwrap_or(Ok(None)).map_err(failed_through::<D>(WHAT));
        match answer.and_then(|row| ended(row, identity)) {
            Ok(known) => Ok((transaction, known)),
            Err(error) => {
                self.database.close(transaction).await;
                Err(error)
            }
        }
    }

    /// The row of a key that was not claimed, from a row of `stored.sql`. `None` when its holder
    /// has not committed, or when an operator frees it: it was dead, and is in flight.
    pub(super) async fn found(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        identity: &Identity,
        row: Option<Columns>,
    ) -> Result<Option<Stored>, Error> {
        let Some(row) = row else { return Ok(None) };
        let stored = stored(row, identity.key.as_str())?;
        self.certain(transaction, scope, identity, stored).await
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
        let arrival = arrive(Some(stored.seen(&identity.fingerprint)), None);
        (stored.status != Status::Dead && arrival == Arrival::Copy).then_some(Claim::Copy(stored))
    }

    /// A stored row, once it is certain: a dead key may be about to be freed.
    pub(super) async fn certain(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        identity: &Identity,
        stored: Stored,
    ) -> Result<Option<Stored>, Error> {
        if stored.status == Status::Dead {
            let row = self.database.query(transaction, &self.dead, &name_values(scope, identity)).await;
            if row.map_err(failed_through::<D>("lock a dead key"))?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(stored))
    }
}

/// The answer to a key that has ended, if it has.
fn ended<W>(row: Option<Columns>, identity: &Identity) -> Result<Option<Claim<W>>, Error> {
    let Some(row) = row else { return Ok(None) };
    let stored = stored(row, identity.key.as_str())?;
    let arrival = arrival(Some(&stored), identity);
    Ok((arrival != Arrival::Replace).then(|| Claim::refused(arrival, Some(stored))))
}

/// Reads a row of `stored.sql`.
fn stored(mut row: Columns, key: &str) -> Result<Stored, Error> {
    Ok(Stored {
        status: status_of(key, row.text(0).unwrap_or_default())?,
        fingerprint: row.take(1).unwrap_or_default(),
        outcome: row.take(2),
        message_id: row.number(3),
        is_expired: row.is_true(4),
    })
}
