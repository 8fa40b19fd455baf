//! Messages that a handler takes together.

use oncebox_schema::Transaction;

use crate::MessageContext;

/// Messages whose keys are claimed in one transaction: two at least, 64 at most.
#[derive(Debug)]
pub struct Set<'a, M> {
    pub(crate) transaction: &'a Transaction,
    pub(crate) items: Vec<(MessageContext<'a>, M)>,
}

impl<'a, M> Set<'a, M> {
    /// The transaction that all keys are claimed in, after a savepoint. The inbox commits it, or
    /// rolls it back.
    #[must_use]
    pub fn transaction(&self) -> &'a Transaction {
        self.transaction
    }

    /// The decoded messages.
    pub fn messages(&self) -> impl Iterator<Item = &M> {
        self.items.iter().map(|(_, message)| message)
    }

    /// Each message with its context: its key, its tenant, its headers.
    pub fn iter(&self) -> impl Iterator<Item = (&MessageContext<'a>, &M)> {
        self.items.iter().map(|(context, message)| (context, message))
    }

    /// How many there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a set has two messages at least")]
    pub fn len(&self) -> usize {
        self.items.len()
    }
}
