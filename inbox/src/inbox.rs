//! An inbox: the state that its clones share, and the identity of a message.
//!
//! How a message is run is in `runner`, or in `leased` for handlers with effects outside the
//! database.

mod broken_runs;
mod duplicate_hint;
mod isolation;
mod shared;
mod sweep;

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use oncebox_claims::{
    EntityLocks,
    backoff::Backoff,
    database::{Database, Kind, Mode, TokioPostgres},
    identity::Identity,
    transactional::TransactionalClaims,
};
use oncebox_schema::{Driver, Recording};
use tokio::time::Instant;

use crate::{Builder, Counts, Error, KeySource, Received, identity::TenantSource, records::Records};

pub(crate) use broken_runs::Blame;
use broken_runs::BrokenRuns;
pub(crate) use duplicate_hint::DuplicateHint;
use isolation::Isolation;
pub(crate) use isolation::IsolationPermit;
pub(crate) use shared::{MISMATCH, Shared};

/// Runs handlers once per key, over tokio-postgres or another driver `D`. Cheap to clone; clones
/// share the connections and the counts.
#[derive(Clone, Debug)]
pub struct Inbox<D: Driver = TokioPostgres> {
    pub(crate) database: Arc<Database<D>>,
    pub(crate) claims: Arc<TransactionalClaims<D>>,
    pub(crate) records: Arc<Records<D>>,
    pub(crate) shared: Shared,
    pub(crate) duplicate_hint: Arc<DuplicateHint>,
    broken_runs: Arc<BrokenRuns>,
    isolation: Isolation,
}

/// Checked settings of an inbox.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) scope: String,
    pub(crate) tenant: TenantSource,
    pub(crate) keys: Vec<KeySource>,
    pub(crate) retries: RetryPolicy,
    /// Nothing is suppressed, only reported.
    pub(crate) is_shadow: bool,
    pub(crate) mode: Mode,
    /// Where the steps of messages are written, if anywhere.
    pub(crate) recording: Option<Recording>,
    #[cfg(feature = "redis")]
    pub(crate) gate: Option<crate::Gate>,
}

/// When a message is tried again, and when it is given up.
#[derive(Clone, Debug)]
pub(crate) struct RetryPolicy {
    pub(crate) attempts_max: u64,
    pub(crate) backoff: Backoff,
    /// How long a message may be snoozed in all.
    pub(crate) snooze_max: Duration,
}

impl Inbox {
    /// Sets up an inbox on connections of this pool. The handler's tables are in the same database.
    pub fn builder(pool: Pool) -> Builder {
        Self::over(pool)
    }
}

impl<D: Driver> Inbox<D> {
    /// Sets up an inbox over a driver, on connections of this pool of the driver. The handler's
    /// tables are in the same database.
    pub fn over(pool: impl Into<D>) -> Builder<D> {
        Builder::over(pool.into())
    }

    pub(crate) fn new(database: Arc<Database<D>>, settings: Settings) -> Self {
        Self {
            claims: Arc::new(TransactionalClaims::new(Arc::clone(&database))),
            records: Arc::new(Records::new(Arc::clone(&database))),
            database,
            shared: Shared::new(settings),
            duplicate_hint: Arc::default(),
            broken_runs: Arc::default(),
            isolation: Isolation::default(),
        }
    }

    /// How messages ended so far, in this inbox and its clones;
    /// [`metrics_text`](crate::metrics_text) shows the same to Prometheus.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.snapshot()
    }

    pub(crate) fn scope(&self) -> &str {
        self.shared.scope()
    }

    /// Checks that PostgreSQL can be reached and has the schema version that this crate works with,
    /// and that the scope is not in use in the [other mode](crate::Builder::leased).
    ///
    /// # Errors
    /// PostgreSQL cannot be reached, its schema is of another version, or the scope is in use in
    /// the other mode. [`Inbox::run`] reports the same, for the first message.
    pub async fn check(&self) -> Result<(), Error> {
        self.register(self.shared.settings.mode).await
    }

    /// Registers the scope; refuses one that is in use in the other mode.
    pub(crate) async fn register(&self, mode: Mode) -> Result<(), Error> {
        self.database.register(&self.shared.settings.scope, Kind::Consumer, mode).await
    }

    /// The identity of a message; the reason when it has no valid key or tenant.
    pub(crate) fn identify(&self, received: &Received) -> Result<Identity, String> {
        self.shared.identify(self.database.schema(), received)
    }

    /// The settings for the entity locks of a handler that begins now and may take so long.
    pub(crate) fn entity_locks(&self, limit: Duration) -> EntityLocks<'_> {
        let lock_timeout = self.database.limits().lock_timeout;
        EntityLocks {
            schema: self.database.schema(),
            lock_timeout,
            until: Instant::now() + limit,
            is_pooled: self.database.is_pooled(),
        }
    }
}
