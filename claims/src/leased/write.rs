//! Writes in the midst of a run, remembered like an effect.

use futures_util::future::BoxFuture;
use oncebox_schema::Transaction;
use serde::{Serialize, de::DeserializeOwned};

use super::{Lease, effect_error::EffectError};
use crate::{HandlerError, database::failed, failure::CommitError, reply::encode};

/// A hanging process must not keep a transaction open for longer.
pub const TRANSACTION_MAX: std::time::Duration = std::time::Duration::from_secs(60);

impl Lease {
    /// Writes to this database in a transaction of its own, in the midst of a run: once per key,
    /// with a result that the next run gets without writing again. Writes that may wait until the
    /// end belong into `LeasedHandler::finish`.
    ///
    /// ```
    /// # use oncebox_claims::{HandlerError, leased::Lease};
    /// # async fn example(lease: &Lease, order: i64) -> Result<(), HandlerError> {
    /// let attempt: i64 = lease
    ///     .write("reserve", |transaction| {
    ///         Box::pin(async move {
    ///             let sql = "INSERT INTO reservation (order_id) VALUES ($1) RETURNING id";
    ///             Ok(transaction.query_one(sql, &[&order]).await?.get(0))
    ///         })
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of `writes`; an [`EffectError`] when the step is used twice, the lease is lost, or
    /// PostgreSQL is away. Nothing is written then, except that after a lost answer to COMMIT it
    /// may be: the next run finds out.
    pub async fn write<T, F>(&self, step: &str, writes: F) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned + Send,
        F: for<'t> FnOnce(&'t Transaction) -> BoxFuture<'t, Result<T, HandlerError>> + Send,
    {
        let refused = |reason: String| EffectError::Refused { effect: step.to_owned(), reason };
        self.key().step(step).map_err(|problem| refused(problem.to_string()))?;
        let guard = self.ledger().take(step).map_err(|reason| refused(reason.to_owned()))?;
        let (store, holder) = (self.store(), self.holder());
        let database = store.database();
        let mut transaction = database.begin().await.map_err(EffectError::from)?;
        let opened = store.open(&transaction, holder, TRANSACTION_MAX).await.map_err(EffectError::from)?;
        let Some(opened) = opened else { return Err(EffectError::LeaseLost.into()) };
        let remembered = store.remembered(&transaction, &holder.name, step).await;
        let result = match remembered.map_err(EffectError::from)? {
            Some(remembered) => serde_json::from_slice(&remembered).map_err(|_| {
                refused("the remembered result does not decode: has its type changed?".to_owned())
            })?,
            None => {
                let result = writes(&transaction).await?;
                if let Err(error) = database.check_open(&mut transaction).await {
                    transaction.close();
                    let error = CommitError::of(error);
                    // Of a lost connection the id tells nothing: a server that crashes forgets ids
                    // that it has not written to disk, and gives them to other transactions.
                    let is_known = !matches!(error, CommitError::Lost(_));
                    let is_committed =
                        is_known && store.has_committed(opened).await.map_err(EffectError::from)?;
                    return Err(of_check(step, is_committed, error));
                }
                let encoded = encode(&result).map_err(refused)?.unwrap_or_else(|| b"null".to_vec());
                let settled = store.settle_within(&transaction, holder, step, &encoded).await;
                if !settled.map_err(|error| EffectError::from(failed("remember what was written")(error)))? {
                    return Err(EffectError::LeaseLost.into());
                }
                let committed = database.commit(&mut transaction).await;
                committed.map_err(|error| EffectError::from(failed("commit what was written")(error)))?;
                result
            }
        };
        transaction.release();
        guard.settled();
        Ok(result)
    }
}

/// The error of writes that have ended their transaction, or went on after an error. Those that are
/// committed would be made twice by another run.
fn of_check(step: &str, is_committed: bool, error: CommitError) -> HandlerError {
    let error = error.into_handler_error();
    if !is_committed {
        return error;
    }
    let reason = format!("the handler sent COMMIT by itself, which stays: {error}");
    EffectError::Rejected { effect: step.to_owned(), reason }.into()
}
