//! What a consumer needs of an inbox beyond running messages.

use std::{sync::atomic::Ordering, time::Duration};

use tracing::{info, warn};

use super::Inbox;
use crate::{
    Error, Received,
    counts::Counters,
    failure::{bounded, text},
    store::{Lead, Store, failed},
};

impl Inbox {
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Tries to become the one process that consumes.
    pub(crate) async fn lead(&self, stream: &str, durable: &str) -> Result<Option<Lead>, Error> {
        self.store.lead(&self.settings.scope, stream, durable).await
    }

    /// The pause before the next attempt, after this many.
    pub(crate) fn pause(&self, attempts: u64) -> Duration {
        self.settings.limits.backoff.after(attempts)
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

    /// Records a message as a dead letter, past the delivery limit, when even its key cannot be dealt with.
    pub(crate) async fn give_up(&self, received: &Received, reason: &str) -> Result<bool, Error> {
        if received.delivery_count() < self.settings.limits.deliveries_max {
            return Ok(false);
        }
        let scope = &self.settings.scope;
        let reason = bounded(reason);
        let mut object = self.store.connect().await?;
        let transaction = self.store.begin(&mut object).await?;
        self.store.dead_letter(&transaction, scope, ("", None), received, &reason).await?;
        self.store.commit(&transaction).await.map_err(failed("commit a dead letter"))?;
        Counters::add(&self.counters.dead);
        warn!(scope, subject = received.subject(), "dead letter: {reason}");
        Ok(true)
    }
}
