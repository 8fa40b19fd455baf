//! How a pipeline leaves its connection, by how its last message ended.

use oncebox_claims::{failure::text, transactional::TransactionId};
use oncebox_schema::Driver;
use tokio::time::Instant;
use tracing::warn;

use super::{delivery::Delivery, failure::Failure};
use crate::{Inbox, Verdict};

impl<D: Driver> Inbox<D> {
    /// Ends the transaction of a pipeline, and gives its connection back if that is idle.
    pub(super) async fn leave<T, R>(
        &self,
        transaction: D::Transaction,
        claimed: Option<TransactionId>,
        delivery: &Delivery<T, D>,
        result: Result<Verdict<R>, Failure>,
    ) -> Result<Verdict<R>, Failure> {
        match result {
            // The answer to a statement may be missing; or PostgreSQL refused our own statement,
            // perhaps because an earlier handler has changed the session: its role, or that it only
            // reads.
            Err(Failure::Ours(_)) => {
                self.database.close(transaction).await;
                result
            }
            Ok(_) | Err(Failure::ClaimAgain) => {
                D::release(transaction).await;
                result
            }
            Err(failure) => Err(self.roll_back(transaction, claimed, delivery, failure).await),
        }
    }

    /// Rolls back, so that the key is free for the next run or the dead letter, and finds out
    /// whether the handler had committed its claim by itself.
    async fn roll_back<T>(
        &self,
        mut transaction: D::Transaction,
        claimed: Option<TransactionId>,
        delivery: &Delivery<T, D>,
        failure: Failure,
    ) -> Failure {
        let identity = &delivery.identity;
        let is_idle = self.database.roll_back_and_chain(&mut transaction).await;
        let is_committed = match claimed.filter(|_| is_idle) {
            Some(claimed) => {
                let behind = Some(&mut transaction);
                self.claims.is_committed(behind, self.scope(), identity, claimed).await.ok()
            }
            None => claimed.is_none().then_some(false),
        };
        match (&failure, is_committed) {
            // A handler that was abandoned may have left anything in its session.
            (Failure::Abandoned { .. }, _) | (_, None | Some(true)) => {
                self.database.close(transaction).await;
            }
            (_, Some(false)) => self.database.release_if_unchanged(transaction).await,
        }
        if let (Failure::Abandoned { locked_since: Some(since), .. }, None) = (&failure, is_committed) {
            self.end_holder(delivery, *since).await;
        }
        match (claimed, is_committed) {
            (Some(claimed), Some(true)) => failure.committed(claimed),
            // A commit that is not answered may be there, and rightly so.
            (Some(claimed), None) if matches!(failure, Failure::Abandoned { .. } | Failure::Failed(_)) => {
                self.look_elsewhere(delivery, failure, claimed).await
            }
            (_, Some(_) | None) => failure,
        }
    }

    /// Ends the session in which a statement of the handler still runs, and holds the lock on the
    /// key.
    async fn end_holder<T>(&self, delivery: &Delivery<T, D>, since: Instant) {
        if let Err(error) = Box::pin(self.claims.end_holder(&delivery.identity, since)).await {
            let (scope, key) = (self.scope(), delivery.identity.key.as_str());
            warn!(scope, key, "a statement of the handler still runs: {}", text(&error));
        }
    }

    /// Whether a handler whose transaction is over had committed its claim by itself.
    async fn look_elsewhere<T>(
        &self,
        delivery: &Delivery<T, D>,
        failure: Failure,
        claimed: TransactionId,
    ) -> Failure {
        // The next steps need a connection as well, and report that there is none.
        match self.claims.is_committed(None, self.scope(), &delivery.identity, claimed).await {
            Ok(true) => failure.committed(claimed),
            Ok(false) | Err(_) => failure,
        }
    }
}
