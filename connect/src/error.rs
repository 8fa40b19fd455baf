//! Errors: one for each reaction open to the caller, with its causes as sources.

mod tls;

use std::{error::Error, net::SocketAddr, time::Duration};

use deadpool_postgres::{HookError, PoolError, TimeoutType};
use oncebox_schema::VersionError;
pub use oncebox_schema::error_chain;
use tokio_postgres::error::{DbError, SqlState};

pub(crate) use self::tls::TlsProblem;

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
    /// PostgreSQL answers, but there is no TLS connection as the configuration demands it.
    #[error("PostgreSQL at {target} answers, but {problem}")]
    PostgresTls {
        /// Hosts and database.
        target: String,
        /// The problem and its remedy.
        problem: &'static str,
        /// The error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// PostgreSQL answers, and has no database of this name.
    #[error(
        "PostgreSQL at {target} has no such database; create it there, for example with `createdb`, or correct its name \
         in the database URL"
    )]
    DatabaseMissing {
        /// Hosts and database.
        target: String,
        /// PostgreSQL's error, with the name.
        source: Box<dyn Error + Send + Sync>,
    },
    /// PostgreSQL answers, and does not let us in: the user, the password, the right to connect to
    /// this database, or pg_hba.conf.
    #[error(
        "PostgreSQL at {target} refuses the login; check the user and its password, its CONNECT privilege on the \
         database, and the server's pg_hba.conf"
    )]
    PostgresRefused {
        /// Hosts and database.
        target: String,
        /// PostgreSQL's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A subscription of logical replication writes the log. In words, with the remedy.
    #[error("the relay does not start: {0}")]
    Subscribed(String),
    /// NATS cannot be reached.
    #[error("NATS at {target} cannot be reached")]
    NatsUnreachable {
        /// The URL without credentials.
        target: String,
        /// The error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// NATS answers, but there is no TLS connection as the configuration demands it.
    #[error("NATS at {target} answers, but {problem}")]
    NatsTls {
        /// The URL without credentials.
        target: String,
        /// The problem and its remedy.
        problem: &'static str,
        /// The error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// NATS answers, and does not let us in.
    #[error(
        "NATS at {target} refuses the login; check the options nats-... for user and password, token, seed or credentials \
         against the users of the server"
    )]
    NatsRefused {
        /// The URL without credentials.
        target: String,
        /// The error of NATS.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A stream is not as the configuration declares it.
    #[error("{0}")]
    Stream(String),
    /// A declared stream cannot be looked at: JetStream does not answer yet, or refuses.
    #[error("{0}")]
    StreamUnknown(String),
    /// The database has another schema version.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A statement failed.
    #[error("PostgreSQL did not do what it was asked")]
    Postgres(#[source] PostgresError),
    /// The database user lacks the privilege for a statement.
    #[error(
        "the database user lacks a privilege; grant it the role that ends with _relay for a relay, with _operator for a \
         command, or see what `oncebox doctor` says with the options of this relay"
    )]
    Denied(#[source] PostgresError),
    /// A policy would hide rows of the outbox's tables.
    #[error(
        "row level security holds for this database user on a table of the outbox, and would hide rows; end it as the \
         owner of the table: ALTER TABLE SCHEMA.TABLE DISABLE ROW LEVEL SECURITY"
    )]
    RowSecurity(#[source] PostgresError),
    /// Another session has a table, or a row, of the outbox locked.
    #[error(
        "another session keeps a table of the outbox locked (a migration, VACUUM FULL, an open transaction); find it: SELECT pid, \
         usename, application_name, left(query, 80) FROM pg_stat_activity WHERE pid IN (SELECT unnest(pg_blocking_pids(pid)) \
         FROM pg_stat_activity); then have it end"
    )]
    Locked(#[source] PostgresError),
    /// A table or function of the schema is not there.
    #[error(
        "the schema is not as `oncebox migrate` has made it: it was renamed, or a part of it is gone; `oncebox doctor` says \
         what, and what to do"
    )]
    SchemaBroken(#[source] PostgresError),
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
    /// The messages to pause are not there.
    #[error("pause: {0}; nothing was done")]
    Pause(String),
    /// An action cannot be done. In sentences, with the remedy.
    #[error("{0}")]
    Refused(String),
    /// A message cannot be edited so. In sentences, with the remedy.
    #[error("edit: {0}; nothing was done")]
    Edit(String),
    /// Messages cannot be expected so. In sentences, with the remedy.
    #[error("expect: {0} Nothing was done.")]
    Expect(String),
    /// The outbox is no copy.
    #[error(
        "adopt: this database is where its outbox lives, so there is nothing to adopt, and nothing was done; it may be \
         adopted already: `oncebox status` says when relays take an outbox for a copy"
    )]
    NoCopy,
    /// A failing message could not be fetched or sent: it stays as it is, and those before it are
    /// dealt with.
    #[error("deal with the failing message {key:?}; it and those after it stay as they are")]
    Failing {
        /// Its key.
        key: String,
        /// The error of NATS, or the problem with the message.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The log could not be compared with a stream to its end.
    #[error("verify stream {stream}: {problem}")]
    Verify {
        /// The stream.
        stream: String,
        /// The answer of NATS, or the problem.
        problem: String,
    },
    /// The HTTP address cannot be bound.
    #[error("listen on {address} for HTTP; choose another by the option http-listen, or off")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Passes under way did not end within the grace period; messages that they had not settled are
    /// sent again.
    #[error("passes under way did not end within {0:?}; what they had not settled is sent again")]
    Grace(Duration),
    /// The exporter of spans cannot be set up.
    #[error("set up the export of spans: {0}")]
    Traces(String),
    /// The file for passes cannot be opened.
    #[error("open the trace file")]
    TraceFile(#[source] std::io::Error),
    /// A task ended early: a bug of ours, or a panic.
    #[error("a task of the relay ended early")]
    TaskEnded,
}

impl RelayError {
    /// Of a statement, or of the connection that it needed.
    pub fn store(error: StoreError) -> Self {
        let of = match &error {
            StoreError::Statement(_, source) => source.as_db_error(),
            _ => None,
        };
        // The refusal of one of our functions, and its hint, as sentences.
        if let Some(refused) = of.filter(|refused| refused.code().code().starts_with("OB")) {
            let hint = refused.hint().unwrap_or("Nothing was done.");
            return Self::Refused(format!("{}. {hint}", refused.message()));
        }
        let wrapped = match of.map(DbError::code) {
            // The routine's name is the same in each language of the server.
            Some(&SqlState::INSUFFICIENT_PRIVILEGE)
                if of.and_then(DbError::routine) == Some("check_enable_rls") =>
            {
                Self::RowSecurity
            }
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Self::Denied,
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_FUNCTION) => Self::SchemaBroken,
            Some(&SqlState::LOCK_NOT_AVAILABLE) => Self::Locked,
            _ => Self::Postgres,
        };
        wrapped(PostgresError(error))
    }

    /// A server is away, has no connection left, or is not ready yet: waiting may mend it.
    #[must_use]
    pub fn is_away(&self) -> bool {
        match self {
            Self::PostgresUnreachable { .. }
            | Self::PostgresTimeout
            | Self::NatsUnreachable { .. }
            | Self::StreamUnknown(_) => true,
            Self::Postgres(error) => error.is_away() || error.is_full(),
            _ => false,
        }
    }

    /// Why there is no connection to PostgreSQL.
    pub fn no_postgres(target: String, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let source = source.into();
        if let Some(problem) = TlsProblem::find(&*source) {
            return Self::PostgresTls { target, problem: problem.of_postgres(), source };
        }
        match sql_state(&*source) {
            Some(&SqlState::INVALID_CATALOG_NAME) => Self::DatabaseMissing { target, source },
            Some(code) if refuses_login(code) => Self::PostgresRefused { target, source },
            _ => Self::PostgresUnreachable { target, source },
        }
    }
}

