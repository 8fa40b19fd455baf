//! How requests ended, counted since the layer was built.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use oncebox_claims::metrics::{ClaimCounters, LeaseCounts, add};

use crate::problem::Problem;

/// How requests ended, counted since the layer was built; see
/// [`IdempotencyLayer::counts`](crate::IdempotencyLayer::counts). Requests that pass without a key
/// are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// The handler ran and its response is committed; rejections included.
    pub handled: u64,
    /// How many of `handled` were answered with a 4xx.
    pub rejected: u64,
    /// Answered from the stored response.
    pub replayed: u64,
    /// The handler ran and its response was not stored: 5xx, 408, 409, 425, 429.
    pub released: u64,
    /// Answered with 409: another request with the key was worked on for too long.
    pub in_flight: u64,
    /// Answered with 422: the key was used before for another request.
    pub mismatched: u64,
    /// Refused before the handler ran: without key or tenant, unreadable, too large.
    pub refused: u64,
    /// How many of `refused` had no key.
    pub key_missing: u64,
    /// Answered with 503: PostgreSQL was away, or there were too many requests, or the server was
    /// shutting down.
    pub unavailable: u64,
    /// The counts of leases, and of the effects under them.
    pub leases: LeaseCounts,
    /// The handler panicked, took too long, kept its claim or ended the transaction, or the layer
    /// is set up wrongly.
    pub failed: u64,
}

/// How requests ended, while it is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Shared with the leases.
    pub(crate) claims: Arc<ClaimCounters>,
    pub(crate) handled: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) replayed: AtomicU64,
    pub(crate) released: AtomicU64,
    in_flight: AtomicU64,
    mismatched: AtomicU64,
    key_missing: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    /// Counts an answer of the layer's own.
    pub(crate) fn refused(&self, problem: Problem) {
        if matches!(problem, Problem::KeyMissing) {
            add(&self.key_missing);
        }
        add(match problem {
            Problem::KeyMissing
            | Problem::KeyMalformed
            | Problem::TenantMissing
            | Problem::MethodUnknown
            | Problem::BodyTooLarge(_)
            | Problem::BodyUnreadable
            | Problem::BodyTooSlow => &self.refused,
            Problem::KeyReused => &self.mismatched,
            Problem::InFlight => &self.in_flight,
            Problem::NotKept(_) => &self.replayed,
            Problem::Overloaded | Problem::Draining | Problem::Unavailable => &self.unavailable,
            Problem::HandlerTooSlow | Problem::HandlerFailed | Problem::SetUpWrongly => &self.failed,
        });
    }

    pub(crate) fn snapshot(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            handled: read(&self.handled),
            rejected: read(&self.rejected),
            replayed: read(&self.replayed),
            released: read(&self.released),
            in_flight: read(&self.in_flight),
            mismatched: read(&self.mismatched),
            refused: read(&self.refused),
            key_missing: read(&self.key_missing),
            unavailable: read(&self.unavailable),
            leases: self.claims.leases.snapshot(),
            failed: read(&self.failed),
        }
    }
}
