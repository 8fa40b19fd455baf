//! Deleting what is older than its retention: `run` around `once`.
//!
//! All processes of a database share one sweep through the tables: whoever locks its row goes a
//! step on, and whoever comes next goes on there. A step is a transaction of its own over a fixed
//! number of blocks. It deletes what belongs to any consumer, or HTTP route, that has registered a
//! retention, whichever process that is; what belongs to others is kept for ever.
//!
//! What is too old already counts for nothing before it is deleted: a duplicate that finds such a
//! row replaces it. So nothing but the size of the tables depends on the sweep.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::{Deleted, Retention, Step};
use crate::{
    Error,
    database::{Database, Kind, Mode},
    failure::text,
};

/// Between looks whether a sweep is due; it gives way to messages in between.
pub const LOOK: Duration = Duration::from_secs(1);
/// How many looks in a row it gives way at most.
const GIVE_WAY: u32 = 10;
/// How many scopes one process registers: routes are few, but nothing else would keep them so.
const SCOPES_MAX: usize = 10_000;

/// The part of one process in the sweep.
#[derive(Debug)]
pub struct Sweeper {
    database: Arc<Database>,
    retention: Retention,
    kind: Kind,
    mode: Mode,
    /// Those whose rows this process writes; true once their retention is registered.
    scopes: Mutex<BTreeMap<String, bool>>,
}

impl Sweeper {
    /// A part in the sweep of this database.
    #[must_use]
    pub fn new(database: Arc<Database>, kind: Kind, mode: Mode) -> Self {
        let retention = Retention::new(database.schema());
        Self { database, retention, kind, mode, scopes: Mutex::default() }
    }

    /// Rows of this scope are written here.
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
        let mut waited = 0;
        loop {
            if self.database.is_busy() && waited < GIVE_WAY {
                waited += 1;
                sleep(LOOK).await;
                continue;
            }
            waited = 0;
            let start = Instant::now();
            match self.once().await {
                // As long a pause as it took leaves the database to the messages half of the time.
                Ok(Some(Step { is_last: false, .. })) => sleep(start.elapsed()).await,
                Ok(Some(Step { is_last: true, .. }) | None) => sleep(LOOK).await,
                Err(error) => {
                    // The consumer says it, where that matters.
                    debug!("old rows are not deleted for now: {}", text(&error));
                    sleep(LOOK * GIVE_WAY).await;
                }
            }
        }
    }

    fn scopes(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        // No change of it can be left half done.
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keys go every day; what somebody might still have looked at is worth a line.
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
