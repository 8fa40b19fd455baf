//! A request whose handler has effects outside the database: its claim is committed first, and
//! leased.
//!
//! ```text
//! claim ──leased to another──▶ wait, look again; at the deadline 409
//!   ▼ won, or taken over after the other's lease; committed
//! handler ─ effect ─ write ─ ...        renewed meanwhile; lost ─▶ dropped, 503
//!   ▼ response
//! 5xx, 401, 403, 408, 409, 425, 429, or none ─▶ released: the next attempt goes on after the last effect that is known
//! all others ─▶ BEGIN, the claim's row becomes the response's, COMMIT ─▶ respond
//! ```

use std::time::Duration;

use axum::{
    BoxError,
    body::Body,
    http::{HeaderValue, Request, Response},
    response::IntoResponse,
};
use oncebox_claims::{
    database::TokioPostgres,
    failure::text,
    leased::{HeldClaim, Lost},
    life::Next,
    stored::Status,
};
use oncebox_schema::Driver;
use tower_service::Service;
use tracing::{error, warn};

use crate::{
    answer::REPLAYED,
    claim::{LeasedClaim, RequestClaim},
    commit::CurrentRequest,
    handler_response::{HandlerFailure, HandlerResponse},
    pending_request::PendingRequest,
    problem::Problem,
    shared::Shared,
    single_flight::Permit,
};

impl<D: Driver> Shared<D> {
    /// Runs the handler under a lease, and ends the claim with its response.
    pub(crate) async fn run_leased<S>(
        &self,
        inner: S,
        pending: PendingRequest,
        permit: &Permit,
        claim: HeldClaim,
    ) -> Response<Body>
    where
        S: Service<Request<Body>> + Send,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        let PendingRequest { mut parts, body, name, identity, _permit, .. } = pending;
        let current = CurrentRequest { scope: &name.scope, identity: &identity, permit };
        parts.extensions.insert(RequestClaim::<TokioPostgres>::Leased(LeasedClaim::new(
            claim.lease().clone(),
            &identity.tenant,
        )));
        let call = self.call(inner, Request::from_parts(parts, body.body()));
        let mut called = match claim.keep(call).await {
            Ok(Ok(called)) => called,
            Ok(Err(failure)) => {
                self.release_claim(&current, &claim, reason(&failure)).await;
                return self.handler_failed(&current, &failure);
            }
            // The handler was dropped. The process that has the key now reads the recorded effects.
            Err(Lost::TakenOver) => return self.refuse(Problem::InFlight),
            Err(Lost::Unconfirmed(reason)) => return self.unavailable(&reason),
        };
        called.parts.headers.insert(REPLAYED, HeaderValue::from_static("false"));
        let Next::End(status) = self.next(called.parts.status) else {
            let reason = format!("the handler answered with status {}", called.parts.status.as_u16());
            self.release_claim(&current, &claim, &reason).await;
            return self.release(called);
        };
        if let Some(effects) = claim.open_effects() {
            let (scope, key) = current.labels();
            error!(
                scope,
                key,
                "the response is not sent: the handler went on after an effect of unknown outcome: {effects}"
            );
            self.release_claim(&current, &claim, "the handler went on after an effect").await;
            return self.refuse(Problem::HandlerFailed);
        }
        self.end(&current, &claim, status, called).await
    }

    async fn end(
        &self,
        current: &CurrentRequest<'_>,
        claim: &HeldClaim,
        status: Status,
        called: HandlerResponse,
    ) -> Response<Body> {
        let kept = called.kept(&self.settings.kept_headers);
        match claim.end(status, &kept.encode()).await {
            Ok(true) => {
                self.publish(current, kept);
                called.respond()
            }
            // The claim has another owner: its response counts, and the next attempt is answered
            // with it.
            Ok(false) => self.refuse(Problem::InFlight),
            Err(reason) => self.unavailable(&reason),
        }
    }

    /// Releases the claim for the next attempt. If that fails, the lease ends by itself.
    async fn release_claim(&self, current: &CurrentRequest<'_>, claim: &HeldClaim, reason: &str) {
        if let Err(error) = claim.release(Duration::ZERO, reason).await {
            let (scope, key) = current.labels();
            warn!(
                scope,
                key,
                "the claim could not be released, the key is free when its lease ends: {}",
                text(&error)
            );
        }
    }
}

fn reason(failure: &HandlerFailure) -> &'static str {
    match failure {
        HandlerFailure::Panicked => "the handler panicked",
        HandlerFailure::TooSlow => "the handler took too long",
        HandlerFailure::Stopped => "the server was shutting down",
        HandlerFailure::Failed(_) => "the handler failed",
    }
}
