//! How an order ended.

use std::time::SystemTime;

/// The end of an order, or of its dry run: the number of things of each fate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// Changed.
    pub done: u64,
    /// Left alone: due already, or at work.
    pub busy: u64,
    /// Not in their stream any more, which will not deliver them again. A burial forgets them.
    pub gone: u64,
    /// They came from no stream, so they cannot be fetched.
    pub elsewhere: u64,
    /// Left alone: their large payload is not in its bucket, and without it copies of the key look
    /// like other messages.
    pub incomplete: u64,
    /// Left out: asked for under the same name before.
    pub before: u64,
    /// Left out: their replay is still to be sent.
    pub pending: u64,
    /// Dead letters that were taken out although an edit had come in their place: no inbox handles
    /// them.
    pub edited: u64,
    /// Losses of a stream whose messages are sent again.
    pub losses: u64,
    /// Messages of these losses that are not sent again, and are no part of a loss any more.
    pub given_up: u64,
    /// Of each lane that is sent again: from which milestone on.
    pub(crate) milestones: Vec<Option<SystemTime>>,
    /// Dead letters of participants, of this database, that were discarded: another attempt has a
    /// key of its own.
    pub letters: u64,
    /// Commands of which a new attempt was asked for, and whose dead letter is not here, or cannot
    /// be told from others with its key.
    pub commands_elsewhere: Vec<String>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    /// The canary that was begun.
    pub canary: Option<i64>,
    /// The new key of an edited message.
    pub key: Option<String>,
}

impl Done {
    /// Of any fate that counts for the limit of an order.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.done + self.busy + self.gone + self.elsewhere + self.incomplete
    }

    /// Whether nothing was selected.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.all() + self.before + self.losses == 0
    }

    pub(super) fn changed(&self) -> u64 {
        self.done + self.gone
    }
}
