//! Connections, transactions, and how a statement goes out.

mod failed;
mod scope;
mod statement;

use std::time::Duration;

use deadpool_postgres::{Object, Pool, PoolError};
use futures_util::FutureExt;
use oncebox_schema::{SchemaName, Transaction, VersionError, check_version};
use tokio::{sync::OnceCell, time::timeout};

use crate::{
    Error,
    limits::{IsolationLevel, Limits},
};

pub use failed::failed;
pub use scope::{Kind, Mode};
pub(crate) use statement::without_comments;
pub use statement::{Parameter, Ready, statement};

/// Begins a transaction of ours; `begin.sql` says how it is known again at its commit.
const BEGIN: &str = include_str!("database/begin.sql");
/// Ends a session whose search path a handler has changed; for a caller that uses another client
/// library.
pub const END_CHANGED: &str = include_str!("database/end_changed.sql");
/// Commits, and leaves an empty transaction of the same kind behind.
pub const COMMIT_AND_CHAIN: &str = include_str!("database/commit_and_chain.sql");
/// How long a rollback may take before its connection is closed, or its session ended, instead.
const ROLLBACK_MAX: Duration = Duration::from_secs(2);
/// How much longer than a handler PostgreSQL may take to answer; a network that swallows packets
/// never does.
const ANSWER_MARGIN: Duration = Duration::from_secs(10);
/// How many connections of the pool in a row may turn out to be dead.
const PINGS: usize = 3;

/// The database that keys are claimed in: a pool, the schema in it, and the limits of what is done
/// there.
#[derive(Debug)]
pub struct Database {
    pool: Pool,
    schema: SchemaName,
    limits: Limits,
    begin: String,
    guard: String,
    commit: String,
    commit_and_chain: String,
    probe: String,
    register: String,
    scopes: scope::Registered,
    /// Nothing is prepared: a session lasts as long as a transaction.
    is_pooled: bool,
    /// The server's version, as `server_version_num` has it; known once the server has been
    /// checked.
    version: OnceCell<i32>,
}

impl Database {
    /// Uses the connections of this pool. Behind a transaction pooler (`is_pooled`) it prepares
    /// nothing.
    #[must_use]
    pub fn new(pool: Pool, schema: &SchemaName, limits: &Limits, is_pooled: bool) -> Self {
        Self {
            pool,
            schema: schema.clone(),
            limits: limits.clone(),
            begin: begin_sql(limits.isolation_level),
            guard: without_comments(include_str!("database/guard.sql")),
            commit: statement(schema, include_str!("database/commit.sql")),
            commit_and_chain: statement(schema, COMMIT_AND_CHAIN),
            probe: statement(schema, include_str!("database/probe.sql")),
            register: statement(schema, include_str!("database/register.sql")),
            scopes: scope::Registered::default(),
            is_pooled,
            version: OnceCell::new(),
        }
    }

    /// The schema that Oncebox is installed in.
    #[must_use]
    pub fn schema(&self) -> &SchemaName {
        &self.schema
    }

