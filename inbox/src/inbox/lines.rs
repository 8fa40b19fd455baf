//! Lines that are stopped: a dead letter holds back later messages of its ordering key.
//!
//! With strict order, a message whose ordering key has a dead letter does not run: it waits in the
//! database, where the consumer finds it when the dead letter was retried or discarded. PostgreSQL
//! decides that, see `0023_lines.sql`; a process only remembers whether any line of its scope may
//! be stopped, and asks nothing otherwise. It never misses one: it goes through the messages of an
//! ordering key one at a time, so it has seen the one die that stops the line, or that one had died
//! before the process found its place in the stream.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use oncebox_claims::{identity::Identity, records::Place};
use oncebox_schema::Driver;
use tracing::{debug, warn};

use super::Inbox;
use crate::{Error, Received, Verdict};

/// The knowledge of this process about the stopped lines of its scope.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Whether messages wait for a dead letter.
    keeps: AtomicBool,
    /// How many dead letters were seen.
    seen: AtomicU64,
    /// How many had been seen when no line was stopped.
    free: AtomicU64,
    /// Whether it was said that a line is full.
    is_full: AtomicBool,
}

impl Lines {
    pub(crate) fn set_keeps(&self, keeps: bool) {
        self.keeps.store(keeps, Relaxed);
    }

    /// Whether messages wait for a dead letter.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps.load(Relaxed)
    }

    /// A message is a dead letter: that is committed.
    pub(crate) fn note_dead(&self) {
        self.seen.fetch_add(1, Relaxed);
    }

    /// How many dead letters were seen, if a line may be stopped.
    pub(crate) fn stopped(&self) -> Option<u64> {
        let seen = self.seen.load(Relaxed);
        (seen > self.free.load(Relaxed)).then_some(seen)
    }

    /// No line was stopped when `seen` dead letters had been seen.
    pub(crate) fn note_free(&self, seen: u64) {
        self.free.fetch_max(seen, Relaxed);
        self.is_full.store(false, Relaxed);
    }
}

impl<D: Driver> Inbox<D> {
    /// Whether a message must ask for its place before its claim.
    pub(crate) fn may_have_to_wait(&self, received: &Received) -> bool {
        let lines = &self.shared.lines;
        lines.keeps()
            && lines.stopped().is_some()
            && received.in_line.is_none()
            && received.ordering_key().is_some()
            && !self.shared.settings.is_shadow
    }

    /// Has a message wait until the dead letter of its ordering key is retried or discarded; `None`
    /// when there is none, and it is to be claimed.
    pub(crate) async fn wait_in_line<R>(
        &self,
        identity: &Identity,
        received: &Received,
    ) -> Result<Option<Verdict<R>>, Error> {
        if !self.may_have_to_wait(received) {
            return Ok(None);
        }
        let (scope, key) = (self.scope(), identity.key.as_str());
        let ordering_key = received.ordering_key();
        Ok(match self.records.wait_in_line(scope, identity, received.record()).await? {
            Place::Free => None,
            Place::Behind => {
                debug!(
                    scope,
                    key, ordering_key, "the message waits behind a dead letter of its ordering key"
                );
                Some(Verdict::InLine)
            }
            Place::Full => {
                if !self.shared.lines.is_full.swap(true, Relaxed) {
                    warn!(
                        scope,
                        key,
                        ordering_key,
                        "as many messages as may wait behind a dead letter of this ordering key: the next ones \
                         wait in the stream, and hold up the consumer when it holds no others: retry or \
                         discard the dead letter (logged once)"
                    );
                }
                Some(Verdict::InFlight)
            }
        })
    }
}
