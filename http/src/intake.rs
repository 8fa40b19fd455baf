//! The answers that a request gets without the handler: refusals, replays, conflicts.

use std::sync::{Arc, atomic::Ordering};

use axum::{
    BoxError,
    body::Body,
    extract::MatchedPath,
    http::{Request, Response, request::Parts},
    response::IntoResponse,
};
use oncebox_claims::{
    identity::{Identity, is_tenant, lock},
    retention::LOOK,
};
use oncebox_schema::Driver;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tower_service::Service;
use tracing::{Instrument, Span, error};

use crate::{
    claim::RequestClaim,
    handler_response::call,
    pending_request::PendingRequest,
    problem::Problem,
    request,
    settings::{Settings, Tenant},
    shared::Shared,
    single_flight::{Entry, Name},
};

/// A row's scope is the builder's scope, the method and the route; with these limits it is never
/// too long for its column.
const ROUTE_LENGTH_MAX: usize = 130;
const METHOD_LENGTH_MAX: usize = 20;

impl<D: Driver> Shared<D> {
    /// Answers a request.
    pub(crate) async fn answer<S>(self: Arc<Self>, inner: S, request: Request<Body>) -> Response<Body>
    where
        S: Service<Request<Body>> + Send + 'static,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        let (mut parts, body) = request.into_parts();
        let name = match self.identify(&parts) {
            Ok(Some(name)) => name,
            Ok(None) => {
                parts.extensions.insert(RequestClaim::<D>::WithoutKey);
                return match call(inner, Request::from_parts(parts, body)).await {
                    Ok(response) => response,
                    Err(error) => self.failed(&*error),
                };
            }
            Err(problem) => return self.refuse(problem),
        };
        // A drain waits for this token, which lasts until the request has its answer.
        let _token = self.tasks.token();
        if self.tasks.is_closed() {
            return self.refuse(Problem::Draining);
        }
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            return self.refuse(Problem::Overloaded);
        };
        let Settings { times, sizes, .. } = &self.settings;
        let reading = self.bodies.read(body, sizes.request_body_max);
        let body = match timeout(times.request_body_timeout, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(problem)) => return self.refuse(problem),
            Err(_) => return self.refuse(Problem::BodyTooSlow),
        };
        self.sweep_with(&name.scope);
        let Settings { credentials, fingerprint, .. } = &self.settings;
        let fingerprint = request::fingerprint(&parts, &body.bytes, credentials, fingerprint.as_ref());
        let lock = lock(self.settings.schema.as_str(), &name.scope, &name.tenant, &name.key);
        let identity = Identity { tenant: name.tenant.clone(), key: name.key.clone(), fingerprint, lock };
        let name = Arc::new(name);
        let deadline = Instant::now() + self.settings.times.in_flight_wait;
        let pending = PendingRequest { parts, body, name, identity, deadline, _permit: permit };
        self.single_flight(inner, pending).await
    }

    /// Adds this scope to those whose old rows are deleted, and starts the sweep when it does not
    /// run yet.
    fn sweep_with(&self, scope: &str) {
        self.sweeper.add(scope);
        if self.is_sweeping.load(Ordering::Relaxed) || self.is_sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        // The task does not keep the layer alive: it ends when the layer is dropped.
        let (sweeper, end) = (Arc::clone(&self.sweeper), self.sweep.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                never = async {
                    sleep(LOOK).await;
                    sweeper.run().await
                } => match never {},
            }
        });
    }

    /// Runs the request, or waits for another one with the same key that runs already.
    async fn single_flight<S>(self: Arc<Self>, inner: S, pending: PendingRequest) -> Response<Body>
    where
        S: Service<Request<Body>> + Send + 'static,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        loop {
            let mut follower = match self.single_flight.enter(&pending.name) {
                Entry::Leader(permit) => {
                    // The request runs in its own task, which goes on when the client goes away.
                    let working = Arc::clone(&self).work(inner, pending, permit).instrument(Span::current());
                    return match self.tasks.spawn(working).await {
                        Ok(response) => response,
                        Err(error) => self.failed(&error),
                    };
                }
                Entry::Follower(follower) => follower,
            };
            match timeout_at(pending.deadline, follower.news()).await {
                Ok(Some(found)) => return self.replay(&found, &pending.identity),
                // The other request ended without a response to share; the first of those that wait
                // tries again.
                Ok(None) => {}
                Err(_) => return self.refuse(Problem::InFlight),
            }
        }
    }

    /// Scope, tenant and key of a request; `None` for a request that passes without a claim.
    fn identify(&self, parts: &Parts) -> Result<Option<Name>, Problem> {
        if parts.method.is_safe() {
            return Ok(None);
        }
        if parts.method.as_str().len() > METHOD_LENGTH_MAX {
            return Err(Problem::MethodUnknown);
        }
        let settings = &self.settings;
        let Some(key) = request::key(&parts.headers, &settings.header)? else {
            return if settings.passes_without_key { Ok(None) } else { Err(Problem::KeyMissing) };
        };
        let tenant = match &settings.tenant {
            Tenant::Single => String::new(),
            Tenant::By(of) => of(parts).filter(|tenant| is_tenant(tenant)).ok_or(Problem::TenantMissing)?,
        };
        let matched = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
        let Some(route) = settings.route.as_deref().or(matched) else {
            error!("a request without a route: add the layer with `route_layer`, or give it a `route`");
            return Err(Problem::SetUpWrongly);
        };
        if route.len() > ROUTE_LENGTH_MAX {
            error!(
                route,
                "the route is longer than {ROUTE_LENGTH_MAX} bytes: give the layer a shorter `route`"
            );
            return Err(Problem::SetUpWrongly);
        }
        let key = request::root(&tenant, &key);
        let scope = format!("{} {} {route}", settings.scope, parts.method);
        Ok(Some(Name { scope, tenant, key }))
    }
}
