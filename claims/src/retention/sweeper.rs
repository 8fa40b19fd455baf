//! Deleting rows that are older than their retention: `run` around `once`.
//!
//! All processes of a database share one sweep through the tables: the process that locks the
//! sweep's row makes one step, and the next process continues there. A step is a transaction of its
//! own over a fixed number of blocks. It deletes the old rows of every consumer and HTTP route that
//! has registered a retention, also those that other processes registered. Rows of a scope without
//! a retention are kept for ever.
//!
//! A row that is too old is ignored even before it is deleted: a duplicate that finds such a row
//! replaces it. So only the size of the tables depends on the sweep.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use oncebox_schema::Driver;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::{Deleted, Retention, Step};
use crate::{
    Error,
    database::{Database, Kind, Mode, TokioPostgres},
    failure::text,
};

/// The pause between two checks whether a sweep is due. A check is skipped while messages are
/// handled.
pub const LOOK: Duration = Duration::from_secs(1);
/// How many checks in a row are skipped for messages at most.
const SKIPPED_CHECKS_MAX: u32 = 10;
/// How many scopes one process registers at most. Routes are few, but no other limit makes sure of
/// it.
const SCOPES_MAX: usize = 10_000;

/// The part of one process in the shared sweep.
#[derive(Debug)]
pub struct Sweeper<D: Driver = TokioPostgres> {
    database: Arc<Database<D>>,
    retention: Retention,
    kind: Kind,
    mode: Mode,
    /// The scopes whose rows this process writes; true once their retention is registered.
    scopes: Mutex<BTreeMap<String, bool>>,
}

impl<D: Driver> Sweeper<D> {
    /// Takes part in the sweep of this database.
    #[must_use]
    pub fn new(database: Arc<Database<D>>, kind: Kind, mode: Mode) -> Self {
        let retention = Retention::new(database.schema());
        Self { database, retention, kind, mode, scopes: Mutex::default() }
    }

    /// Adds a scope whose rows this process writes.
    pub fn add(&self, scope: &str) {
        let mut scopes = self.scopes();
        if !scopes.contains_key(scope) && scopes.len() < SCOPES_MAX {
            scopes.insert(scope.to_owned(), false);
        }
    }

    /// A step of the sweep, if one is due.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn once(&self) -> Result<Option<Step>, Error> {
        let waiting: Vec<String> = {
            let scopes = self.scopes();
            scopes
                .iter()
                .filter(|(_, is_registered)| !**is_registered)
                .map(|(scope, _)| scope.clone())
                .collect()
        };
        for scope in waiting {
            self.database.register(&scope, self.kind, self.mode).await?;
            self.scopes().insert(scope, true);
        }
        let step = self.retention.sweep(&self.database).await?;
        tell(step.map(|step| step.deleted).unwrap_or_default());
        Ok(step)
    }

    /// Sweeps until it is dropped.
    pub async fn run(&self) -> ! {
        let (mut skipped, mut is_refused) = (0, false);
        loop {
            if self.database.is_busy() && skipped < SKIPPED_CHECKS_MAX {
                skipped += 1;
                sleep(LOOK).await;
                continue;
            }
            skipped = 0;
            let start = Instant::now();
            let swept = self.once().await;
            is_refused = tell_refusal(swept.as_ref().err(), is_refused);
            match swept {
                // The pause is as long as the step was, so messages have the database for half of
                // the time.
                Ok(Some(Step { is_last: false, .. })) => sleep(start.elapsed()).await,
                Ok(Some(Step { is_last: true, .. }) | None) => sleep(LOOK).await,
                Err(_) => sleep(LOOK * SKIPPED_CHECKS_MAX).await,
            }
        }
    }

    fn scopes(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        // Each change is a single insert, so a panic cannot leave the map half changed.
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs why nothing was deleted; a refusal only once, until a step succeeds. Returns whether
/// PostgreSQL still refuses.
#[must_use]
pub fn tell_refusal(error: Option<&Error>, was_refused: bool) -> bool {
    match error {
        None => false,
        // The consumer, or the HTTP layer, logs by itself that PostgreSQL is away.
        Some(error @ Error::Unavailable(..)) => {
            debug!("old rows are not deleted for now: {}", text(error));
            was_refused
        }
        Some(_) if was_refused => true,
        Some(error) => {
            warn!(
                "rows that are older than their retention are not deleted, and their tables grow; will retry: {}",
                text(error)
            );
            true
        }
    }
}

/// Logs the deletions. Keys expire every day; a claim, a dead letter or an unknown effect is
/// something that an operator might still have wanted to see.
fn tell(deleted: Deleted) {
    let Deleted { keys, dead_letters, claims, unknown_effects } = deleted;
    if unknown_effects > 0 {
        warn!(
            claims,
            dead_letters,
            unknown_effects,
            "deleted after their retention, though nobody found out whether these effects happened"
        );
    } else if claims > 0 || dead_letters > 0 {
        info!(claims, dead_letters, "deleted after their retention");
    } else if keys > 0 {
        debug!(keys, "deleted after their retention");
    }
}
