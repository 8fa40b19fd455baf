//! How effects fail: our knowledge of the outcome decides whether they may be called again.

use std::{error::Error as StdError, fmt, time::Duration};

use crate::{Error, failure::text};

type Source = Box<dyn StdError + Send + Sync>;

/// Why a call to a provider failed, and whether it may have had its effect. Any error becomes an
/// unknown outcome, by `?`: after a timeout or a lost answer, it is not known whether the provider
/// acted.
///
/// Its text is stored and logged: no secrets, please.
///
/// ```
/// use oncebox_claims::leased::CallError;
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

/// The error of a call, which says whether the call may have had its effect.
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
    /// This call definitely had no effect; it may be called again. An earlier call of unknown
    /// outcome stays unknown until it is reconciled, or, of an idempotent provider, until a call is
    /// answered.
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

/// A provider's answer about an effect whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// It happened, and this is its result.
    Happened(T),
    /// The provider knows nothing of it. Taken at its word once the call can no longer take effect,
    /// see [`Effect::settles_within`](super::Effect::settles_within).
    Absent,
    /// The provider cannot tell yet.
    Unknown,
}

/// Why an effect has no result. Pass it on with `?`; only [`EffectError::Rejected`] is often worth
/// a look.
///
/// From a handler it becomes: a dead letter (`Rejected`), a retry (`Failed`, `Unknown`, `Refused`),
/// or the end of the run without a trace (`LeaseLost`, `Inbox`).
#[derive(Debug)]
#[non_exhaustive]
pub enum EffectError {
    /// The provider said no for good, now or in an earlier run.
    Rejected {
        /// The step's name.
        effect: String,
        /// The provider's error.
        reason: String,
    },
    /// It did not happen.
    Failed {
        /// The step's name.
        effect: String,
        /// The error of the call.
        source: Source,
    },
    /// It may have happened; the next run reconciles it.
    Unknown {
        /// The step's name.
        effect: String,
        /// The error of the call, or of the reconciliation.
        source: Source,
    },
    /// The handler asked for something that cannot work.
    Refused {
        /// The step's name.
        effect: String,
        /// The mistake, and its remedy.
        reason: String,
    },
    /// Another process may have taken the claim over: nothing may be called or written any more.
    LeaseLost,
    /// PostgreSQL went away or refused.
    Inbox(Error),
}

impl fmt::Display for EffectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected { effect, reason } => write!(f, "effect \"{effect}\" was rejected: {reason}"),
            Self::Failed { effect, .. } => write!(f, "effect \"{effect}\" failed"),
            Self::Unknown { effect, .. } => write!(f, "the outcome of effect \"{effect}\" is unknown"),
            Self::Refused { effect, reason } => write!(f, "effect \"{effect}\": {reason}"),
            Self::LeaseLost => write!(f, "{}", Meaning::LeaseLost),
            Self::Inbox(error) => error.fmt(f),
        }
    }
}

/// An error that is boxed by `anyhow` cannot be told by its type any more, but its sources can: so
/// an effect error has its `Meaning` among them.
impl StdError for EffectError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Rejected { .. } => Some(&Meaning::Rejected),
            Self::LeaseLost => Some(&Meaning::LeaseLost),
            Self::Refused { .. } => None,
            Self::Failed { source, .. } | Self::Unknown { source, .. } => Some(&**source),
            Self::Inbox(error) => Some(error),
        }
    }
}

impl From<Error> for EffectError {
    fn from(error: Error) -> Self {
        Self::Inbox(error)
    }
}

/// The provider knows nothing of a call that may still be on its way.
#[derive(Debug, thiserror::Error)]
#[error("the provider knows nothing of it, but a call settles within {within:?}")]
pub(super) struct Settling {
    pub(super) within: Duration,
    /// How much of that is left.
    pub(super) left: Duration,
}

/// The meaning of a handler's error for its run, if the error is one of ours, or wraps one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The provider said no for good.
    Rejected,
    /// Another process may have taken the claim over.
    LeaseLost,
    /// PostgreSQL did not take a statement of our own.
    Unavailable,
    /// An earlier call may still arrive for this time: a wait, and no attempt.
    Settling(Duration),
    /// An effect that failed, or is unknown.
    Other,
}

/// Texts that those of their effect errors contain, so that none is told twice.
impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rejected => "was rejected",
            Self::LeaseLost => "the lease is lost; another process may have taken over",
            Self::Unavailable | Self::Settling(_) | Self::Other => "effect",
        })
    }
}

impl StdError for Meaning {}

impl Meaning {
    /// The meaning of this error, or of one of its sources.
    #[must_use]
    pub fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(meaning) = error.downcast_ref::<Self>() {
                return Some(*meaning);
            }
            if let Some(ours) = error.downcast_ref::<Error>() {
                let is_away = matches!(ours, Error::Unavailable(..));
                return Some(if is_away { Self::Unavailable } else { Self::Other });
            }
            match error.downcast_ref::<EffectError>() {
                Some(EffectError::Unknown { source, .. })
                    if let Some(early) = source.downcast_ref::<Settling>() =>
                {
                    return Some(Self::Settling(early.left));
                }
                // The error of the provider's client decides nothing here.
                Some(
                    EffectError::Failed { .. } | EffectError::Unknown { .. } | EffectError::Refused { .. },
                ) => return Some(Self::Other),
                Some(_) | None => next = error.source(),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A timeout is not a failure.
    #[test]
    fn an_arbitrary_error_says_nothing_about_the_effect() {
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
        let rejected = || EffectError::Rejected { effect: "charge".to_owned(), reason: "no".to_owned() };
        let away = || Error::Unavailable("begin an effect", "no connection".into());
        for (error, meaning) in [
            (EffectError::LeaseLost, Meaning::LeaseLost),
            (rejected(), Meaning::Rejected),
            (away().into(), Meaning::Unavailable),
            (EffectError::Failed { effect: "charge".to_owned(), source: away().into() }, Meaning::Other),
        ] {
            let wrapped = Wrapped(error);
            assert_eq!(Meaning::of(&wrapped), Some(meaning), "{wrapped:?}");
        }
        assert_eq!(Meaning::of(&std::io::Error::other("x")), None);
        assert_eq!(text(&rejected()), "effect \"charge\" was rejected: no");
        assert_eq!(text(&EffectError::LeaseLost), EffectError::LeaseLost.to_string());
    }
}
