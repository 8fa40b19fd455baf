//! What a consumer needs of an inbox beyond running messages.

use std::sync::atomic::Ordering;

use tracing::{info, warn};

use super::Inbox;
use crate::{
    Error,
    failure::text,
    store::{Lead, Store},
};

impl Inbox {
    pub(crate) fn store(&self) -> &Store {
        &self.store
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
