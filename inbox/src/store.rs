//! The statements of the inbox. Only this module speaks SQL.

mod batch;
mod dead;
mod dead_letter;
mod failed;
mod park;
#[cfg(any(feature = "http", feature = "redis"))]
mod peek;
mod position;
mod retention;
mod statement;
mod timeouts;

use std::time::Duration;

use deadpool_postgres::{Object, Pool, PoolError, Transaction};
use futures_util::future::OptionFuture;
use oncebox_schema::{SchemaName, VersionError, check_version};
use tokio::{sync::OnceCell, time::timeout};
use tokio_postgres::{IsolationLevel, Row, error::SqlState, types::Type};

use crate::{Error, deferred::Deferred, identity::Identity, inbox::Limits};

pub(crate) use batch::{Session, Wanted};
pub(crate) use dead_letter::Letter;
pub(crate) use failed::failed;
pub(crate) use park::Parked;
pub(crate) use position::{Lead, Position};
pub(crate) use retention::{Deleted, Kind, Step};
use statement::{Parameter, Ready};

/// How long a rollback may take before its connection is closed instead.
const ROLLBACK_MAX: Duration = Duration::from_secs(5);

/// What a row of the inbox says about how a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Completed,
    Rejected,
    Dead,
}

impl Status {
    pub(crate) const ALL: [Self; 3] = [Self::Completed, Self::Rejected, Self::Dead];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Rejected => "rejected",
            Self::Dead => "dead",
        }
    }

    fn of(key: &str, status: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|known| known.as_str() == status);
        known.ok_or_else(|| Error::UnknownStatus { key: key.to_owned(), status: status.to_owned() })
    }
}

/// A committed row of the inbox.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) status: Status,
    pub(crate) fingerprint: Vec<u8>,
    pub(crate) outcome: Option<Vec<u8>>,
    /// The outbox's row that was handled.
    pub(crate) message_id: Option<i64>,
    /// Older than the retention: it counts for nothing.
    pub(crate) is_expired: bool,
}

/// What a claim found.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The key is ours until the transaction ends.
    Won,
    /// Another transaction works on the key.
    InFlight,
    /// The key was handled before.
    Stored(Stored),
}

/// What a claim is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// A new key; another one costs the transaction and a line in PostgreSQL's log.
    New,
    /// A new key or a known one.
    Either,
}

/// What a claim that went out behind a commit came to: whether a row was inserted, and what a look behind it found.
pub(crate) struct Claimed {
    inserted: Result<bool, tokio_postgres::Error>,
    found: Option<Result<Option<Row>, tokio_postgres::Error>>,
}

/// How a key ended, with what is stored of it.
pub(crate) type Settlement<'a> = (Status, Option<&'a [u8]>);

/// What a claim stores, for the case that the handler ends so.
pub(crate) const COMPLETED: Settlement<'static> = (Status::Completed, None);

#[derive(Debug)]
pub(crate) struct Store {
    pool: Pool,
    schema: SchemaName,
    limits: Limits,
    stored: String,
    settle: String,
    commit: String,
    pub(crate) dead: String,
    dead_letter: String,
    letter: String,
    batch: batch::Batch,
    park: park::Park,
    retention: retention::Retention,
    /// Nothing is prepared: a session lasts as long as a transaction.
    is_pooled: bool,
    /// The claims as this server takes them, once the server has been checked.
    claims: OnceCell<Claims>,
}

/// `claim.sql` without and with its last line.
#[derive(Debug)]
struct Claims {
    expecting_new: String,
    expecting_either: String,
}

impl Store {
    pub(crate) fn new(pool: Pool, schema: &SchemaName, limits: &Limits, is_pooled: bool) -> Self {
        Self {
            pool,
            schema: schema.clone(),
            limits: limits.clone(),
            stored: statement(schema, include_str!("store/stored.sql")),
            settle: statement(schema, include_str!("store/settle.sql")),
            commit: statement(schema, include_str!("store/commit.sql")),
            dead: statement(schema, include_str!("store/dead.sql")),
            dead_letter: statement(schema, include_str!("store/dead_letter.sql")),
            letter: statement(schema, include_str!("store/letter.sql")),
            batch: batch::Batch::new(schema),
            park: park::Park::new(schema),
            retention: retention::Retention::new(schema),
            is_pooled,
            claims: OnceCell::new(),
        }
    }

    /// A connection of the pool, once the schema's version is known to be right.
    pub(crate) async fn connect(&self) -> Result<Object, Error> {
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
        self.claims.get_or_try_init(|| self.check(&object)).await?;
        Ok(object)
    }

