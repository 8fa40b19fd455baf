//! A handler's context: its message, and the transaction that it writes through.

use std::ops::Deref;

use oncebox_claims::{
    EntityLocks,
    database::TokioPostgres,
    transactional::{Deferrable, Deferred},
};
use oncebox_schema::{Driver, Key, Transaction};
use tokio_postgres::{
    Statement,
    types::{ToSql, Type},
};

use crate::{HandlerError, LockError, Received};

/// A driver whose transaction runs one statement at a time, through `&mut`: sqlx, `SeaORM`, Diesel.
pub trait Exclusive: Driver {}

/// The message of a handler, and the transaction that it writes through. It derefs to the
/// [`MessageContext`].
#[derive(Debug)]
pub struct Context<'a, D: Driver = TokioPostgres> {
    pub(crate) transaction: TransactionOf<'a, D>,
    pub(crate) message: MessageContext<'a, D>,
}

/// A borrowed transaction, which has no text.
pub(crate) struct TransactionOf<'a, D: Driver>(pub(crate) &'a mut D::Transaction);

impl<D: Driver> std::fmt::Debug for TransactionOf<'_, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(D::NAME)
    }
}

/// The message of a handler: its key, its tenant, and the whole message as it arrived.
#[derive(Debug)]
pub struct MessageContext<'a, D: Driver = TokioPostgres> {
    pub(crate) scope: &'a str,
    pub(crate) key: &'a Key,
    pub(crate) tenant: &'a str,
    pub(crate) received: &'a Received,
    pub(crate) locks: EntityLocks<'a>,
    pub(crate) deferred: &'a Deferred<D>,
}

impl<'a, D: Driver> Deref for Context<'a, D> {
    type Target = MessageContext<'a, D>;

    fn deref(&self) -> &MessageContext<'a, D> {
        &self.message
    }
}

impl<'a, D: Driver> MessageContext<'a, D> {
    /// The message's key. Derive the keys of further messages from it: `cx.key().step("ship")`.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
    }

    /// The scope of the inbox that handles the message.
    #[must_use]
    pub fn scope(&self) -> &'a str {
        self.scope
    }

    /// The tenant; empty with [`Builder::single_tenant`](crate::Builder::single_tenant).
    #[must_use]
    pub fn tenant(&self) -> &'a str {
        self.tenant
    }

    /// The message as it arrived: subject, headers, time, delivery count, raw payload.
    #[must_use]
    pub fn message(&self) -> &'a Received {
        self.received
    }
}

impl<D: Driver> Context<'_, D> {
    /// The transaction that the key is claimed in, for code that is generic over drivers.
    pub fn transaction_mut(&mut self) -> &mut D::Transaction {
        self.transaction.0
    }
}

impl<D: Exclusive> Context<'_, D> {
    /// The transaction that the key is claimed in. The inbox commits it, or rolls it back. Do not
    /// send COMMIT, ROLLBACK or CLOSE ALL: the message would fail.
    pub fn transaction(&mut self) -> &mut D::Transaction {
        self.transaction.0
    }

    /// Takes the locks of these entities until the transaction ends, as
    /// [`Context::lock`](Context::<TokioPostgres>::lock) does over tokio-postgres.
    ///
    /// # Errors
    /// As there.
    pub async fn lock<N: AsRef<str>>(&mut self, names: impl IntoIterator<Item = N>) -> Result<(), LockError> {
        self.message.locks.take::<D, _>(self.transaction.0, names).await
    }
}

