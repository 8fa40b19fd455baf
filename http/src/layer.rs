//! The layer: what a request is answered with before, and without, the handler.

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
    extract::MatchedPath,
    http::{Method, Request, Response, request::Parts},
    response::IntoResponse,
};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use oncebox_claims::{
    Error,
    database::{Database, Kind, Mode},
    identity::{self, Identity, is_tenant},
    leased::LeasedClaims,
    retention::{LOOK, Sweeper},
    transactional::TransactionalClaims,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tower_layer::Layer;
use tower_service::Service;
use tracing::{Instrument, Span, error, warn};

use crate::{
    Builder, Counts,
    claim::Ticket,
    counts::Counters,
    gate::{Arrival, Gates, Name},
    problem::Problem,
    request,
    settings::{Settings, Tenant},
    work::{Asked, call},
};

/// Together with the builder's part, they stay below what a row's scope may have.
const ROUTE_LENGTH_MAX: usize = 130;
const METHOD_LENGTH_MAX: usize = 20;
/// How long abandoned handlers may take to roll back.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(5);

/// A tower layer that runs the service behind it once per key; see the [crate](crate). Cheap to clone; clones share
/// everything.
#[derive(Clone, Debug)]
pub struct IdempotencyLayer {
    pub(crate) shared: Arc<Shared>,
}

impl IdempotencyLayer {
    /// Sets up a layer on connections of this pool. The handler's tables are in the same database.
    pub fn builder(pool: deadpool_postgres::Pool) -> Builder {
        Builder::new(pool)
    }

    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Checks that PostgreSQL can be reached and has the schema version that this crate works with. For a program's start.
    ///
    /// # Errors
    /// It cannot, or it has not.
    pub async fn check(&self) -> Result<(), Error> {
        self.shared.database.connect().await.map(drop)
    }

    /// How requests ended so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.snapshot()
    }

    /// Refuses new requests with 503 and waits until those there are have ended, also those whose clients went away. After
    /// `limit` their handlers are dropped and rolled back. Returns whether all had ended before. Call it when the server
    /// has stopped to accept connections, and before the runtime ends.
    pub async fn drain(&self, limit: Duration) -> bool {
        let Shared { tasks, stop, sweep, .. } = &*self.shared;
        tasks.close();
        sweep.cancel();
        if timeout(limit, tasks.wait()).await.is_ok() {
            return true;
        }
        warn!(requests = tasks.len(), "requests are still running after {limit:?}: dropped and rolled back");
        stop.cancel();
        // What is in its commit now gets to its end.
        if timeout(ROLLBACK_LIMIT, tasks.wait()).await.is_err() {
            warn!(requests = tasks.len(), "requests have not ended after {ROLLBACK_LIMIT:?} more");
        }
        false
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotent<S>;

    fn layer(&self, inner: S) -> Idempotent<S> {
        Idempotent { shared: Arc::clone(&self.shared), inner }
    }
}

/// The service that [`IdempotencyLayer`] makes of another one.
#[derive(Clone)]
pub struct Idempotent<S> {
    shared: Arc<Shared>,
    inner: S,
}

impl<S> fmt::Debug for Idempotent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// A clone of the inner service is called for each request, once it is ready.
impl<S, B> Service<Request<B>> for Idempotent<S>
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Response: IntoResponse,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (shared, inner) = (Arc::clone(&self.shared), self.inner.clone());
        let request = request.map(Body::new);
        Box::pin(async move { Ok(shared.answer(inner, request).await) })
    }
}

/// What all clones of a layer and of its services share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) database: Arc<Database>,
    pub(crate) transactional: TransactionalClaims,
    /// In the leased form.
    pub(crate) leased: Option<Arc<LeasedClaims>>,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    gates: Arc<Gates>,
    requests: Arc<Semaphore>,
    /// Of request bodies.
    buffered: Arc<Semaphore>,
    /// The requests that are worked on, with or without a client.
    tasks: TaskTracker,
    /// Ends handlers that a drain has waited for too long.
    pub(crate) stop: CancellationToken,
    /// Deletes responses that are older than their retention, once there was a request with a key.
    sweeper: Arc<Sweeper>,
    is_sweeping: AtomicBool,
    /// Ends the sweep: with a drain, or when the last clone of the layer goes.
    sweep: CancellationToken,
    _sweep_ends: DropGuard,
    /// Whether PostgreSQL was away when last heard of, so that it is logged once.
    pub(crate) away: AtomicBool,
}

