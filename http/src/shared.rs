//! The state that all clones of a layer and of its services share.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use oncebox_claims::{
    Error,
    database::{Database, Kind, Mode, TokioPostgres},
    leased::LeasedClaims,
    retention::Sweeper,
    transactional::TransactionalClaims,
};
use oncebox_schema::Driver;
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{bodies::Bodies, counts::Counters, settings::Settings, single_flight::SingleFlight};

/// How long our own statements may take, each; beyond it the connection counts as broken.
pub(crate) const DATABASE_LIMIT: Duration = Duration::from_secs(30);

/// The state of a layer.
#[derive(Debug)]
pub(crate) struct Shared<D: Driver = TokioPostgres> {
    pub(crate) database: Arc<Database<D>>,
    pub(crate) transactional: TransactionalClaims<D>,
    /// Claims under a lease, in the leased form.
    pub(crate) leased: Option<Arc<LeasedClaims>>,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    pub(crate) single_flight: Arc<SingleFlight>,
    /// Places in the layer.
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) bodies: Bodies,
    /// The requests that are worked on, with or without a client.
    pub(crate) tasks: TaskTracker,
    /// Ends handlers that a drain has waited for too long.
    pub(crate) stop: CancellationToken,
    /// Deletes responses that are older than their retention, once there was a request with a key.
    pub(crate) sweeper: Arc<Sweeper<D>>,
    pub(crate) is_sweeping: AtomicBool,
    /// Ends the sweep: with a drain, or when the last clone of the layer goes.
    pub(crate) sweep: CancellationToken,
    _sweep_ends: DropGuard,
    /// Whether PostgreSQL was away when last heard of, so that it is logged once.
    pub(crate) away: AtomicBool,
}

impl<D: Driver> Shared<D> {
    pub(crate) fn new(
        database: Arc<Database<D>>,
        settings: Settings,
        leased: Option<Arc<LeasedClaims>>,
    ) -> Self {
        let sweep = CancellationToken::new();
        let mode = if settings.times.lease.is_some() { Mode::Lease } else { Mode::Transaction };
        Self {
            sweeper: Arc::new(Sweeper::new(Arc::clone(&database), Kind::Http, mode)),
            is_sweeping: AtomicBool::new(false),
            _sweep_ends: sweep.clone().drop_guard(),
            sweep,
            leased,
            transactional: TransactionalClaims::new(Arc::clone(&database)),
            database,
            counters: Counters::default(),
            single_flight: Arc::default(),
            requests: Arc::new(Semaphore::new(settings.sizes.requests_max)),
            bodies: Bodies::new(settings.sizes.buffered_max),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            away: AtomicBool::new(false),
            settings,
        }
    }
}

/// Bounds the time of our own statements.
pub(crate) async fn within<T>(statements: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match timeout(DATABASE_LIMIT, statements).await {
        Ok(result) => result,
        Err(elapsed) => Err(Error::Unavailable("wait for PostgreSQL", elapsed.into())),
    }
}