    /// Whether somebody waits for a connection of the pool.
    pub(crate) fn is_awaited(&self) -> bool {
        self.pool.status().waiting > 0
    }

    /// The claims for this server, if it is one that the inbox can work with.
    async fn check(&self, object: &Object) -> Result<Claims, Error> {
        check_version(&**object.as_ref(), &self.schema).await.map_err(|error| match error {
            VersionError::Postgres { source, .. } => failed("read the schema version")(source),
            other => Error::Version(other),
        })?;
        let sql = statement(&self.schema, include_str!("store/settings.sql"));
        let settings =
            object.query_typed_one(&sql, &[]).await.map_err(failed("read the server's settings"))?;
        if settings.get("deferrable") {
            let remedy = "default_transaction_deferrable is on, so that a claim would not know its own transaction; \
                          set it off for this role: ALTER ROLE ... SET default_transaction_deferrable = off";
            return Err(Error::Refused("check the settings", remedy.into()));
        }
        let claim = statement(&self.schema, include_str!("store/claim.sql"));
        let claim = timeouts::fill_in(&claim, &self.limits, settings.get("version"));
        let (expecting_new, _) =
            claim.split_once("ON CONFLICT").expect("claim.sql has such a line, its last");
        Ok(Claims { expecting_new: expecting_new.to_owned(), expecting_either: claim })
    }

