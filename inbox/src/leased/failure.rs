//! How effects fail: what is known of them afterwards decides whether they may be called again.

use std::{error::Error as StdError, fmt};

use crate::{Error, failure::text};

type Source = Box<dyn StdError + Send + Sync>;

/// Why a call to a provider failed, and so what is known of its effect. Any error becomes an unknown outcome, by `?`: a
/// timeout or a lost answer says nothing about what the provider did.
///
/// Its text is stored and logged: no secrets, please.
///
/// ```
/// use oncebox_inbox::CallError;
///
/// fn judge(status: u16) -> Result<(), CallError> {
///     match status {
///         200 => Ok(()),
///         // Documented by this provider: refused before anything was done.
///         402 => Err(CallError::rejected("card declined")),
///         429 => Err(CallError::failed("too many requests")),
///         other => Err(CallError::unknown(format!("status {other}"))),
///     }
/// }
/// assert!(judge(200).is_ok());
/// ```
pub struct CallError {
    pub(super) known: Known,
    pub(super) source: Source,
}

/// What a failed call says about its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It did not happen.
    Failed,
    /// It will never happen.
    Rejected,
    /// It may have happened.
    Unknown,
}

impl CallError {
    /// The effect definitely did not happen; it may be called again.
    pub fn failed(error: impl Into<Source>) -> Self {
        Self { known: Known::Failed, source: error.into() }
    }

    /// The provider said no for good; remembered like a result.
    pub fn rejected(reason: impl Into<String>) -> Self {
        Self { known: Known::Rejected, source: reason.into().into() }
    }

    /// The effect may have happened: it is reconciled before it is called again.
    pub fn unknown(error: impl Into<Source>) -> Self {
        Self { known: Known::Unknown, source: error.into() }
    }
}

impl<E: Into<Source>> From<E> for CallError {
    fn from(error: E) -> Self {
        Self::unknown(error)
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallError").field("known", &self.known).field("source", &self.source).finish()
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&*self.source))
    }
}

/// What a provider says about an effect whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// It happened, and this is its result.
    Happened(T),
    /// The provider knows nothing of it. Taken at its word once the call can no longer take effect, see
    /// [`Effect::settles_within`](crate::Effect::settles_within).
    Absent,
    /// The provider cannot tell yet.
    Unknown,
}

/// Why an effect has no result. Pass it on with `?`; only [`EffectError::Rejected`] is often worth a look.
///
/// From a handler it becomes: a dead letter (`Rejected`), a retry (`Failed`, `Unknown`, `Refused`), or the end of the run
/// without a trace (`LeaseLost`, `Inbox`).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EffectError {
    /// The provider said no for good, now or in an earlier run.
    #[error("effect \"{effect}\" was rejected: {reason}")]
    Rejected {
        /// The step's name.
        effect: String,
        /// What the provider said.
        reason: String,
    },
    /// It did not happen.
    #[error("effect \"{effect}\" failed")]
    Failed {
        /// The step's name.
        effect: String,
        /// What the call said.
        source: Source,
    },
    /// It may have happened; the next run reconciles it.
    #[error("the outcome of effect \"{effect}\" is unknown")]
    Unknown {
        /// The step's name.
        effect: String,
        /// What the call, or the reconciliation, said.
        source: Source,
    },
    /// The handler asked for something that cannot work.
    #[error("effect \"{effect}\": {reason}")]
    Refused {
        /// The step's name.
        effect: String,
        /// What, and what to do.
        reason: String,
    },
    /// Another process may have taken the claim over: nothing may be called or written any more.
    #[error("the lease is lost; another process may have taken over")]
    LeaseLost,
    /// PostgreSQL went away or refused.
    #[error(transparent)]
    Inbox(#[from] Error),
}

impl EffectError {
    /// The effect error that a handler's error is, or wraps.
    pub(super) fn within<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X6: a timeout is not a failure.
    #[test]
    fn an_arbitrary_error_says_nothing_about_the_effect_x6() {
        let timeout = std::io::Error::from(std::io::ErrorKind::TimedOut);
        assert_eq!(CallError::from(timeout).known, Known::Unknown);
        assert_eq!(CallError::from("connection reset").known, Known::Unknown);
        assert_eq!(CallError::failed("not sent").known, Known::Failed);
    }

    #[test]
    fn an_effect_error_is_found_where_it_is_wrapped() {
        #[derive(Debug, thiserror::Error)]
        #[error("charge")]
        struct Wrapped(#[source] EffectError);
        assert!(matches!(
            EffectError::within(&Wrapped(EffectError::LeaseLost)),
            Some(EffectError::LeaseLost)
        ));
        assert!(EffectError::within(&std::io::Error::other("x")).is_none());
    }
}
