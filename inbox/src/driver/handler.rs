//! What a handler gets that writes through a driver.

use oncebox_schema::Key;
use serde::Serialize;

use crate::{Decode, HandlerError, Outcome, Received};

/// Handles the messages of one scope, in a transaction of a driver.
///
/// The handler writes through [`Context::transaction`] only; what it writes is committed together
/// with the key, or not at all. It may run more than once for a message, never with a lasting
/// effect more than once.
pub trait Handler: Send + Sync {
    /// The driver's transaction.
    type Transaction: Send;
    /// What it takes: whatever serde can deserialise, from JSON, or what says itself how it is
    /// [read](Decode).
    type Message: Decode + Send;
    /// What a duplicate is answered with; stored as JSON, at most 1 MiB. Use `()` when nobody asks
    /// for it.
    type Reply: Serialize + Send;

    /// Handles one message. An error rolls everything back; see [`HandlerError`] for what happens
    /// then: it goes by the SQLSTATE of the driver's error in its chain of sources.
    fn handle(
        &self,
        cx: &mut Context<'_, Self::Transaction>,
        message: Self::Message,
    ) -> impl Future<Output = Result<Outcome<Self::Reply>, HandlerError>> + Send;
}

/// What a handler knows about the message it handles, and the transaction it writes through.
#[derive(Debug)]
pub struct Context<'a, T> {
    pub(super) transaction: &'a mut T,
    pub(super) key: &'a Key,
    pub(super) tenant: &'a str,
    pub(super) received: &'a Received,
}

impl<'a, T> Context<'a, T> {
    /// The transaction that the key is claimed in. It is the inbox that commits it, or rolls it
    /// back.
    pub fn transaction(&mut self) -> &mut T {
        self.transaction
    }

    /// The message's key. Derive the keys of further messages from it: `cx.key().step("ship")`.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
    }

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
