//! The runner's notes on a message, from its arrival to its verdict.

use std::ops::Deref;

use oncebox_claims::{database::TokioPostgres, identity::Identity, transactional::Deferred};
use oncebox_schema::Driver;

use crate::{Received, inbox::IsolationPermit};

/// A delivery whose message was decoded, and whose key shall be claimed.
pub(super) struct Attempt<T, M, D: Driver = TokioPostgres> {
    pub(super) delivery: Delivery<T, D>,
    pub(super) message: M,
}

/// A message that was received, and the runner's notes until it is settled.
pub(super) struct Delivery<T, D: Driver = TokioPostgres> {
    pub(super) received: T,
    pub(super) identity: Identity,
    /// Counts from 1; more after a conflict with another transaction.
    pub(super) round: u64,
    /// The writes that the handler left to the commit.
    pub(super) deferred: Deferred<D>,
    /// Held where the message may have ended a process: no other one of those runs meanwhile.
    pub(super) _isolation: Option<IsolationPermit>,
}

impl<T: Deref<Target = Received>, D: Driver> Delivery<T, D> {
    /// The identity of a message of which attempts are recorded. Such a message is the first of its
    /// pipeline.
    pub(super) fn recorded(&self) -> Option<Identity> {
        self.received.begun.is_set().then(|| self.identity.clone())
    }
}

impl<T, D: Driver> Delivery<T, D> {
    pub(super) fn new(received: T, identity: Identity, round: u64) -> Self {
        Self { received, identity, round, deferred: Deferred::default(), _isolation: None }
    }
}