impl Shared {
    pub(crate) fn new(database: Database, settings: Settings) -> Self {
        let database = Arc::new(database);
        let leased = |lease| Arc::new(LeasedClaims::new(Arc::clone(&database), lease));
        let sweep = CancellationToken::new();
        let mode = if settings.times.lease.is_some() { Mode::Lease } else { Mode::Transaction };
        Self {
            sweeper: Arc::new(Sweeper::new(Arc::clone(&database), Kind::Http, mode)),
            is_sweeping: AtomicBool::new(false),
            _sweep_ends: sweep.clone().drop_guard(),
            sweep,
            leased: settings.times.lease.map(leased),
            transactional: TransactionalClaims::new(Arc::clone(&database)),
            database,
            counters: Counters::default(),
            gates: Arc::default(),
            requests: Arc::new(Semaphore::new(settings.sizes.requests_max)),
            buffered: Arc::new(Semaphore::new(settings.sizes.buffered_max)),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            away: AtomicBool::new(false),
            settings,
        }
    }

    async fn answer<S>(self: Arc<Self>, inner: S, request: Request<Body>) -> Response<Body>
    where
        S: Service<Request<Body>> + Send + 'static,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        let (mut parts, body) = request.into_parts();
        let identity = match self.identify(&parts) {
            Ok(Some(identity)) => identity,
            Ok(None) => {
                parts.extensions.insert(Ticket::WithoutKey);
                return match call(inner, Request::from_parts(parts, body)).await {
                    Ok(response) => response,
                    Err(error) => self.failed(&*error),
                };
            }
            Err(problem) => return self.refuse(problem),
        };
        // Seen by a drain until this request has its answer.
        let _token = self.tasks.token();
        if self.tasks.is_closed() {
            return self.refuse(Problem::Draining);
        }
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            return self.refuse(Problem::Overloaded);
        };
        let limit = self.settings.times.request_body_timeout;
        let (body, buffered) = match timeout(limit, self.read(body)).await {
            Ok(Ok(read)) => read,
            Ok(Err(problem)) => return self.refuse(problem),
            Err(_) => return self.refuse(Problem::BodyTooSlow),
        };
        let (scope, tenant, key) = identity;
        self.sweep_with(&scope);
        let fingerprint = request::fingerprint(&parts, &body);
        let lock = identity::lock(self.settings.schema.as_str(), &scope, &tenant, &key);
        let name = Arc::new(Name { scope, tenant: tenant.clone(), key: key.clone() });
        let identity = Identity { tenant, key, fingerprint, lock };
        let deadline = Instant::now() + self.settings.times.in_flight_wait;
        let asked = Asked { parts, body, name, identity, deadline, _permits: (permit, buffered) };
        self.take_turn(inner, asked).await
    }

    /// Sees to it that what is stored for this scope goes after its retention.
    fn sweep_with(&self, scope: &str) {
        self.sweeper.add(scope);
        if self.is_sweeping.load(Ordering::Relaxed) || self.is_sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        // It does not hold the layer, whose end is its own.
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

    /// Goes first, or waits for the one who does.
    async fn take_turn<S>(self: Arc<Self>, inner: S, asked: Asked) -> Response<Body>
    where
        S: Service<Request<Body>> + Send + 'static,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        loop {
            let mut behind = match self.gates.arrive(&asked.name) {
                Arrival::First(pass) => {
                    // A task of its own, which goes on when the client goes away.
                    let working = Arc::clone(&self).work(inner, asked, pass).instrument(Span::current());
                    return match self.tasks.spawn(working).await {
                        Ok(response) => response,
                        Err(error) => self.failed(&error),
                    };
                }
                Arrival::Behind(behind) => behind,
            };
            match timeout_at(asked.deadline, behind.news()).await {
                Ok(Some(found)) => return self.replay(&found, &asked.identity),
                // Given up: whoever comes first now tries again.
                Ok(None) => {}
                Err(_) => return self.refuse(Problem::InFlight),
            }
        }
    }

    /// Scope, tenant and key of a request, or nothing for one that passes.
    fn identify(&self, parts: &Parts) -> Result<Option<(String, String, oncebox_schema::Key)>, Problem> {
        if matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE) {
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
        Ok(Some((format!("{} {} {route}", settings.scope, parts.method), tenant, key)))
    }

    /// The whole body, with what it takes of the memory for all bodies.
    async fn read(&self, mut body: Body) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Problem> {
        let max = self.settings.sizes.request_body_max;
        let too_large = Problem::BodyTooLarge(max);
        let mut held: Option<OwnedSemaphorePermit> = None;
        let mut read = Vec::new();
        if body.size_hint().lower() > max as u64 {
            return Err(too_large);
        }
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| Problem::BodyUnreadable)?.into_data() else { continue };
            if data.len() > max - read.len() {
                return Err(too_large);
            }
            let count = u32::try_from(data.len()).map_err(|_| too_large)?;
            let Ok(more) = Arc::clone(&self.buffered).try_acquire_many_owned(count) else {
                return Err(Problem::Overloaded);
            };
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
            read.extend_from_slice(&data);
        }
        Ok((Bytes::from(read), held))
    }
}