/// The error of PostgreSQL, of its pool, or that a pooler was in the way; its text and its sources
/// tell.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PostgresError(StoreError);

impl PostgresError {
    /// PostgreSQL has no connection left for this role or at all.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let (StoreError::Connect(NoConnection::Refused(source)) | StoreError::Statement(_, source)) = &self.0
        else {
            return false;
        };
        source.code() == Some(&SqlState::TOO_MANY_CONNECTIONS)
    }

    /// PostgreSQL is not there, or is about to go or to come, rather than refuses a login or a
    /// statement.
    pub fn is_away(&self) -> bool {
        let source = match &self.0 {
            StoreError::Connect(NoConnection::Refused(source)) | StoreError::Statement(_, source) => source,
            StoreError::Connect(_) => return true,
            StoreError::Pooled | StoreError::NoPeer { .. } | StoreError::Unjudged { .. } => return false,
        };
        // Operator intervention, and the answers of poolers while they have no server.
        source.code().is_none_or(|code| ["57P", "08"].iter().any(|class| code.code().starts_with(class)))
    }

    /// Why PostgreSQL takes no writes, if that is so: its disk is full, or it is read-only.
    pub fn refused_writes(&self) -> Option<String> {
        let StoreError::Statement(_, source) = &self.0 else { return None };
        let refused = source.as_db_error()?;
        let is_one = [SqlState::DISK_FULL, SqlState::READ_ONLY_SQL_TRANSACTION].contains(refused.code());
        is_one.then(|| format!("PostgreSQL takes no writes: {}", refused.message()))
    }
}

