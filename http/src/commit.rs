//! The end of a handler's response: stored and committed, stored alone, or passed on.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{Response, StatusCode},
};
use oncebox_claims::{
    Claim, Error,
    database::failed_through,
    failure::CommitError,
    identity::Identity,
    life,
    metrics::add,
    stored::{Settlement, Status},
    transactional::{Deferred, Ending, Expect, Next},
};
use oncebox_schema::Driver;
use tokio::time::timeout;
use tracing::{debug, error};

use crate::{
    handler_response::{HandlerResponse, run_of},
    problem::Problem,
    shared::{DATABASE_LIMIT, Shared, within},
    single_flight::{CommittedResponse, Permit},
    stored_response::StoredResponse,
};

/// Whose response it is.
pub(crate) struct CurrentRequest<'a> {
    pub(crate) scope: &'a str,
    pub(crate) identity: &'a Identity,
    pub(crate) permit: &'a Permit,
}

impl CurrentRequest<'_> {
    /// Scope and key, for the log.
    pub(crate) fn labels(&self) -> (&str, &str) {
        (self.scope, self.identity.key.as_str())
    }
}

impl<D: Driver> Shared<D> {
    /// The effect of a response on its claim. A client repeats a request as often as it likes.
    pub(crate) fn next(&self, status: StatusCode) -> life::Next {
        run_of(status, &self.settings.not_stored).next(0, u64::MAX)
    }

    /// The handler's response, which is not stored.
    pub(crate) fn release(&self, called: HandlerResponse) -> Response<Body> {
        add(&self.counters.released);
        called.respond()
    }

    /// Stores the response with the handler's writes, and only then lets it go.
    pub(crate) async fn commit(
        &self,
        current: &CurrentRequest<'_>,
        mut transaction: D::Transaction,
        status: Status,
        called: HandlerResponse,
    ) -> Response<Body> {
        let kept = called.kept(&self.settings.kept_headers);
        let row = kept.encode();
        let settlement = Some((current.identity, Settlement { status, outcome: Some(&row[..]) }));
        let ending = Ending { deferred: &Deferred::default(), settlement };
        let commit = self.transactional.commit_and_claim(&mut transaction, current.scope, ending, None);
        let committed = timeout(DATABASE_LIMIT, commit).await;
        let (scope, key) = current.labels();
        let error = match committed.map(|committed| committed.committed) {
            Ok(Ok(())) => {
                D::release(transaction).await;
                self.publish(current, kept);
                return called.respond();
            }
            Ok(Err(error)) => error,
            Err(elapsed) => return self.unavailable(&Error::Unavailable("commit", elapsed.into())),
        };
        let reason = match error {
            CommitError::Lost(error) => return self.unavailable(&Error::Unavailable("commit", error)),
            CommitError::Conflict(_) => {
                debug!(
                    scope,
                    key, "conflict with another transaction; the client is asked to repeat the request"
                );
                self.database.roll_back(transaction).await;
                return self.refuse(Problem::Unavailable);
            }
            CommitError::Refused(reason) => reason,
        };
        error!(scope, key, "the response is not sent: {reason}");
        self.database.roll_back(transaction).await;
        self.refuse(Problem::HandlerFailed)
    }

    /// Undoes the handler's writes, and stores its no in a transaction of its own. Should that not
    /// work, the client does not get its answer: a copy of its request that comes later could be
    /// done, and the client would believe that it was refused.
    pub(crate) async fn reject(
        &self,
        current: &CurrentRequest<'_>,
        mut transaction: D::Transaction,
        called: HandlerResponse,
    ) -> Response<Body> {
        let kept = called.kept(&self.settings.kept_headers);
        if !self.database.roll_back_and_chain(&mut transaction).await {
            self.database.close(transaction).await;
            return self.unavailable(&Error::Unavailable("roll back", "the connection is lost".into()));
        }
        // On the same connection: another could have to be waited for.
        match within(self.record(transaction, current, &kept)).await {
            Ok(Claim::Won(_)) => {
                self.publish(current, kept);
                called.respond()
            }
            // Another process was faster: its committed response is the answer.
            Ok(Claim::Copy(stored)) => {
                let kept = stored.outcome.as_deref().and_then(StoredResponse::decode);
                let found = Arc::new(CommittedResponse { fingerprint: stored.fingerprint, kept });
                self.replay(&found, current.identity)
            }
            Ok(Claim::Mismatch(_)) => self.refuse(Problem::KeyReused),
            Ok(Claim::InFlight | Claim::Alone) => self.refuse(Problem::InFlight),
            Err(error) => self.unavailable(&error),
        }
    }

    async fn record(
        &self,
        mut transaction: D::Transaction,
        current: &CurrentRequest<'_>,
        kept: &StoredResponse,
    ) -> Result<Claim, Error> {
        let row = kept.encode();
        let settlement = Settlement { status: Status::Rejected, outcome: Some(&row[..]) };
        let next = Next { identity: current.identity, message_id: None, expect: Expect::Either };
        let claim = self.transactional.claim(&mut transaction, current.scope, next, settlement).await?;
        if matches!(claim, Some(Claim::Won(_))) {
            self.database.commit(&mut transaction).await.map_err(failed_through::<D>("commit"))?;
        }
        D::release(transaction).await;
        Ok(claim.unwrap_or(Claim::InFlight))
    }

    /// A response is committed: counts it, and hands it to the requests that wait for it.
    pub(crate) fn publish(&self, current: &CurrentRequest<'_>, kept: StoredResponse) {
        add(&self.counters.handled);
        if kept.status.is_client_error() {
            add(&self.counters.rejected);
        }
        let fingerprint = current.identity.fingerprint.to_vec();
        current.permit.publish(Arc::new(CommittedResponse { fingerprint, kept: Some(kept) }));
    }
}
