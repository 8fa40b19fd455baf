//! Running one suspicious message at a time.

use std::{sync::Arc, time::Duration};

use oncebox_schema::Driver;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::Inbox;

/// How long a worker waits for its turn before it takes other messages.
const PATIENCE: Duration = Duration::from_millis(250);

/// Messages that may have ended a process run one at a time, so that it shows which of them does.
#[derive(Clone, Debug)]
pub(super) struct Isolation(Arc<Semaphore>);

impl Default for Isolation {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

/// Held while such a message runs.
pub(crate) type IsolationPermit = OwnedSemaphorePermit;

impl<D: Driver> Inbox<D> {
    /// The right to run a suspicious message; `None` when another one runs for too long.
    pub(crate) async fn isolate(&self) -> Option<IsolationPermit> {
        timeout(PATIENCE, Arc::clone(&self.isolation.0).acquire_owned()).await.ok()?.ok()
    }
}
