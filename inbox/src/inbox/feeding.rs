//! What a consumer, or a handler's context, needs of an inbox beyond running messages.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;
use tracing::{info, warn};

use super::Inbox;
use crate::{
    Error,
    failure::text,
    lock::Waits,
    store::{Lead, Store},
};

impl Inbox {
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// What a handler's entity locks depend on, when it begins now and may take so long.
    pub(crate) fn waits(&self, limit: Duration) -> Waits<'_> {
        let lock_timeout = self.settings.limits.lock_timeout;
        Waits { schema: &self.settings.schema, lock_timeout, until: Instant::now() + limit }
    }

    /// Tries to become the one process that consumes.
    pub(crate) async fn lead(&self, stream: &str, durable: &str) -> Result<Option<Lead>, Error> {
        self.store.lead(&self.settings.scope, stream, durable).await
    }

    /// Logs PostgreSQL's going and coming once.
    pub(crate) fn note_availability(&self, error: Option<&Error>) {
        let scope = &self.settings.scope;
        match error {
            Some(error @ Error::Unavailable(..)) => {
                if !self.away.swap(true, Ordering::Relaxed) {
                    warn!(scope, "messages wait: {}", text(error));
                }
            }
            _ => {
                if self.away.swap(false, Ordering::Relaxed) {
                    info!(scope, "PostgreSQL is back");
                }
            }
        }
    }
}
