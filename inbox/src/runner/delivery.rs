//! A message as it is worked on.

use oncebox_claims::{identity::Identity, transactional::Deferred};

use crate::inbox::IsolationPermit;

/// A message whose key is worth a claim.
pub(super) struct Attempt<T, M> {
    pub(super) delivery: Delivery<T>,
    pub(super) message: M,
}

/// A message as it is worked on.
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
