//! An inbox: the state that its clones share, and the identity of a message.
//!
//! How a message is run is in `runner`, or in `leased` for handlers with effects outside the
//! database.

mod broken_runs;
mod duplicate_hint;
mod isolation;
mod lines;
mod shared;
mod sweep;

use std::{sync::Arc, time::Duration};

use oncebox_claims::{
    EntityLocks,
    database::{Database, Kind, Mode, TokioPostgres},
    identity::Identity,
    records::Records,
    transactional::TransactionalClaims,
};
use oncebox_schema::Driver;
use tokio::time::Instant;

use crate::{Counts, Error, Received, settings::Settings};

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

impl<D: Driver> Inbox<D> {
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

    /// The settings for the entity locks of a handler that begins now and may take this time.
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
