//! One request between its claim and its commit: a task that its client cannot cut short.
//!
//! ```text
//!           ┌─ response stored ─▶ same request? replay, else 422
//! look ─────┤
//!   │       └─ PostgreSQL away ─▶ 503
//!   ▼ nothing stored
//! begin, claim ──locked──▶ let the connection go, wait, look again; at the deadline 409
//!   ▼ won
//! handler ──panic, timeout, drain──▶ close the connection ─▶ 500 or 503
//!   ▼ response
//! 5xx, 401, 403, 408, 409, 425, 429 ─▶ ROLLBACK ─▶ pass the response on: the key is free again
//! other 4xx ─▶ ROLLBACK ─▶ claim, store the response, COMMIT ─▶ respond
//! 2xx, 3xx ─▶ store the response, COMMIT ─▶ respond ──answer lost──▶ 503: the next attempt finds out
//! ```

use std::{sync::Arc, time::Duration};

use axum::{
    BoxError,
    body::{Body, HttpBody},
    http::{HeaderValue, Request, Response, header::ACCEPT_ENCODING},
    response::IntoResponse,
};
use http_body_util::BodyExt;
use oncebox_claims::{
    Claim, Error,
    backoff::Backoff,
    database::{Kind, Mode},
    failure::text,
    handler_call::{self, CallEnd},
    identity::Identity,
    leased::{self, HeldClaim},
    life,
    stored::{COMPLETED, Status, Stored},
    transactional::{Expect, Next},
};
use oncebox_schema::Driver;
use tokio::time::{Instant, sleep_until};
use tower_service::Service;
use tracing::{debug, error, warn};

use crate::{
    KeepWrites,
    answer::REPLAYED,
    claim::{Claimed, RequestClaim},
    commit::CurrentRequest,
    handler_response::{HandlerFailure, HandlerResponse, ResponseBody, call},
    pending_request::PendingRequest,
    problem::Problem,
    shared::{Shared, within},
    single_flight::{CommittedResponse, Permit},
    stored_response::StoredResponse,
};

/// The pauses between looks at a key that another process works on.
const LOOK: Backoff = Backoff { first: Duration::from_millis(10), max: Duration::from_millis(100) };

/// The right to a key.
enum Owned<D: Driver> {
    Transaction(D::Transaction),
    Lease(HeldClaim),
}

