//! How requests ended, counted since the layer was built.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::problem::Problem;
use crate::{LeaseCounts, counts};

/// How requests ended, counted since the layer was built; see [`IdempotencyLayer::counts`](super::IdempotencyLayer::counts).
/// Requests that pass without a key are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// The handler ran and its response is committed; rejections included.
    pub handled: u64,
    /// Of `handled`: the response was a 4xx.
    pub rejected: u64,
    /// Answered from the stored response.
    pub replayed: u64,
    /// The handler ran and its response was not stored: 5xx, 408, 409, 425, 429.
    pub released: u64,
    /// Answered with 409: another request with the key was worked on for too long.
    pub in_flight: u64,
    /// Answered with 422: the key was used before for another request.
    pub mismatched: u64,
    /// Refused for what they were: without key or tenant, unreadable, too large.
    pub refused: u64,
    /// Of `refused`: without a key.
    pub key_missing: u64,
    /// Answered with 503: PostgreSQL was away, or there were too many requests, or the server was shutting down.
    pub unavailable: u64,
    /// What happened to leases, and to the effects under them.
    pub leases: LeaseCounts,
    /// The handler panicked, took too long, kept its claim or ended the transaction, or the layer is set up wrongly.
    pub failed: u64,
}

/// What counts as for an inbox is counted with it.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Shared with the leases.
    pub(crate) inbox: Arc<counts::Counters>,
    pub(super) released: AtomicU64,
    key_missing: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64) {
        counts::Counters::add(counter);
    }

    /// Counts an answer of the layer's own.
    pub(super) fn refused(&self, problem: Problem) {
        if matches!(problem, Problem::KeyMissing) {
            Self::add(&self.key_missing);
        }
        Self::add(match problem {
            Problem::KeyMissing
            | Problem::KeyMalformed
            | Problem::TenantMissing
            | Problem::MethodUnknown
            | Problem::BodyTooLarge(_)
            | Problem::BodyUnreadable
            | Problem::BodyTooSlow => &self.refused,
            Problem::KeyReused => &self.inbox.mismatched,
            Problem::InFlight => &self.inbox.in_flight,
            Problem::NotKept(_) => &self.inbox.replayed,
            Problem::Overloaded | Problem::Draining | Problem::Unavailable => &self.unavailable,
            Problem::HandlerTooSlow | Problem::HandlerFailed | Problem::SetUpWrongly => &self.failed,
        });
    }

    pub(crate) fn snapshot(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let inbox = self.inbox.snapshot();
        Counts {
            handled: inbox.handled,
            rejected: inbox.rejected,
            replayed: inbox.replayed,
            released: read(&self.released),
            in_flight: inbox.in_flight,
            mismatched: inbox.mismatched,
            refused: read(&self.refused),
            key_missing: read(&self.key_missing),
            unavailable: read(&self.unavailable),
            leases: inbox.leases,
            failed: read(&self.failed),
        }
    }
}