fn sql_state<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e SqlState> {
    let code = error.downcast_ref::<DbError>().map(DbError::code);
    code.or_else(|| error.source().and_then(sql_state))
}

/// The errors of class 28 are about logins; the other one says that the user lacks CONNECT.
fn refuses_login(code: &SqlState) -> bool {
    code.code().starts_with("28") || *code == SqlState::INSUFFICIENT_PRIVILEGE
}

/// Why there is no connection to PostgreSQL, in words that do not speak of the pool's objects.
#[derive(Debug, thiserror::Error)]
pub enum NoConnection {
    /// Connecting failed.
    #[error(transparent)]
    Refused(tokio_postgres::Error),
    /// PostgreSQL did not answer in time.
    #[error("PostgreSQL did not answer in time")]
    Silent,
    /// The pool had no connection to lend.
    #[error("the other tasks of this process used all its connections for too long")]
    Busy,
    /// The pool is not used as it should be: a bug of ours.
    #[error("{0}")]
    Pool(String),
}

impl From<PoolError> for NoConnection {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(source) | PoolError::PostCreateHook(HookError::Backend(source)) => {
                Self::Refused(source)
            }
            PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle) | PoolError::PostCreateHook(_) => {
                Self::Silent
            }
            PoolError::Timeout(TimeoutType::Wait) => Self::Busy,
            other => Self::Pool(other.to_string()),
        }
    }
}

/// PostgreSQL refused, or is away.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no connection.
    #[error("connect to PostgreSQL")]
    Connect(#[source] NoConnection),
    /// A statement failed; the text says which.
    #[error("{0}")]
    Statement(&'static str, #[source] tokio_postgres::Error),
    /// The session is not the one that the transaction began in.
    #[error(
        "a pooler has lent the connection another session; the pass is made again, with nothing prepared"
    )]
    Pooled,
    /// The inbox of an expectation is in a database that this process does not serve.
    #[error(
        "inbox {scope} is in database {database}, which this relay does not reach (it serves {known}): name it so in the \
         relay's file of databases, or end the expectation with `oncebox expect remove`"
    )]
    NoPeer {
        /// The inbox.
        scope: String,
        /// The name of the database.
        database: String,
        /// The names of those that it serves.
        known: String,
    },
    /// An expectation cannot be judged; the others were.
    #[error("what is expected in the inbox of {scope} cannot be judged: {reason}")]
    Unjudged {
        /// The inbox.
        scope: String,
        /// PostgreSQL's reason.
        reason: String,
    },
}
