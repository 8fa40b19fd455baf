//! What the runner carries with a message from its arrival to its verdict.

use oncebox_claims::{identity::Identity, transactional::Deferred};

use crate::inbox::IsolationPermit;

/// A delivery whose message was decoded, and whose key shall be claimed.
pub(super) struct Attempt<T, M> {
    pub(super) delivery: Delivery<T>,
    pub(super) message: M,
}

/// A message that was received, and what the runner has to remember until it is settled.
pub(super) struct Delivery<T> {
    pub(super) received: T,
    pub(super) identity: Identity,
    /// Counts from 1; more after a conflict with another transaction.
    pub(super) round: u64,
    /// The writes that the handler left to the commit.
    pub(super) deferred: Deferred,
    /// Held where the message may have ended a process: no other one of those runs meanwhile.
    pub(super) _isolation: Option<IsolationPermit>,
}

impl<T> Delivery<T> {
    pub(super) fn new(received: T, identity: Identity, round: u64) -> Self {
        Self { received, identity, round, deferred: Deferred::default(), _isolation: None }
    }
}
