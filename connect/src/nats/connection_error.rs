//! Why there is no connection to NATS.

use async_nats::{ConnectError, ConnectErrorKind};

use crate::error::{RelayError, TlsProblem};

/// Why there is no connection; without secrets.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The secret cannot be read, or is none.
    #[error("{0}")]
    Login(String),
    /// The client could not connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl ConnectionError {
    /// The error as the caller sees it, with the address that was asked for.
    pub fn at(self, target: String) -> RelayError {
        let is_refused = self.is_refused_login();
        let tls = TlsProblem::find(&self);
        let source = self.into();
        match tls {
            _ if is_refused => RelayError::NatsRefused { target, source },
            Some(problem) => RelayError::NatsTls { target, problem: problem.of_nats(), source },
            None => RelayError::NatsUnreachable { target, source },
        }
    }

    /// The server is there, so waiting alone does not mend it.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        let is_tls = matches!(self, Self::Connect(error) if error.kind() == ConnectErrorKind::Tls);
        is_tls || TlsProblem::find(self).is_some() || self.is_refused_login()
    }

    /// Who we are, or how we prove it, is wrong.
    fn is_refused_login(&self) -> bool {
        match self {
            Self::Login(_) => true,
            Self::Connect(error) => matches!(
                error.kind(),
                ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication
            ),
        }
    }
}
