//! The end of a pipeline's last message.

use std::ops::Deref;

use deadpool_postgres::{Object, Transaction};
use oncebox_claims::{failure::CommitError, transactional::TransactionId};

use super::{
    delivery::Delivery,
    failure::{AttemptResult, Failure},
};
use crate::{Inbox, Received, Verdict};

impl Inbox {
    /// After a failure, whether the connection is idle, and whether the handler had committed its
    /// claim by itself.
    pub(super) async fn look_back<T>(
        &self,
        object: &Object,
        delivery: &Delivery<T>,
        failure: Failure,
        claimed: Option<TransactionId>,
    ) -> (Failure, bool) {
        let Some(claimed) = claimed else { return (failure, self.database.is_idle(object).await) };
        let scope = &self.shared.settings.scope;
        match self.claims.is_committed(object, scope, &delivery.identity, claimed).await {
            Some(true) => (failure.committed(claimed), true),
            Some(false) => (failure, true),
            None => (failure, false),
        }
    }

    /// The same of an abandoned handler, whose connection is gone.
    pub(super) async fn look_elsewhere<T>(
        &self,
        delivery: &Delivery<T>,
        failure: Failure,
        claimed: Option<TransactionId>,
    ) -> Failure {
        match self.database.connect().await {
            Ok(object) => self.look_back(&object, delivery, failure, claimed).await.0,
            // What follows needs a connection as well, and reports that there is none.
            Err(_) => failure,
        }
    }

    /// Commits the last message; whether the connection is idle then.
    pub(super) async fn commit_last<R>(
        &self,
        transaction: Transaction<'_>,
        delivery: &Delivery<impl Deref<Target = Received>>,
        verdict: Verdict<R>,
        claimed: TransactionId,
    ) -> (AttemptResult<R>, bool) {
        let commit = self.claims.commit_last(transaction, claimed);
        match self.database.answered("commit", Box::pin(commit)).await {
            Ok(Ok(())) => {
                self.count(&verdict, &delivery.received, &delivery.identity);
                (AttemptResult::Verdict(verdict), true)
            }
            Ok(Err(error)) => {
                // PostgreSQL's own answer: the transaction is rolled back.
                let is_idle = !matches!(error, CommitError::Lost(_));
                (AttemptResult::Failed(Failure::of_commit(error)), is_idle)
            }
            Err(error) => (AttemptResult::Error(error), false),
        }
    }
}
