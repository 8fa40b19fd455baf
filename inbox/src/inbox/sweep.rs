//! Deletes rows that are older than their retention, and records of messages that have ended.

use std::{sync::Arc, time::Duration};

use oncebox_claims::{
    database::Kind,
    retention::{Sweeper, tell_refusal},
};
use oncebox_schema::Driver;
use tokio::time::sleep;

use super::Inbox;
use crate::Error;

/// The pause between two deletions of records whose messages have ended.
const PAUSE: Duration = Duration::from_secs(60);

impl<D: Driver> Inbox<D> {
    /// Deletes a bounded number of rows that are older than their retention - keys, dead letters,
    /// claims of leased mode that were not taken up again - if a sweep is due and no other process
    /// is sweeping. Returns how many, or `None` when there is nothing to do. A
    /// [`Consumer`](crate::Consumer) does this by itself; a program without a consumer calls it now
    /// and then, until it returns `None`.
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
        self.sweep_records().await?;
        Ok(self.sweeper().once().await?.map(|step| step.deleted.rows()))
    }

    /// Sweeps until this future is dropped; a step that is under way then is rolled back.
    pub(crate) async fn sweep(&self) -> ! {
        let sweeper = self.sweeper();
        tokio::join!(sweeper.run(), self.sweep_all_records()).0
    }

    /// Deletes records of messages that have ended, again and again.
    async fn sweep_all_records(&self) -> ! {
        let mut is_refused = false;
        loop {
            is_refused = tell_refusal(self.sweep_records().await.as_ref().err(), is_refused);
            sleep(PAUSE).await;
        }
    }

    async fn sweep_records(&self) -> Result<(), Error> {
        let scope = &self.shared.settings.scope;
        self.records.sweep_snoozes(scope).await?;
        self.records.sweep_attempts(scope).await
    }

    fn sweeper(&self) -> Sweeper<D> {
        let sweeper = Sweeper::new(Arc::clone(&self.database), Kind::Consumer, self.shared.settings.mode);
        sweeper.add(&self.shared.settings.scope);
        sweeper
    }
}
