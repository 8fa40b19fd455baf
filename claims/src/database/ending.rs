//! The ends of a transaction: committed, rolled back, given back, closed.

use std::time::Duration;

use oncebox_schema::Driver;
use tokio::time::timeout;

use super::Database;

/// How long a rollback may take before its connection is closed, or its session ended, instead.
const ROLLBACK_MAX: Duration = Duration::from_secs(2);

impl<D: Driver> Database<D> {
    /// Fails, and aborts the transaction, unless it is still the one that was begun. To be awaited
    /// before more is written in it.
    ///
    /// # Errors
    /// The code that has used the transaction has ended it, or went on after an error; PostgreSQL
    /// is away.
    pub async fn check_open(&self, transaction: &mut D::Transaction) -> Result<(), D::Error> {
        D::batch(D::connection(transaction), &self.check).await
    }

    /// Commits, if this is still the transaction that was begun; then give it back with
    /// [`Driver::release`].
    ///
    /// # Errors
    /// The transaction was aborted, or has ended already; PostgreSQL is away.
    pub async fn commit(&self, transaction: &mut D::Transaction) -> Result<(), D::Error> {
        D::batch(D::connection(transaction), self.ending()).await?;
        if D::PIPELINES {
            D::set_over(transaction);
        }
        Ok(())
    }

    /// Rolls back and waits until it is done, so that the key is free; whether it is done. Should
    /// it take long, the driver closes the connection.
    pub async fn roll_back(&self, transaction: D::Transaction) -> bool {
        matches!(timeout(ROLLBACK_MAX, D::rollback(transaction)).await, Ok(Ok(())))
    }

    /// Rolls back a handler's writes, so that the key is free, and leaves an empty transaction
    /// open. False if this failed, for instance because the handler has ended the transaction, or a
    /// statement of it still runs.
    pub async fn roll_back_and_chain(&self, transaction: &mut D::Transaction) -> bool {
        let rolled_back = D::batch(D::connection(transaction), &self.roll_back_and_chain);
        matches!(timeout(ROLLBACK_MAX, rolled_back).await, Ok(Ok(())))
    }

    /// Gives the connection of an empty transaction back, unless the next messages must not use its
    /// session, which is ended then. For a transaction whose handler has failed.
    pub async fn release_if_unchanged(&self, mut transaction: D::Transaction) {
        let kept = D::batch(D::connection(&mut transaction), &self.end_changed);
        if matches!(timeout(ROLLBACK_MAX, kept).await, Ok(Ok(()))) {
            D::release(transaction).await;
        } else {
            self.close(transaction).await;
        }
    }

    /// Closes the connection; PostgreSQL rolls back.
    pub async fn close(&self, transaction: D::Transaction) {
        // One that does not answer is closed by its pool.
        let _ = timeout(ROLLBACK_MAX, D::close(transaction)).await;
    }
}
