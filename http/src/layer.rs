//! The tower layer, and the service that it makes of another one.

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
    http::{Request, Response},
    response::IntoResponse,
};
use futures_util::future::BoxFuture;
use oncebox_claims::{Error, database::TokioPostgres};
use oncebox_schema::Driver;
use tokio::time::timeout;
use tower_layer::Layer;
use tower_service::Service;
use tracing::warn;

use crate::{Builder, Counts, shared::Shared};

/// How long abandoned handlers may take to roll back.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(5);

/// A tower layer that runs its inner service once per key; see the [crate]. Cheap to clone; clones
/// share everything.
#[derive(Clone, Debug)]
pub struct IdempotencyLayer<D: Driver = TokioPostgres> {
    pub(crate) shared: Arc<Shared<D>>,
}

impl IdempotencyLayer {
    /// Sets up a layer on connections of this pool. The handler's tables are in the same database.
    pub fn builder(pool: deadpool_postgres::Pool) -> Builder {
        Self::over(pool)
    }
}

impl<D: Driver> IdempotencyLayer<D> {
    /// Sets up a layer over a driver, on connections of this pool of the driver. The handler's
    /// tables are in the same database.
    pub fn over(pool: impl Into<D>) -> Builder<D> {
        Builder::new(pool.into())
    }

    pub(crate) fn new(shared: Shared<D>) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Checks that PostgreSQL can be reached and has the schema version that this crate works with.
    /// Call it when the program starts.
    ///
    /// # Errors
    /// PostgreSQL cannot be reached, or its schema is of another version.
    pub async fn check(&self) -> Result<(), Error> {
        self.shared.database.check().await
    }

    /// How requests ended so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.snapshot()
    }

    /// Refuses new requests with 503 and waits until the running ones have ended, also those whose
    /// clients went away. After `limit` their handlers are dropped and rolled back. Returns whether
    /// all requests had ended before. Call it when the server has stopped accepting connections,
    /// and before the runtime ends.
    pub async fn drain(&self, limit: Duration) -> bool {
        let Shared { tasks, stop, sweep, .. } = &*self.shared;
        tasks.close();
        sweep.cancel();
        if timeout(limit, tasks.wait()).await.is_ok() {
            return true;
        }
        warn!(requests = tasks.len(), "requests are still running after {limit:?}: dropped and rolled back");
        stop.cancel();
        // A request that is committing now may finish its commit.
        if timeout(ROLLBACK_LIMIT, tasks.wait()).await.is_err() {
            warn!(requests = tasks.len(), "requests have not ended after {ROLLBACK_LIMIT:?} more");
        }
        false
    }
}

impl<S, D: Driver> Layer<S> for IdempotencyLayer<D> {
    type Service = Idempotent<S, D>;

    fn layer(&self, inner: S) -> Idempotent<S, D> {
        Idempotent { shared: Arc::clone(&self.shared), inner }
    }
}

/// The service that [`IdempotencyLayer`] makes of another one.
#[derive(Clone)]
pub struct Idempotent<S, D: Driver = TokioPostgres> {
    shared: Arc<Shared<D>>,
    inner: S,
}

impl<S, D: Driver> fmt::Debug for Idempotent<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// A clone of the inner service is called for each request, once it is ready.
impl<S, B, D: Driver> Service<Request<B>> for Idempotent<S, D>
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
