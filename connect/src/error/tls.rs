//! Whether TLS keeps us from a server, found in the sources of an error.

use std::{error::Error, io};

/// Why there is no TLS connection to a server that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsProblem {
    /// The server speaks, but not TLS.
    NotSpoken,
    /// A certificate is missing or wrong, or the two share no version.
    Failed,
}

impl TlsProblem {
    /// `None` when TLS is not the problem.
    pub(crate) fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(problem) = Self::of(error) {
                return Some(problem);
            }
            next = error.source();
        }
        None
    }

    fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        // An error of input and output hides the one inside from `source`.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let tls = match inner {
            Some(inner) => inner.downcast_ref::<rustls::Error>(),
            None => error.downcast_ref::<rustls::Error>(),
        };
        match tls {
            Some(rustls::Error::InvalidMessage(_)) => Some(Self::NotSpoken),
            Some(_) => Some(Self::Failed),
            // The driver of PostgreSQL has no type for it.
            None => (error.to_string() == "server does not support TLS").then_some(Self::NotSpoken),
        }
    }

    /// The problem with PostgreSQL, and the remedy.
    pub(super) fn of_postgres(self) -> &'static str {
        match self {
            Self::NotSpoken => {
                "does not speak TLS, which sslmode or a CA file demands; set ssl = on in that server; or, in a network that \
                 you trust, connect without TLS: sslmode=disable in the database URL, and no database-ca-file"
            }
            Self::Failed => {
                "TLS with it fails; check the option database-ca-file, whether its certificate is for the host of the database \
                 URL, and the certificate of this client"
            }
        }
    }

    /// The problem with NATS, and the remedy.
    pub(crate) fn of_nats(self) -> &'static str {
        match self {
            Self::NotSpoken => {
                "does not begin with TLS, which tls:// or an option demands; give the server a tls block (with \
                 handshake_first for nats-tls = first); or, in a network that you trust, connect without TLS: nats://, and \
                 neither of the options nats-tls and nats-ca-file"
            }
            Self::Failed => {
                "TLS with it fails; check the option nats-ca-file, whether its certificate is for the host of the NATS URL, and \
                 the certificate of this client"
            }
        }
    }
}
