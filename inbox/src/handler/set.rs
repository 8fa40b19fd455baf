//! Messages that a handler takes together.

use oncebox_schema::Transaction;

use crate::Context;

/// Messages whose keys are claimed in one transaction: two at least, 64 at most.
#[derive(Debug)]
pub struct Set<'a, M> {
    pub(crate) transaction: &'a Transaction,
    pub(crate) items: Vec<(Context<'a>, M)>,
}

impl<'a, M> Set<'a, M> {
    /// The transaction that all keys are claimed in, behind a savepoint. It is the inbox that
    /// commits it, or rolls it back.
    #[must_use]
    pub fn transaction(&self) -> &'a Transaction {
        self.transaction
    }

    /// The decoded messages.
    pub fn messages(&self) -> impl Iterator<Item = &M> {
        self.items.iter().map(|(_, message)| message)
    }

    /// Each message with what is known about it: its key, its tenant, its headers.
    pub fn iter(&self) -> impl Iterator<Item = (&Context<'a>, &M)> {
        self.items.iter().map(|(context, message)| (context, message))
    }

    /// How many there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a set has two messages at least")]
    pub fn len(&self) -> usize {
        self.items.len()
    }
}
