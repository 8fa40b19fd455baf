//! Where the messages of [`Inbox::run_each`](crate::Inbox::run_each) come from.

use std::ops::Deref;

use crate::{Error, Received, Verdict};

/// A source of messages that the inbox runs one after another; it hears how each ended.
///
/// Neither method may block: a transaction can be open meanwhile.
pub trait Source<R>: Send {
    /// A message, and anything that identifies it to its source; `Arc<Received>` and `&Received`
    /// will do.
    type Message: Deref<Target = Received> + Send + Sync;

    /// The next message, if one waits; with `None` the work is over.
    ///
    /// Called before the last message is committed, so that both take one round trip. A message
    /// that must not be begun before the last one is committed must not be given yet.
    fn next(&mut self) -> Option<Self::Message>;

    /// How a message ended; called once for each, in the order in which they ended. An error is one
    /// of [`Inbox::run`](crate::Inbox::run)'s: give the message out again, later.
    fn ended(&mut self, message: Self::Message, result: Result<Verdict<R>, Error>);
}

/// A single message.
#[derive(Debug)]
pub(crate) struct OneMessage<'a, R> {
    pub(crate) received: Option<&'a Received>,
    pub(crate) result: Option<Result<Verdict<R>, Error>>,
}

impl<'a, R: Send> Source<R> for OneMessage<'a, R> {
    type Message = &'a Received;

    fn next(&mut self) -> Option<&'a Received> {
        self.received.take()
    }

    fn ended(&mut self, _: &'a Received, result: Result<Verdict<R>, Error>) {
        self.result = Some(result);
    }
}
