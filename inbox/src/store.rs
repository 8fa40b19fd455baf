//! The statements of the inbox. Only this module speaks SQL.

mod attempt;
mod batch;
mod borrowed;
mod claim;
mod dead;
mod dead_letter;
mod failed;
mod holder;
mod mode;
mod park;
#[cfg(any(feature = "http", feature = "redis"))]
mod peek;
mod position;
mod retention;
mod statement;
mod timeouts;

use std::time::Duration;

use deadpool_postgres::{Object, Pool, PoolError, Transaction};
use futures_util::{FutureExt, future::OptionFuture};
use oncebox_schema::SchemaName;
use tokio::{sync::OnceCell, time::timeout};
use tokio_postgres::{IsolationLevel, types::Type};

use crate::{Error, deferred::Deferred, identity::Identity, inbox::Limits};

pub(crate) use batch::{Session, Wanted};
pub(crate) use borrowed::Borrowed;
use claim::Claims;
pub(crate) use claim::{Claim, Claimed, Expect};
pub(crate) use dead_letter::Letter;
pub(crate) use failed::failed;
pub(crate) use mode::Mode;
pub(crate) use position::{Candidate, Lead, Position};
pub(crate) use retention::{Deleted, Kind, Step};
use statement::{Parameter, Ready};

/// How long a rollback may take before its connection is closed, or its session ended, instead.
const ROLLBACK_MAX: Duration = Duration::from_secs(2);

/// How much longer than a handler PostgreSQL may take to answer; a network that swallows packets
/// never does.
const ANSWER_MARGIN: Duration = Duration::from_secs(10);

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
    end_holder: String,
    probe: String,
    register: String,
    modes: mode::Modes,
    dead_letter: String,
    letter: String,
    batch: batch::Batch,
    attempts: attempt::Attempts,
    park: park::Park,
    retention: retention::Retention,
    /// Nothing is prepared: a session lasts as long as a transaction.
    is_pooled: bool,
    /// Known once the server has been checked.
    claims: OnceCell<Claims>,
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
            register: statement(schema, include_str!("store/register.sql")),
            modes: mode::Modes::default(),
            probe: statement(schema, include_str!("store/probe.sql")),
            end_holder: statement(schema, include_str!("store/end_holder.sql")),
            dead_letter: statement(schema, include_str!("store/dead_letter.sql")),
            letter: statement(schema, include_str!("store/letter.sql")),
            batch: batch::Batch::new(schema),
            attempts: attempt::Attempts::new(schema),
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
        let checked =
            timeout(self.limits.acquire_timeout, self.claims.get_or_try_init(|| self.check(&object)));
        let Ok(checked) = checked.await else {
            discard(object);
            return Err(Error::Unavailable("check the server", "no answer in time".into()));
        };
        checked?;
        Ok(object)
    }

    /// Whether somebody waits for a connection of the pool.
    pub(crate) fn is_awaited(&self) -> bool {
        self.pool.status().waiting > 0
    }

    /// Begins the transaction of a message; those that its commit chains to it are alike. A claim knows them by
    /// DEFERRABLE, see `claim.sql`. A connection that is not answered within the time for taking
    /// one is of no use any more.
    pub(crate) async fn begin<'a>(&self, object: &'a mut Object) -> Result<Transaction<'a>, Error> {
        let builder = object.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        match timeout(self.limits.acquire_timeout, builder.deferrable(true).start()).await {
            Ok(begun) => begun.map_err(failed("begin")),
            Err(elapsed) => Err(Error::Unavailable("begin", elapsed.into())),
        }
    }

    /// Bounds what PostgreSQL may take to answer. It ends transactions itself before, see
    /// `timeouts.rs`: an answer that has not come by then is lost, and the connection is of no use
    /// any more.
    pub(crate) fn answered<T>(
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
    pub(crate) fn retention_seconds(&self) -> Option<f64> {
        self.limits.retention.map(|retention| retention.as_secs_f64())
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
