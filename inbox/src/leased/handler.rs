//! The handler with effects outside of the database: its trait, and its context.

use std::ops::Deref;

use serde::Serialize;

use crate::{Answer, Context, Decode, HandlerError, Lease, Outcome, Received};

/// Handles the messages of one scope with effects outside the database, under a lease.
///
/// It may run more than once for a message: each effect is called through [`Lease::effect`], which
/// records its result, so that a later run goes on after the last effect that is settled. The code
/// between the effects must depend only on the message and on the results of effects.
pub trait LeasedHandler: Send + Sync {
    /// The message that it takes: a type that serde can deserialise from JSON, or one that
    /// implements [`Decode`].
    type Message: Decode + Send;
    /// The reply that answers duplicates; stored as JSON, at most 1 MiB.
    type Reply: Serialize + Send + Sync;

    /// Handles one message. No transaction and no connection is open meanwhile. An error,
    /// [`Outcome::Retry`] and [`Outcome::Dead`] undo no effect, and remembered effects stay
    /// remembered; see [`EffectError`](crate::EffectError) for errors of effects.
    ///
    /// It must not block its thread: the lease is renewed on the same one.
    fn handle(
        &self,
        cx: &LeasedContext<'_>,
        message: Self::Message,
    ) -> impl Future<Output = Result<Outcome<Self::Reply>, HandlerError>> + Send;

    /// Writes to this database, in the transaction that ends the claim: once per key, after
    /// [`Outcome::Done`] or [`Outcome::Reject`]. May run again after a conflict, or in a later run.
    /// Writes nothing by default.
    fn finish(
        &self,
        _cx: Context<'_>,
        _answer: &Answer<Self::Reply>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        std::future::ready(Ok(()))
    }
}

/// A handler's view of its message. It derefs to the [`Lease`].
#[derive(Debug)]
pub struct LeasedContext<'a> {
    pub(super) lease: &'a Lease,
    pub(super) tenant: &'a str,
    pub(super) received: &'a Received,
}

impl<'a> LeasedContext<'a> {
    /// The tenant; empty with [`Builder::single_tenant`](crate::Builder::single_tenant).
    #[must_use]
    pub fn tenant(&self) -> &'a str {
        self.tenant
    }

    /// The message as it arrived: subject, headers, time, delivery count, raw payload.
    #[must_use]
    pub fn message(&self) -> &'a Received {
        self.received
    }
}

impl Deref for LeasedContext<'_> {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        self.lease
    }
}