    async fn ready_claim(
        &self,
        transaction: &Transaction<'_>,
        expect: Expect,
    ) -> Result<Ready<'_>, tokio_postgres::Error> {
        let claims = self.claims.get().expect("connections come from connect, which has checked the server");
        let claim = match expect {
            Expect::New => &claims.expecting_new,
            Expect::Either => &claims.expecting_either,
        };
        self.ready(transaction, claim).await
    }

    /// Begins the transaction of a message; those that its commit chains to it are alike. A claim knows them by
    /// DEFERRABLE, see `claim.sql`.
    pub(crate) async fn begin<'a>(&self, object: &'a mut Object) -> Result<Transaction<'a>, Error> {
        let builder = object.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        builder.deferrable(true).start().await.map_err(failed("begin"))
    }

    /// Claims a key, or finds out why not. `settlement` is what is committed unless it is changed. `None` when the key
    /// is known, which [`Expect::New`] did not expect: the transaction is aborted.
    pub(crate) async fn claim(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        identity: &Identity,
        message_id: Option<i64>,
        expect: Expect,
        settlement: Settlement<'_>,
    ) -> Result<Option<Claim>, Error> {
        let statement = self.ready_claim(transaction, expect).await.map_err(failed("claim"))?;
        let inserted = self.insert(transaction, &statement, scope, identity, message_id, settlement).await;
        let claimed = Claimed { inserted, found: None };
        self.claimed(transaction, scope, (identity, message_id), settlement, claimed).await
    }

    /// What came of a claim; a lost one is looked up, and made again where the row is older than the retention.
    pub(crate) async fn claimed(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        (identity, message_id): Wanted<'_>,
        settlement: Settlement<'_>,
        claimed: Claimed,
    ) -> Result<Option<Claim>, Error> {
        match claimed.inserted {
            Ok(true) => return Ok(Some(Claim::Won)),
            Ok(false) => {}
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => return Ok(None),
            Err(error) => return Err(failed("claim")(error)),
        }
        let found = match claimed.found {
            Some(found) => found,
            None => match self.ready(transaction, &self.stored).await {
                Ok(look) => self.look(transaction, &look, scope, identity).await,
                Err(error) => Err(error),
            },
        };
        let found = found.map_err(failed("read the stored outcome"))?;
        let found = self.found(transaction, scope, identity, found).await?;
        match (&found, self.limits.retention) {
            (Claim::Stored(Stored { is_expired: true, .. }), Some(retention)) => {
                self.expire(transaction, scope, identity, retention).await?;
            }
            _ => return Ok(Some(found)),
        }
        let statement = self.ready_claim(transaction, Expect::Either).await.map_err(failed("claim"))?;
        let again = self.insert(transaction, &statement, scope, identity, message_id, settlement).await;
        // Not ours: another transaction does the same, or has done it just now. The caller looks again.
        Ok(Some(if again.map_err(failed("claim"))? { Claim::Won } else { Claim::InFlight }))
    }

    /// Reads the row of a key that was not claimed.
    async fn look(
        &self,
        transaction: &Transaction<'_>,
        statement: &Ready<'_>,
        scope: &str,
        identity: &Identity,
    ) -> Result<Option<Row>, tokio_postgres::Error> {
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (&self.retention_seconds(), Type::FLOAT8),
        ];
        statement.query_opt(transaction, &parameters).await
    }

    /// How long a key is kept at least, as the statements take it.
    pub(crate) fn retention_seconds(&self) -> Option<f64> {
        self.limits.retention.map(|retention| retention.as_secs_f64())
    }

    async fn insert(
        &self,
        transaction: &Transaction<'_>,
        statement: &Ready<'_>,
        scope: &str,
        identity: &Identity,
        message_id: Option<i64>,
        (status, outcome): Settlement<'_>,
    ) -> Result<bool, tokio_postgres::Error> {
        let parameters: [Parameter<'_>; 8] = [
            (&identity.lock, Type::INT8),
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (&&identity.fingerprint[..], Type::BYTEA),
            (&message_id, Type::INT8),
            (&status.as_str(), Type::TEXT),
            (&outcome, Type::BYTEA),
        ];
        Ok(statement.execute(transaction, &parameters).await? == 1)
    }

    /// Writes what the handler left to the commit, stores how it ended, when that is more than [`COMPLETED`], commits, and
    /// claims the next message's key in the transaction that follows: all in one round trip. When writing or storing
    /// fails, the transaction is aborted and the commit fails with it; when the commit fails, the claim has no effect. A
    /// key that may be known is also looked up at once, so that a duplicate costs no round trip of its own.
    pub(crate) async fn commit_and_claim(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        (deferred, settled): (&Deferred, Option<(&Identity, Settlement<'_>)>),
        next: Option<(&Identity, Option<i64>, Expect)>,
    ) -> (Result<(), tokio_postgres::Error>, Option<Claimed>) {
        let looks = matches!(next, Some((_, _, Expect::Either)));
        // Prepared before, so that the first poll of each future below sends its statement, in this order.
        let statements = async {
            let settle = OptionFuture::from(settled.map(|_| self.ready(transaction, &self.settle)));
            let claim = OptionFuture::from(next.map(|(_, _, expect)| self.ready_claim(transaction, expect)));
            let look = OptionFuture::from(looks.then(|| self.ready(transaction, &self.stored)));
            Ok((settle.await.transpose()?, claim.await.transpose()?, look.await.transpose()?))
        };
        let (settle, claim, look) = match statements.await {
            Ok(statements) => statements,
            Err(error) => return (Err(error), None),
        };
        let settled = OptionFuture::from(settle.as_ref().zip(settled).map(
            async |(settle, (identity, (status, outcome)))| {
                let parameters: [Parameter<'_>; 5] = [
                    (&scope, Type::TEXT),
                    (&identity.tenant, Type::TEXT),
                    (&identity.key.as_str(), Type::TEXT),
                    (&status.as_str(), Type::TEXT),
                    (&outcome, Type::BYTEA),
                ];
                settle.execute(transaction, &parameters).await
            },
        ));
        let claimed =
            OptionFuture::from(claim.as_ref().zip(next).map(|(claim, (identity, message_id, _))| {
                self.insert(transaction, claim, scope, identity, message_id, COMPLETED)
            }));
        let found = OptionFuture::from(
            look.as_ref()
                .zip(next)
                .map(|(look, (identity, ..))| self.look(transaction, look, scope, identity)),
        );
        let (deferred, settled, committed, inserted, found) = futures_util::join!(
            deferred.send(transaction),
            settled,
            self.commit(transaction),
            claimed,
            found
        );
        (
            deferred.and(settled.transpose()).and(committed),
            inserted.map(|inserted| Claimed { inserted, found }),
        )
    }

    async fn ready<'a>(
        &self,
        transaction: &Transaction<'_>,
        sql: &'a str,
    ) -> Result<Ready<'a>, tokio_postgres::Error> {
        Ready::new(transaction, sql, self.is_pooled).await
    }

    /// Commits; an empty transaction stays open. Fails when the transaction was aborted or has ended already.
    pub(crate) async fn commit(&self, transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
        transaction.batch_execute(&self.commit).await
    }

    /// Rolls back and waits until it is done, which a transaction that is merely dropped does not; whether it is.
    pub(crate) async fn roll_back(&self, transaction: Transaction<'_>) -> bool {
        matches!(timeout(ROLLBACK_MAX, transaction.rollback()).await, Ok(Ok(())))
    }
}

/// A template of ours without its comments, which would travel with every commit.
pub(crate) fn statement(schema: &SchemaName, template: &str) -> String {
    let lines: Vec<&str> = template.lines().filter(|line| !line.starts_with("--")).collect();
    schema.sql(&lines.join("\n"))
}

/// Takes a connection out of the pool for good and closes it; the server rolls back.
pub(crate) fn discard(object: Object) {
    drop(Object::take(object));
}
