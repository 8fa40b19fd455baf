//! Why something failed: what each caller can react to, with everything below it as its source.

use std::{error::Error, net::SocketAddr, time::Duration};

use deadpool_postgres::PoolError;
use oncebox_schema::VersionError;
pub use oncebox_schema::error_chain;
use tokio_postgres::error::SqlState;

/// Why a relay did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// PostgreSQL cannot be reached.
    #[error("PostgreSQL at {target} cannot be reached")]
    PostgresUnreachable {
        /// Hosts and database.
        target: String,
        /// The error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// PostgreSQL answers, and does not let us in: the user, the password, the database, or
    /// pg_hba.conf.
    #[error("PostgreSQL at {target} refuses the login")]
    PostgresRefused {
        /// Hosts and database.
        target: String,
        /// PostgreSQL's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// NATS cannot be reached.
    #[error("NATS at {target} cannot be reached")]
    NatsUnreachable {
        /// The URL without credentials.
        target: String,
        /// The error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// NATS answers, and does not let us in.
    #[error("NATS at {target} refuses the login")]
    NatsRefused {
        /// The URL without credentials.
        target: String,
        /// The error of NATS.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A stream is not as the configuration declares it.
    #[error("{0}")]
    Stream(String),
    /// The database has another schema version.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A statement failed.
    #[error("PostgreSQL failed a pass")]
    Postgres(#[source] PostgresError),
    /// PostgreSQL did not answer.
    #[error("PostgreSQL did not answer within 45 seconds")]
    PostgresTimeout,
    /// A dead letter could not be sent back: it stays where it is, and those before it are retried.
    #[error("send dead letter {id} back to JetStream; it and those after it stay as they are")]
    DeadLetter {
        /// Its id.
        id: i64,
        /// The error of NATS, or the problem with the dead letter.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The log could not be compared with a stream to its end.
    #[error("verify stream {stream}: {problem}")]
    Verify {
        /// The stream.
        stream: String,
        /// What NATS said, or what is wrong.
        problem: String,
    },
    /// The HTTP address cannot be bound.
    #[error("listen on {address} for HTTP; choose another with --http-listen, or off")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Passes under way did not end within the grace period; what they had not settled is sent
    /// again.
    #[error("passes under way did not end within {0:?}; what they had not settled is sent again")]
    Grace(Duration),
    /// The exporter of spans cannot be set up.
    #[error("set up the export of spans: {0}")]
    Traces(String),
    /// A task ended early: a bug of ours, or a panic.
    #[error("a task of the relay ended early")]
    TaskEnded,
}

impl RelayError {
    pub(crate) fn store(error: StoreError) -> Self {
        Self::Postgres(PostgresError(error))
    }

    /// Why there is no connection to PostgreSQL.
    pub(crate) fn no_postgres(target: String, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let source = source.into();
        if refuses_login(&*source) {
            Self::PostgresRefused { target, source }
        } else {
            Self::PostgresUnreachable { target, source }
        }
    }
}

/// What PostgreSQL said, or its pool, or that a pooler was in the way; its text and its sources
/// tell.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PostgresError(StoreError);

impl PostgresError {
    /// PostgreSQL is not there, or is about to go or to come, rather than refuses a login or a
    /// statement.
    pub(crate) fn is_away(&self) -> bool {
        let source = match &self.0 {
            StoreError::Connect(PoolError::Backend(source)) | StoreError::Statement(_, source) => source,
            StoreError::Connect(_) => return true,
            StoreError::Pooled => return false,
        };
        // Operator intervention, and what poolers answer while they have no server.
        source.code().is_none_or(|code| ["57P", "08"].iter().any(|class| code.code().starts_with(class)))
    }
}

fn refuses_login(error: &(dyn Error + 'static)) -> bool {
    let code = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
    // Class 28 is about logins. The others: there is no such database, and no CONNECT on it.
    let others = [&SqlState::INVALID_CATALOG_NAME, &SqlState::INSUFFICIENT_PRIVILEGE];
    code.is_some_and(|code| code.code().starts_with("28") || others.contains(&code))
        || error.source().is_some_and(refuses_login)
}

/// PostgreSQL refused, or is away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("connect to PostgreSQL")]
    Connect(#[source] PoolError),
    #[error("{0}")]
    Statement(&'static str, #[source] tokio_postgres::Error),
    #[error(
        "a pooler has lent the connection another session; the pass is made again, with nothing prepared"
    )]
    Pooled,
}
