//! Connections, transactions, and how a statement goes out.

mod ending;
mod failed;
mod scope;
mod statement;

use std::time::Duration;

use deadpool_postgres::{Object, PoolError};
use futures_util::FutureExt;
use oncebox_schema::{
    Answer, Columns, Driver, SchemaName, Statement, Transaction, Value, VersionError, check_version_through,
};
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};

use crate::{
    Error,
    limits::{IsolationLevel, Limits},
};

pub use crate::driver::{Parameter, Ready, TokioPostgres};
use failed::failed_to_begin;
pub use failed::{failed, failed_through};
pub use scope::{Kind, Mode};
pub use statement::statement;
pub(crate) use statement::without_comments;

/// Begins a transaction of ours; `begin.sql` says how it is known again at its commit.
const BEGIN: &str = include_str!("database/begin.sql");
/// Ends a session whose search path a handler has changed.
const END_CHANGED: &str = include_str!("database/end_changed.sql");
/// Commits, and leaves an empty transaction of the same kind open.
const COMMIT_AND_CHAIN: &str = include_str!("database/commit_and_chain.sql");
/// How much longer than a handler PostgreSQL may take to answer; a network that swallows packets
/// never does.
const ANSWER_MARGIN: Duration = Duration::from_secs(10);
/// How many connections of the pool in a row may turn out to be dead.
const PINGS: usize = 3;

/// The database that keys are claimed in: a driver with its pool, the schema, and the limits of the
/// work there.
#[derive(Debug)]
pub struct Database<D: Driver = TokioPostgres> {
    driver: D,
    schema: SchemaName,
    limits: Limits,
    begin: String,
    guard: String,
    check: String,
    commit: String,
    commit_and_chain: String,
    roll_back_and_chain: String,
    end_changed: String,
    probe: String,
    register: String,
    scopes: scope::Registered,
    /// Nothing is prepared: a session lasts as long as a transaction.
    is_pooled: bool,
    /// The server's version, as `server_version_num` has it; known once the server has been
    /// checked.
    version: OnceCell<i32>,
}

impl<D: Driver> Database<D> {
    /// Uses the connections of this driver. With a transaction pooler (`is_pooled`) it prepares
    /// nothing.
    #[must_use]
    pub fn new(driver: impl Into<D>, schema: &SchemaName, limits: &Limits, is_pooled: bool) -> Self {
        Self {
            driver: driver.into(),
            schema: schema.clone(),
            limits: limits.clone(),
            begin: begin_sql(limits.isolation_level),
            guard: without_comments(include_str!("database/guard.sql")),
            check: without_comments(include_str!("database/check.sql")),
            commit: statement(schema, include_str!("database/commit.sql")),
            commit_and_chain: statement(schema, COMMIT_AND_CHAIN),
            roll_back_and_chain: statement(schema, include_str!("database/roll_back_and_chain.sql")),
            end_changed: statement(schema, END_CHANGED),
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

    /// The limits of the work for a key.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether connections go through a pooler in transaction mode.
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        self.is_pooled
    }

    /// Checks, once, that this crate works with the server and with the schema.
    ///
    /// # Errors
    /// No connection was free in time, or this crate does not work with one of the two.
    pub async fn check(&self) -> Result<(), Error> {
        const WHAT: &str = "check the server";
        if self.version.initialized() {
            return Ok(());
        }
        let checked = self.version.get_or_try_init(|| self.ask_for_version());
        match timeout(2 * self.limits.acquire_timeout, checked).await {
            Ok(checked) => checked.map(drop),
            Err(elapsed) => Err(Error::Unavailable(WHAT, elapsed.into())),
        }
    }

    /// The server's version, if it is one that this crate can work with.
    async fn ask_for_version(&self) -> Result<i32, Error> {
        let within = self.limits.acquire_timeout;
        let schema = check_version_through(&self.driver, &self.schema, within, self.is_pooled);
        schema.await.map_err(|error| match error {
            VersionError::Postgres { source, .. } => failed_to_begin::<D>("read the schema version", source),
            other => Error::Version(other),
        })?;
        let sql = statement(&self.schema, include_str!("database/settings.sql"));
        let settings = self.alone("read the server's settings", &sql, &[]).await?.unwrap_or_default();
        if settings.is_true(0) {
            let remedy = "default_transaction_deferrable is on, so that a claim would not know its own transaction; \
                          set it off for this role: ALTER ROLE ... SET default_transaction_deferrable = off";
            return Err(Error::Refused("check the settings", remedy.into()));
        }
        Ok(settings.number(1).unwrap_or(0))
    }

    /// The server's version, as `server_version_num` has it.
    pub(crate) fn version(&self) -> i32 {
        *self.version.get().expect("statements are sent behind check only")
    }

    /// The largest number of connections of the pool, if the driver knows it.
    #[must_use]
    pub fn connections_max(&self) -> Option<usize> {
        self.driver.connections_max()
    }

    /// Whether a task waits for a connection of the pool.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.driver.is_awaited()
    }