    /// The limits of what is done for a key.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether connections go through a pooler in transaction mode.
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        self.is_pooled
    }

    /// A connection of the pool, once the schema's version is known to be right.
    ///
    /// # Errors
    /// No connection was free in time, or this crate does not work with the server's version.
    pub async fn connect(&self) -> Result<Object, Error> {
        let object = match timeout(self.limits.acquire_timeout, self.pool.get()).await {
            Ok(Ok(object)) => object,
            Ok(Err(PoolError::Backend(error))) => return Err(failed("connect")(error)),
            Ok(Err(error)) => {
                return Err(Error::Unavailable("take a connection from the pool", error.into()));
            }
            Err(elapsed) => {
                return Err(Error::Unavailable("take a connection from the pool", elapsed.into()));
            }
        };
        let checked =
            timeout(self.limits.acquire_timeout, self.version.get_or_try_init(|| self.check(&object)));
        let Ok(checked) = checked.await else {
            discard(object);
            return Err(Error::Unavailable("check the server", "no answer in time".into()));
        };
        checked?;
        Ok(object)
    }

    /// The server's version, if it is one that this crate can work with.
    async fn check(&self, object: &Object) -> Result<i32, Error> {
        check_version(&**object.as_ref(), &self.schema).await.map_err(|error| match error {
            VersionError::Postgres { source, .. } => failed("read the schema version")(source),
            other => Error::Version(other),
        })?;
        let sql = statement(&self.schema, include_str!("database/settings.sql"));
        let settings =
            object.query_typed_one(&sql, &[]).await.map_err(failed("read the server's settings"))?;
        if settings.get("deferrable") {
            let remedy = "default_transaction_deferrable is on, so that a claim would not know its own transaction; \
                          set it off for this role: ALTER ROLE ... SET default_transaction_deferrable = off";
            return Err(Error::Refused("check the settings", remedy.into()));
        }
        Ok(settings.get("version"))
    }

    /// The server's version, as `server_version_num` has it.
    pub(crate) fn version(&self) -> i32 {
        *self.version.get().expect("connections come from connect, which has checked the server")
    }

    /// Whether somebody waits for a connection of the pool.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.pool.status().waiting > 0
    }

    /// Whether a message would have to wait for a connection if one were taken now.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let status = self.pool.status();
        status.waiting > 0 || (status.available == 0 && status.size >= status.max_size)
    }

    /// Whether PostgreSQL answers, and takes writes. What the pool holds may have been cut off
    /// already, and is thrown away then.
    pub async fn answers(&self) -> bool {
        for _ in 0..PINGS {
            let Ok(object) = self.connect().await else { return false };
            let asked = object.query_typed_one(&self.probe, &[]);
            match timeout(self.limits.acquire_timeout, asked).await {
                Ok(Ok(row)) => return row.get(0),
                Ok(Err(_)) => discard(object),
                Err(_) => {
                    discard(object);
                    return false;
                }
            }
        }
        false
    }

    /// Begins a transaction of our own statements on a connection of the pool.
    ///
    /// # Errors
    /// As for [`Database::connect`]; PostgreSQL refuses.
    pub async fn begin(&self) -> Result<Transaction, Error> {
        self.begin_on(self.connect().await?).await
    }

    /// The same on a connection that the caller has.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn begin_on(&self, object: Object) -> Result<Transaction, Error> {
        let transaction = Transaction::on(object);
        let begin = begin_sql(IsolationLevel::ReadCommitted);
        match timeout(self.limits.acquire_timeout, transaction.batch_execute(&begin)).await {
            Ok(begun) => begun.map(|()| transaction).map_err(failed("begin")),
            Err(elapsed) => Err(Error::Unavailable("begin", elapsed.into())),
        }
    }

    /// Begins the transaction of a handler, at the level that is set; together with `claim`, whose
    /// statements are sent behind without waiting. What is not answered within the time for taking
    /// a connection leaves it of no use any more.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub(crate) async fn begin_with<T>(
        &self,
        transaction: &Transaction,
        claim: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let both = async { futures_util::join!(transaction.batch_execute(&self.begin), claim) };
        match timeout(self.limits.acquire_timeout, both).await {
            Ok((begun, claimed)) => begun.map(|()| claimed).map_err(failed("begin")),
            Err(elapsed) => Err(Error::Unavailable("begin", elapsed.into())),
        }
    }

    /// Bounds what PostgreSQL may take to answer. It ends transactions itself before, see
    /// `timeouts.rs`: an answer that has not come by then is lost, and the connection is of no use
    /// any more.
    pub fn answered<T>(
        &self,
        what: &'static str,
        answer: impl Future<Output = T>,
    ) -> impl Future<Output = Result<T, Error>> {
        let limit = self.limits.handler_timeout + ANSWER_MARGIN;
        // Not an `async fn`, whose future would have room for `answer` twice.
        timeout(limit, answer)
            .map(move |answer| answer.map_err(|elapsed| Error::Unavailable(what, elapsed.into())))
    }

    /// How long a key is kept at least, as the statements take it.
    #[must_use]
    pub fn retention_seconds(&self) -> Option<f64> {
        self.limits.retention.map(|retention| retention.as_secs_f64())
    }

    /// A statement that is ready to be sent in this transaction.
    ///
    /// # Errors
    /// The statement cannot be prepared.
    pub async fn ready<'a>(
        &self,
        transaction: &Transaction,
        sql: &'a str,
    ) -> Result<Ready<'a>, tokio_postgres::Error> {
        Ready::new(transaction, sql, self.is_pooled).await
    }

    /// The statement that deferred writes are sent behind.
    pub(crate) async fn guard(&self, transaction: &Transaction) -> Result<Ready<'_>, tokio_postgres::Error> {
        self.ready(transaction, &self.guard).await
    }

    /// Fails, and aborts the transaction, unless it is still the one that was begun. To be awaited
    /// before more is written in it.
    ///
    /// # Errors
    /// The code that has used the transaction has ended it, or went on after an error; PostgreSQL
    /// is away.
    pub async fn check_open(&self, transaction: &Transaction) -> Result<(), tokio_postgres::Error> {
        transaction.batch_execute(&without_comments(include_str!("database/check.sql"))).await
    }

    /// Commits, if this is still the transaction that was begun.
    ///
    /// # Errors
    /// The transaction was aborted, or has ended already; PostgreSQL is away.
    pub async fn commit(&self, transaction: &Transaction) -> Result<(), tokio_postgres::Error> {
        transaction.batch_execute(&self.commit).await?;
        transaction.set_over();
        Ok(())
    }

    /// Commits like [`Database::commit`]; an empty transaction is open behind.
    ///
    /// # Errors
    /// As for [`Database::commit`].
    pub(crate) async fn commit_and_chain(
        &self,
        transaction: &Transaction,
    ) -> Result<(), tokio_postgres::Error> {
        transaction.batch_execute(&self.commit_and_chain).await
    }

    /// Rolls back and waits until it is done, so that the key is free; whether it is done.
    pub async fn roll_back(&self, transaction: &Transaction) -> bool {
        let done = matches!(timeout(ROLLBACK_MAX, transaction.batch_execute("ROLLBACK")).await, Ok(Ok(())));
        if done {
            transaction.set_over();
        }
        done
    }

    /// Whether the messages behind may use this session, which is ended if not. Asked after a
    /// failure, when no transaction is open.
    pub async fn keeps(&self, object: &Object) -> bool {
        matches!(timeout(ROLLBACK_MAX, object.batch_execute(END_CHANGED)).await, Ok(Ok(())))
    }
}

/// The statements that begin a transaction of ours at this level.
#[must_use]
pub fn begin_sql(level: IsolationLevel) -> String {
    without_comments(BEGIN).replace("{level}", level.as_sql())
}

/// Takes a connection out of the pool for good and closes it; the server rolls back.
pub fn discard(object: Object) {
    drop(Object::take(object));
}