impl<D: Driver> Shared<D> {
    /// Looks at the key until it is ours, or done, or the deadline has come.
    pub(crate) async fn work<S>(
        self: Arc<Self>,
        inner: S,
        pending: PendingRequest,
        permit: Permit,
    ) -> Response<Body>
    where
        S: Service<Request<Body>> + Send,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        let mut looks = 0;
        loop {
            match self.look(&pending).await {
                Ok(Claim::Won(Owned::Transaction(transaction))) => {
                    self.available();
                    let _run = self.counters.claims.running.begin();
                    return self.run(inner, pending, &permit, transaction).await;
                }
                Ok(Claim::Copy(stored)) => {
                    self.available();
                    return self.found(&pending, &permit, stored);
                }
                Ok(Claim::Won(Owned::Lease(claim))) => {
                    self.available();
                    let _run = self.counters.claims.running.begin();
                    return self.run_leased(inner, pending, &permit, claim).await;
                }
                Ok(Claim::Mismatch(_)) => return self.refuse(Problem::KeyReused),
                Ok(Claim::InFlight | Claim::Alone) => {}
                Err(error @ Error::OtherMode { .. }) => {
                    error!("{error}");
                    return self.refuse(Problem::SetUpWrongly);
                }
                Err(error) => return self.unavailable(&error),
            }
            if Instant::now() >= pending.deadline {
                return self.refuse(Problem::InFlight);
            }
            looks += 1;
            sleep_until(pending.deadline.min(Instant::now() + LOOK.after(looks))).await;
        }
    }

    /// First without a claim: a duplicate costs one round trip.
    async fn look(&self, pending: &PendingRequest) -> Result<Claim<Owned<D>>, Error> {
        let scope = &pending.name.scope;
        if let Some(leased) = &self.leased {
            let Identity { tenant, key, fingerprint, .. } = &pending.identity;
            let name = leased::Name::new(scope, tenant, key.clone());
            let (owner, may_take_over) = ((Kind::Http, &self.counters.claims), true);
            let claim = leased.acquire(&name, fingerprint, None, owner, may_take_over).await?;
            return Ok(claim.map(Owned::Lease));
        }
        let started = Instant::now();
        self.database.register(scope, Kind::Http, Mode::Transaction).await?;
        let looked = within(self.transactional.begin_and_peek(scope, &pending.identity)).await?;
        let (mut transaction, known) = looked;
        if let Some(known) = known {
            D::release(transaction).await;
            self.counters.claims.claim_time.observe(started, 1);
            return Ok(known);
        }
        let next = Next { identity: &pending.identity, message_id: None, expect: Expect::Either };
        let claim = within(self.transactional.claim(&mut transaction, scope, next, COMPLETED)).await;
        let claim = match claim {
            Ok(claim) => claim,
            Err(error) => {
                self.database.close(transaction).await;
                return Err(error);
            }
        };
        self.counters.claims.claim_time.observe(started, 1);
        let known = match claim {
            Some(Claim::Won(_)) => return Ok(Claim::Won(Owned::Transaction(transaction))),
            Some(Claim::Copy(stored)) => Claim::Copy(stored),
            Some(Claim::Mismatch(stored)) => Claim::Mismatch(stored),
            // Another process has committed it since we looked: the next look finds it.
            Some(Claim::InFlight | Claim::Alone) | None => Claim::InFlight,
        };
        D::release(transaction).await;
        Ok(known)
    }

    /// Answers from a row, and lets the requests that wait do the same.
    fn found(&self, pending: &PendingRequest, permit: &Permit, stored: Stored) -> Response<Body> {
        let (scope, key) = (&pending.name.scope, pending.name.key.as_str());
        let kept = stored.outcome.as_deref().and_then(StoredResponse::decode);
        if kept.is_none() {
            warn!(scope, key, "the row of this key holds no response: did a handler commit by itself?");
        }
        debug!(scope, key, "repeated request, answered from the stored response");
        let found = Arc::new(CommittedResponse { fingerprint: stored.fingerprint, kept });
        let response = self.replay(&found, &pending.identity);
        permit.publish(found);
        response
    }

    async fn run<S>(
        &self,
        inner: S,
        pending: PendingRequest,
        permit: &Permit,
        transaction: D::Transaction,
    ) -> Response<Body>
    where
        S: Service<Request<Body>> + Send,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        let PendingRequest { mut parts, body, name, identity, _permit, .. } = pending;
        let current = CurrentRequest { scope: &name.scope, identity: &identity, permit };
        let documentation = self.settings.documentation.clone();
        let claimed = Claimed::<D>::new(transaction, &identity, documentation);
        parts.extensions.insert(RequestClaim::Claimed(Arc::clone(&claimed)));
        let called = self.call(inner, Request::from_parts(parts, body.body())).await;
        let transaction = claimed.close();
        let mut called = match called {
            Ok(called) => called,
            // The transaction is open, so its connection is closed.
            Err(broken) => return self.handler_failed(&current, &broken),
        };
        called.parts.headers.insert(REPLAYED, HeaderValue::from_static("false"));
        let keeps_writes = called.parts.extensions.get::<KeepWrites>().is_some();
        match (self.next(called.parts.status), transaction) {
            (life::Next::End(Status::Rejected), Some(transaction)) if !keeps_writes => {
                self.reject(&current, transaction, called).await
            }
            (life::Next::End(status), Some(transaction)) => {
                self.commit(&current, transaction, status, called).await
            }
            (life::Next::End(_), None) => {
                let (scope, key) = current.labels();
                error!(scope, key, "rolled back: the handler has kept its claim beyond its response");
                self.refuse(Problem::HandlerFailed)
            }
            (_, transaction) => {
                if let Some(transaction) = transaction {
                    self.roll_back(transaction, called.parts.status.is_server_error()).await;
                }
                self.release(called)
            }
        }
    }

    /// Undoes the handler's writes, and frees the key.
    async fn roll_back(&self, mut transaction: D::Transaction, has_failed: bool) {
        if !self.database.roll_back_and_chain(&mut transaction).await {
            self.database.close(transaction).await;
        } else if has_failed {
            self.database.release_if_unchanged(transaction).await;
        } else {
            D::release(transaction).await;
        }
    }

    /// Runs the handler, and reads its response as far as the layer stores it.
    pub(crate) async fn call<S>(
        &self,
        inner: S,
        mut request: Request<Body>,
    ) -> Result<HandlerResponse, HandlerFailure>
    where
        S: Service<Request<Body>> + Send,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        // The stored response may be for a client that accepts another encoding.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let whole = async {
            let (parts, body) = call(inner, request).await.map_err(HandlerFailure::Failed)?.into_parts();
            let max = self.settings.sizes.response_body_max as u64;
            let is_kept = matches!(self.next(parts.status), life::Next::End(_));
            // A body that does not know its own length is a stream, perhaps one without an end.
            if is_kept && body.size_hint().exact().is_some_and(|length| length <= max) {
                let collected = body.collect().await.map_err(|error| HandlerFailure::Failed(error.into()))?;
                let trailers = collected.trailers().cloned();
                return Ok(HandlerResponse {
                    parts,
                    body: ResponseBody::Whole(collected.to_bytes(), trailers),
                });
            }
            Ok(HandlerResponse { parts, body: ResponseBody::Streamed(body) })
        };
        let limited = handler_call::call(Instant::now() + self.settings.limits.handler_timeout, whole);
        tokio::select! {
            ended = limited => match ended {
                CallEnd::Returned(called) => called,
                CallEnd::Panicked(_) => Err(HandlerFailure::Panicked),
                CallEnd::TimedOut => Err(HandlerFailure::TooSlow),
            },
            () = self.stop.cancelled() => Err(HandlerFailure::Stopped),
        }
    }

    /// Answers a request whose handler gave no response.
    pub(crate) fn handler_failed(
        &self,
        current: &CurrentRequest<'_>,
        failure: &HandlerFailure,
    ) -> Response<Body> {
        let (scope, key) = current.labels();
        let consequence = match self.settings.times.lease {
            Some(_) => "the next attempt goes on after the last effect that is known",
            None => "its writes are rolled back",
        };
        match failure {
            HandlerFailure::Panicked => {
                error!(scope, key, "the handler panicked; {consequence}");
                self.refuse(Problem::HandlerFailed)
            }
            HandlerFailure::Failed(reason) => {
                error!(scope, key, "the handler failed; {consequence}: {}", text(&**reason));
                self.refuse(Problem::HandlerFailed)
            }
            HandlerFailure::TooSlow => {
                let limit = self.settings.limits.handler_timeout;
                warn!(scope, key, "the handler took longer than {limit:?}; {consequence}");
                self.refuse(Problem::HandlerTooSlow)
            }
            HandlerFailure::Stopped => self.refuse(Problem::Draining),
        }
    }
}