    /// Whether a message would have to wait for a connection if one were taken now.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.driver.is_busy()
    }

    /// Whether PostgreSQL answers, and takes writes. The pool may hold connections that are cut off
    /// already; they are thrown away then.
    pub async fn answers(&self) -> bool {
        let until = Instant::now() + self.limits.acquire_timeout;
        for _ in 0..PINGS {
            match self.alone("ask whether PostgreSQL takes writes", &self.probe, &[]).await {
                Ok(row) => return row.is_some_and(|row| row.is_true(0)),
                Err(Error::Unavailable(..)) if Instant::now() < until => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Begins a transaction of our own statements on a connection of the pool.
    ///
    /// # Errors
    /// No connection was free in time; this crate does not work with the server; PostgreSQL
    /// refuses.
    pub async fn begin(&self) -> Result<D::Transaction, Error> {
        self.check().await?;
        let (begin, within) = (begin_sql(IsolationLevel::ReadCommitted), self.limits.acquire_timeout);
        self.begin_with(&begin, &[], 2 * within).await.map(|(transaction, _)| transaction)
    }

    /// Begins the transaction of a handler, at the level that is set, and sends these statements
    /// after it, up to the first that fails. All is answered within twice the time for taking a
    /// connection, or lost.
    ///
    /// # Errors
    /// As for [`Database::begin`].
    pub(crate) async fn begin_for_handler(
        &self,
        statements: &[Statement<'_, D>],
    ) -> Result<(D::Transaction, Vec<Answer<D>>), Error> {
        self.begin_with(&self.begin, statements, 2 * self.limits.acquire_timeout).await
    }

    async fn begin_with(
        &self,
        begin: &str,
        statements: &[Statement<'_, D>],
        limit: Duration,
    ) -> Result<(D::Transaction, Vec<Answer<D>>), Error> {
        const WHAT: &str = "begin";
        let within = self.limits.acquire_timeout;
        match timeout(limit, self.driver.begin(within, begin, statements, self.is_pooled)).await {
            Ok(begun) => begun.map_err(|error| failed_to_begin::<D>(WHAT, error)),
            Err(elapsed) => Err(Error::Unavailable(WHAT, elapsed.into())),
        }
    }

    /// Begins a transaction that may stay open without holding back vacuum, and sends one
    /// statement; the columns of its row.
    ///
    /// # Errors
    /// As for [`Database::begin`].
    pub async fn begin_without_snapshot(
        &self,
        what: &'static str,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<(D::Transaction, Option<Columns>), Error> {
        let (begin, limit) = ("BEGIN ISOLATION LEVEL READ COMMITTED", 2 * self.limits.acquire_timeout);
        let (transaction, answers) = self.begin_with(begin, &[Statement::Query(sql, values)], limit).await?;
        let row = answers.into_iter().next().unwrap_or(Ok(None)).map_err(failed_through::<D>(what))?;
        Ok((transaction, row))
    }

    /// Bounds the time of PostgreSQL's answer. PostgreSQL ends transactions itself before, see
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

    /// Sends statements in their order; their answers up to the first error.
    pub async fn send(
        &self,
        transaction: &mut D::Transaction,
        statements: &[Statement<'_, D>],
    ) -> Vec<Answer<D>> {
        D::send(transaction, statements, self.is_pooled).await
    }

    /// Sends one statement; the columns of its row.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn query(
        &self,
        transaction: &mut D::Transaction,
        sql: &str,
        values: &[Value<'_>],
    ) -> Answer<D> {
        D::query(D::connection(transaction), sql, values, self.is_pooled).await
    }

    /// Sends one statement by itself; the columns of its row. If PostgreSQL refuses it, it is sent
    /// once more, over another connection: a handler may have left the first without rights.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn alone(
        &self,
        what: &'static str,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Option<Columns>, Error> {
        match self.alone_once(what, sql, values).await {
            Err(Error::Refused(..)) => self.alone_once(what, sql, values).await,
            answer => answer,
        }
    }

    async fn alone_once(
        &self,
        what: &'static str,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Option<Columns>, Error> {
        let sent = self.driver.alone(self.limits.acquire_timeout, sql, values, self.is_pooled);
        self.answered(what, sent).await?.map_err(|error| failed_to_begin::<D>(what, error))
    }

    /// The commit of a transaction with none after it. Drivers that count their own transactions
    /// expect one to be open until they end it.
    fn ending(&self) -> &str {
        if D::PIPELINES { &self.commit } else { &self.commit_and_chain }
    }

    /// The statement that is sent before deferred writes.
    pub(crate) fn guard(&self) -> Statement<'_, D> {
        Statement::Query(&self.guard, &[])
    }

    /// The statements that commit, with an empty transaction after it or none.
    pub(crate) fn commit_statement(&self, is_chained: bool) -> Statement<'_, D> {
        Statement::Batch(if is_chained { &self.commit_and_chain } else { self.ending() })
    }
}

impl Database {
    /// A connection of the pool, once the schema's version is known to be right.
    ///
    /// # Errors
    /// No connection was free in time, or this crate does not work with the server's version.
    pub async fn connect(&self) -> Result<Object, Error> {
        const WHAT: &str = "take a connection from the pool";
        self.check().await?;
        match timeout(self.limits.acquire_timeout, self.driver.0.get()).await {
            Ok(Ok(object)) => Ok(object),
            Ok(Err(PoolError::Backend(error))) => Err(failed("connect")(error)),
            Ok(Err(error)) => Err(Error::Unavailable(WHAT, error.into())),
            Err(elapsed) => Err(Error::Unavailable(WHAT, elapsed.into())),
        }
    }

    /// The statements that commit, for a caller that sends others along with them.
    pub(crate) fn commit_sql(&self) -> &str {
        &self.commit
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
}

/// The statements that begin a transaction of ours at this level.
#[must_use]
fn begin_sql(level: IsolationLevel) -> String {
    without_comments(BEGIN).replace("{level}", level.as_sql())
}

/// Takes a connection out of the pool for good and closes it; the server rolls back.
pub fn discard(object: Object) {
    drop(Object::take(object));
}
