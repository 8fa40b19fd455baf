//! How a pipeline leaves its connection, by how its last message ended.

use oncebox_claims::{failure::text, transactional::TransactionId};
use oncebox_schema::Transaction;
use tokio::time::Instant;
use tracing::warn;

use super::{delivery::Delivery, failure::Failure};
use crate::{Inbox, Verdict};

impl Inbox {
    /// Ends the transaction of a pipeline, and gives its connection back if that is idle.
    pub(super) async fn leave<T, R>(
        &self,
        transaction: Transaction,
        claimed: Option<TransactionId>,
        delivery: &Delivery<T>,
        result: Result<Verdict<R>, Failure>,
    ) -> Result<Verdict<R>, Failure> {
        match result {
            // What was sent may not have been answered; or PostgreSQL refused our own statement,
            // perhaps because an earlier handler has changed the session: its role, or that it only
            // reads.
            Err(Failure::Ours(_)) => {
                transaction.close();
                result
            }
            Ok(_) | Err(Failure::ClaimAgain) => {
                transaction.release();
                result
            }
            Err(failure) => Err(self.roll_back(transaction, claimed, delivery, failure).await),
        }
    }

    /// Rolls back, so that the key is free for the next run or the dead letter, and finds out
    /// whether the handler had committed its claim by itself.
    async fn roll_back<T>(
        &self,
        transaction: Transaction,
        claimed: Option<TransactionId>,
        delivery: &Delivery<T>,
        failure: Failure,
    ) -> Failure {
        let is_idle = self.database.roll_back(&transaction).await;
        let is_committed = match claimed {
            _ if !is_idle => None,
            Some(claimed) => self.is_committed(&transaction, delivery, claimed).await,
            None => Some(false),
        };
        match (failure, is_committed.zip(claimed), is_committed) {
            (failure, Some((true, claimed)), _) => {
                transaction.close();
                failure.committed(claimed)
            }
            (failure @ (Failure::Abandoned { .. } | Failure::Failed(_)), _, None) => {
                match failure {
                    Failure::Abandoned { locked_since: Some(since), .. } => {
                        self.end_holder(transaction, delivery, since).await;
                    }
                    _ => transaction.close(),
                }
                self.look_elsewhere(delivery, failure, claimed).await
            }
            // What an abandoned handler has left in its session is of no use to the next message.
            (failure @ Failure::Abandoned { .. }, _, _) | (failure, _, None) => {
                transaction.close();
                failure
            }
            (failure, _, Some(_)) => {
                if !self.database.keeps(&transaction).await {
                    transaction.close();
                }
                failure
            }
        }
    }

    async fn is_committed<T>(
        &self,
        client: &tokio_postgres::Client,
        delivery: &Delivery<T>,
        claimed: TransactionId,
    ) -> Option<bool> {
        let scope = &self.shared.settings.scope;
        self.claims.is_committed(client, scope, &delivery.identity, claimed).await
    }

    /// Ends the session in which a statement of the handler still runs, and holds the lock on the
    /// key.
    async fn end_holder<T>(&self, transaction: Transaction, delivery: &Delivery<T>, since: Instant) {
        let ending = self.claims.end_holder(transaction.into_object(), &delivery.identity, since);
        if let Err(error) = Box::pin(ending).await {
            let (scope, key) = (&self.shared.settings.scope, delivery.identity.key.as_str());
            warn!(scope, key, "a statement of the handler still runs: {}", text(&error));
        }
    }

    /// Whether an abandoned handler, whose connection is gone, had committed its claim by itself.
    async fn look_elsewhere<T>(
        &self,
        delivery: &Delivery<T>,
        failure: Failure,
        claimed: Option<TransactionId>,
    ) -> Failure {
        let Some(claimed) = claimed else { return failure };
        // What follows needs a connection as well, and reports that there is none.
        let Ok(object) = self.database.connect().await else { return failure };
        match self.is_committed(&object, delivery, claimed).await {
            Some(true) => failure.committed(claimed),
            Some(false) | None => failure,
        }
    }
}