impl Context<'_> {
    /// The transaction that the key is claimed in. The inbox commits it, or rolls it back. Do not
    /// send COMMIT, ROLLBACK or CLOSE ALL: the message would fail.
    ///
    /// It has the methods of deadpool's client, such as `prepare_cached`, and those of
    /// `tokio_postgres::Client`. To survive the failure of a statement, put a `SAVEPOINT` before it
    /// and roll back to it.
    #[must_use]
    pub fn transaction(&self) -> &Transaction {
        self.transaction.0
    }

    /// Takes the locks of these entities until the transaction ends; no other handler has any of
    /// them meanwhile, in any process.
    ///
    /// Name every entity in one call: the locks are taken in one order everywhere, so that two
    /// handlers that name the same ones in any order wait for one another, never in a circle. Locks
    /// of several calls can meet in a circle; PostgreSQL then fails one of the transactions, and
    /// its handler runs again.
    ///
    /// Names are up to 255 bytes each, up to 64 of them, and mean the same in every scope and to
    /// every tenant of this database, since a charge and a refund work on one account: put the kind
    /// of entity in front, `account:1`, and the tenant, where equal names are different entities.
    /// It locks no rows: code that does not ask for the lock works on. Code outside of handlers
    /// asks with [`lock`](crate::lock()).
    ///
    /// Lock first, then read: a row that you read before may have changed while the handler waited.
    ///
    /// ```
    /// use oncebox_inbox::{Context, HandlerError};
    ///
    /// async fn transfer(cx: &Context<'_>, from: i64, to: i64, cents: i64) -> Result<bool, HandlerError> {
    ///     cx.lock([format!("account:{from}"), format!("account:{to}")]).await?;
    ///     let sql = "SELECT cents FROM account WHERE id = $1";
    ///     if cx.transaction().query_one(sql, &[&from]).await?.get::<_, i64>(0) < cents {
    ///         return Ok(false);
    ///     }
    ///     for (id, change) in [(from, -cents), (to, cents)] {
    ///         let sql = "UPDATE account SET cents = cents + $2 WHERE id = $1";
    ///         cx.transaction().execute(sql, &[&id, &change]).await?;
    ///     }
    ///     Ok(true)
    /// }
    /// ```
    ///
    /// # Errors
    /// A name is empty or too long, or there are too many. A lock was not free within
    /// [`Builder::lock_timeout`](crate::Builder::lock_timeout), or within nine tenths of the time
    /// that the handler has left: [`LockError::Busy`], after which the message is run again later.
    /// PostgreSQL is away.
    pub async fn lock<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<(), LockError> {
        self.message.locks.take_in(self.transaction(), names).await
    }
}

impl MessageContext<'_> {
    /// Leaves a write to the inbox, which sends it together with the commit, once the handler has
    /// returned.
    ///
    /// It takes the same arguments as `execute`, and saves its round trip: of a message whose
    /// writes are all deferred, outcome, COMMIT and the claim of the next message go out with them,
    /// and are answered at once. For writes whose result does not matter; how many rows there were
    /// is not told. Statements that the handler sends later do not see it. Deferred writes are
    /// executed in their order, if the outcome is one that is committed.
    ///
    /// If one fails, the message has no effect, and that is dealt with as if the handler had
    /// returned the error.
    ///
    /// ```
    /// use oncebox_inbox::{Context, HandlerError, Outcome};
    ///
    /// async fn charge(cx: &Context<'_>, account: i64, cents: i64) -> Result<Outcome<()>, HandlerError> {
    ///     let sql = "INSERT INTO charge (key, account, cents) VALUES ($1, $2, $3)";
    ///     let statement = cx.transaction().prepare_cached(sql).await?;
    ///     cx.defer(&statement, &[&cx.key().as_str(), &account, &cents])?;
    ///     Ok(Outcome::done(()))
    /// }
    /// ```
    ///
    /// # Errors
    /// The number of parameters is wrong, one of them cannot be encoded, or it is more than the
    /// 1,000th write of the message, or of the set of messages.
    pub fn defer(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(), HandlerError> {
        self.deferred.push(Deferrable::Prepared(statement.clone()), parameters)
    }

    /// Like [`MessageContext::defer`], for a statement that is not prepared, as [with a
    /// pooler](crate::Builder::behind_pooler); it takes the same arguments as `execute_typed`.
    ///
    /// # Errors
    /// The errors of [`MessageContext::defer`].
    pub fn defer_typed(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<(), HandlerError> {
        let (values, types): (Vec<_>, Vec<_>) = parameters.iter().cloned().unzip();
        self.deferred.push(Deferrable::Text(sql.to_owned(), types), &values)
    }
}
