//! The answer of a handler's first run, as it is stored.

use oncebox_claims::stored::{Status, Stored};
use serde::de::DeserializeOwned;

use super::Answer;
use crate::Error;

/// The answer of a handler's first run. It is decoded only on request, so that a duplicate is
/// answered even if the reply type has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    key: Box<str>,
    is_rejected: bool,
    reply: Option<Box<[u8]>>,
}

impl StoredAnswer {
    pub(crate) fn new(key: &str, stored: Stored) -> Self {
        let is_rejected = stored.status == Status::Rejected;
        Self { key: key.into(), is_rejected, reply: stored.outcome.map(Vec::into_boxed_slice) }
    }

    /// Whether the handler rejected the message.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        self.is_rejected
    }

    /// The answer, with the reply as the handler's reply type.
    ///
    /// ```
    /// use oncebox_inbox::{Answer, Error, Verdict};
    ///
    /// fn order_number(verdict: &Verdict<u64>) -> Result<Option<u64>, Error> {
    ///     Ok(match verdict {
    ///         Verdict::Handled(Answer::Done(number)) => Some(*number),
    ///         Verdict::Replayed(stored) => match stored.decode()? {
    ///             Answer::Done(number) => Some(number),
    ///             _ => None,
    ///         },
    ///         _ => None,
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::StoredReply`]: the reply was stored by a handler with another reply type.
    pub fn decode<R: DeserializeOwned>(&self) -> Result<Answer<R>, Error> {
        let reply = serde_json::from_slice(self.reply.as_deref().unwrap_or(b"null"))
            .map_err(|source| Error::StoredReply { key: self.key.to_string(), source })?;
        Ok(if self.is_rejected { Answer::Rejected(reply) } else { Answer::Done(reply) })
    }
}
