//! Why a page is not shown, or nothing was done.

use axum::http::StatusCode;
use oncebox_connect::error::{RelayError, error_chain};

/// A variant for each status of HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The request is wrong.
    Bad(String),
    /// The person, or this console, may not.
    Forbidden(String),
    /// It is not there.
    NotFound(String),
    /// Another action is under way, or nothing is selected.
    Conflict(String),
    /// A server is away, or slow.
    Away(String),
}

impl Problem {
    pub(crate) fn of(database: &str, error: &RelayError) -> Self {
        Self::told(error, format!("{database}: {}", error_chain(error)))
    }

    /// The same, in these words.
    pub(crate) fn told(error: &RelayError, text: String) -> Self {
        match error {
            RelayError::Pause(_) | RelayError::Edit(_) | RelayError::Refused(_) => Self::Conflict(text),
            // It names the role. A console beside a relay has the relay's login.
            RelayError::Denied(_) => Self::Forbidden(text),
            _ => Self::Away(text),
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Bad(_) => StatusCode::BAD_REQUEST,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::Away(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) fn text(&self) -> &str {
        let (Self::Bad(text)
        | Self::Forbidden(text)
        | Self::NotFound(text)
        | Self::Conflict(text)
        | Self::Away(text)) = self;
        text
    }
}
