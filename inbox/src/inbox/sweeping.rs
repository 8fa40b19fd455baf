//! Deleting the keys that are older than their retention: `run` around `sweep_once`.
//!
//! All processes of a database share one sweep through the table: whoever locks its row goes a step on, and whoever comes next
//! goes on there. A step is a transaction of its own over a fixed number of blocks. It deletes the keys of every consumer
//! that has registered a retention, whichever process that is; those of a consumer that has not are kept for ever.
//!
//! What is too old already counts for nothing before it is deleted: a duplicate that finds such a row replaces it. So
//! nothing but the size of the table depends on the sweep.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::debug;

use super::Inbox;
use crate::{Error, failure::text, store::Step};

/// Between looks whether a sweep is due; it gives way to messages in between.
const LOOK: Duration = Duration::from_secs(1);
/// How many looks in a row it gives way at most.
const GIVE_WAY: u32 = 10;
/// Between looks for what is parked no more.
const PARKS: Duration = Duration::from_secs(60);

impl Inbox {
    /// Deletes a bounded number of keys that are older than their retention, if a sweep of the inbox is due and no other
    /// process is at it; returns how many, or `None` when there is nothing to do. [`Consumer`](crate::Consumer) does this
    /// by itself; whoever has no consumer calls it now and then, until it returns `None`.
    ///
    /// ```
    /// # async fn example(inbox: &oncebox_inbox::Inbox) -> Result<(), oncebox_inbox::Error> {
    /// while inbox.sweep_once().await?.is_some() {}
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn sweep_once(&self) -> Result<Option<u64>, Error> {
        self.store.register(&self.settings.scope).await?;
        self.store.sweep_parks(&self.settings.scope).await?;
        Ok(self.store.sweep().await?.map(|step| step.deleted))
    }

    /// Sweeps until it is dropped; then a step under way is rolled back.
    pub(crate) async fn sweep(&self) -> ! {
        let scope = &self.settings.scope;
        let (mut is_registered, mut waited) = (false, 0);
        let mut parks_swept: Option<Instant> = None;
        loop {
            if self.store.is_busy() && waited < GIVE_WAY {
                waited += 1;
                sleep(LOOK).await;
                continue;
            }
            waited = 0;
            let start = Instant::now();
            let done = async {
                if !is_registered {
                    self.store.register(scope).await?;
                    is_registered = true;
                }
                if parks_swept.is_none_or(|at| at.elapsed() >= PARKS) {
                    self.store.sweep_parks(scope).await?;
                    parks_swept = Some(Instant::now());
                }
                self.store.sweep().await
            };
            match done.await {
                // As long a pause as it took leaves the database to the messages half of the time.
                Ok(Some(Step { is_last: false, .. })) => sleep(start.elapsed()).await,
                Ok(Some(Step { is_last: true, .. }) | None) => sleep(LOOK).await,
                Err(error) => {
                    // The consumer says it, where that matters.
                    debug!(scope, "old keys are not deleted for now: {}", text(&error));
                    sleep(LOOK * GIVE_WAY).await;
                }
            }
        }
    }
}
