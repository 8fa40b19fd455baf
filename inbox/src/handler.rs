//! The handler of messages: its trait, its context, its outcomes.

mod set;
mod stored_answer;
mod version;

use std::{future::Future, time::Duration};

use oncebox_claims::{
    EntityLocks,
    transactional::{Deferrable, Deferred},
};
use oncebox_schema::Key;
use oncebox_schema::Transaction;
use serde::Serialize;
use tokio_postgres::{
    Statement,
    types::{ToSql, Type},
};

use crate::{Decode, HandlerError, LockError, Received};

pub use set::Set;
pub use stored_answer::StoredAnswer;

/// Handles the messages of one scope.
///
/// The handler writes through [`Context::transaction`] and [`Context::defer`] only; what it writes
/// is committed together with the key, or not at all. It may run more than once for a message,
/// never with a lasting effect more than once.
pub trait Handler: Send + Sync {
    /// What it takes: whatever serde can deserialise, from JSON, or what says itself how it is
    /// [read](Decode).
    type Message: Decode + Send;
    /// What a duplicate is answered with; stored as JSON, at most 1 MiB. Use `()` when nobody asks
    /// for it: it costs nothing.
    type Reply: Serialize + Send;

    /// Handles one message. An error rolls everything back; see [`HandlerError`] for what happens
    /// then.
    fn handle(
        &self,
        cx: &Context<'_>,
        message: Self::Message,
    ) -> impl Future<Output = Result<Outcome<Self::Reply>, HandlerError>> + Send;

    /// Whether [`Handler::handle_set`] is written too. Default: no.
    const TAKES_SETS: bool = false;

    /// Handles many messages at once, with a statement or two for all of them; used only where
    /// [`Handler::TAKES_SETS`] says so, by [`Inbox::run_batch`](crate::Inbox::run_batch) and
    /// [`Consumer::batch`](crate::Consumer::batch).
    ///
    /// Most of what a small message costs in a batch are the round trips of its own statements: one
    /// INSERT of 64 rows takes a fraction of the time of 64 of them. Messages of one ordering key
    /// stand in their order, and no key occurs twice.
    ///
    /// Returns an outcome for each message, in the same order. Only [`Outcome::Done`] and
    /// [`Outcome::Reject`] can be shared: after any other outcome, an error, a panic, a missing
    /// outcome or more time than the handler's limit, the writes of the set are rolled back and
    /// each message goes to [`Handler::handle`] by itself. So both must have the same effects.
    ///
    /// ```
    /// use oncebox_inbox::{Context, Handler, HandlerError, Outcome, Set};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Order { customer: i64, cents: i64 }
    ///
    /// struct Charge;
    ///
    /// impl Handler for Charge {
    ///     type Message = Order;
    ///     type Reply = ();
    ///
    ///     async fn handle(&self, cx: &Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
    ///         let sql = "INSERT INTO charge (customer, cents) VALUES ($1, $2)";
    ///         cx.transaction().execute(sql, &[&order.customer, &order.cents]).await?;
    ///         Ok(Outcome::done(()))
    ///     }
    ///
    ///     const TAKES_SETS: bool = true;
    ///
    ///     async fn handle_set(&self, set: Set<'_, Order>) -> Result<Vec<Outcome<()>>, HandlerError> {
    ///         let customers: Vec<i64> = set.messages().map(|order| order.customer).collect();
    ///         let cents: Vec<i64> = set.messages().map(|order| order.cents).collect();
    ///         let sql = "INSERT INTO charge (customer, cents) SELECT * FROM unnest($1::bigint[], $2::bigint[])";
    ///         set.transaction().execute(sql, &[&customers, &cents]).await?;
    ///         Ok(set.messages().map(|_| Outcome::done(())).collect())
    ///     }
    /// }
    /// ```
    fn handle_set(
        &self,
        set: Set<'_, Self::Message>,
    ) -> impl Future<Output = Result<Vec<Outcome<Self::Reply>>, HandlerError>> + Send {
        drop(set);
        async { Err(HandlerError::message("TAKES_SETS is true, but handle_set is not written")) }
    }
}

/// What a handler knows about the message it handles, and the transaction it writes through.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) transaction: &'a Transaction,
    pub(crate) key: &'a Key,
    pub(crate) tenant: &'a str,
    pub(crate) received: &'a Received,
    pub(crate) locks: EntityLocks<'a>,
    pub(crate) deferred: &'a Deferred,
}

impl<'a> Context<'a> {
    /// The transaction that the key is claimed in. The inbox commits it, or rolls it back. Do not
    /// send COMMIT, ROLLBACK or CLOSE ALL: the message would fail.
    ///
    /// It has the methods of deadpool's client, such as `prepare_cached`, and those of
    /// `tokio_postgres::Client`. To survive the failure of a statement, put a `SAVEPOINT` before it
    /// and roll back to it.
    #[must_use]
    pub fn transaction(&self) -> &'a Transaction {
        self.transaction
    }

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

    /// Like [`Context::defer`], for a statement that is not prepared, as [behind a
    /// pooler](crate::Builder::behind_pooler); it takes the same arguments as `execute_typed`.
    ///
    /// # Errors
    /// The errors of [`Context::defer`].
    pub fn defer_typed(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<(), HandlerError> {
        let (values, types): (Vec<_>, Vec<_>) = parameters.iter().cloned().unzip();
        self.deferred.push(Deferrable::Text(sql.to_owned(), types), &values)
    }

    /// Takes the locks of these entities until the transaction ends; nobody else has any of them
    /// meanwhile, in no process.
    ///
    /// Name every entity in one call: the locks are taken in one order everywhere, so that two
    /// handlers that name the same ones in any order wait for one another, never in a circle. Locks
    /// of several calls can meet in a circle; PostgreSQL then fails one of the transactions, and
    /// its handler runs again.
    ///
    /// Names are up to 255 bytes each, up to 64 of them, and mean the same in every scope and to
    /// every tenant of this database, since a charge and a refund work on one account: put the kind
    /// of entity in front, `account:1`, and the tenant, where equal names are different entities. A
    /// lock is not taken on rows: whoever does not ask for it, works on. Code outside of handlers
    /// asks with [`lock`](crate::lock()).
    ///
    /// Lock first, then read: what was read before may have changed while the handler waited.
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
        self.locks.take(self.transaction, names).await
    }

    /// The message's key. Derive the keys of further messages from it: `cx.key().step("ship")`.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
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

/// How a handler ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome<R> {
    /// The effect is complete: commit it, answer duplicates with the reply.
    Done(R),
    /// The business says no: commit what was written, answer duplicates with the same no.
    Reject(R),
    /// Roll back and run again after this time; counts as an attempt.
    Retry(Duration),
    /// Roll back and run again after this time, for a reason that is not the message's fault, such
    /// as a system that the handler needs and that is away. Unlike [`Outcome::Retry`] it is no
    /// attempt: however often a message is snoozed, that brings it no nearer to the delivery limit.
    /// What ends it is [`Builder::snooze_max`](crate::Builder::snooze_max): a message that is
    /// snoozed for longer in all becomes a dead letter.
    ///
    /// The pause is 100 milliseconds to 1 hour; others are brought within. Meanwhile the message is
    /// with JetStream, as one of those that
    /// [`Consumer::max_ack_pending`](crate::Consumer::max_ack_pending) allows; where it has an
    /// ordering key it is held, and those behind it wait.
    ///
    /// Each snooze is counted as `snoozed` in the metrics and noted in a row of `inbox_snooze`,
    /// with the reason: no secrets, please. The numbers of deliveries that
    /// [`Received::delivery_count`](crate::Received::delivery_count) tells include snoozed ones.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use oncebox_inbox::{HandlerError, Outcome};
    ///
    /// # async fn ledger_is_open() -> bool { true }
    /// async fn book() -> Result<Outcome<()>, HandlerError> {
    ///     if !ledger_is_open().await {
    ///         return Ok(Outcome::snooze(Duration::from_secs(30), "the ledger is closed"));
    ///     }
    ///     Ok(Outcome::done(()))
    /// }
    /// ```
    Snooze {
        /// The pause.
        after: Duration,
        /// The reason, for the log: the thing that the message waits for.
        reason: String,
    },
    /// Roll back and give the message up for good, with this reason; it becomes a dead letter.
    Dead(String),
}

impl<R> Outcome<R> {
    /// The effect is complete.
    pub fn done(reply: R) -> Self {
        Self::Done(reply)
    }

    /// The business says no; committed and replayed like a reply.
    pub fn reject(reply: R) -> Self {
        Self::Reject(reply)
    }

    /// Roll back and run again after this time, until the delivery limit.
    #[must_use]
    pub fn retry(after: Duration) -> Self {
        Self::Retry(after)
    }

    /// Roll back and run again after this time, without counting this as an attempt; see
    /// [`Outcome::Snooze`].
    pub fn snooze(after: Duration, reason: impl Into<String>) -> Self {
        Self::Snooze { after, reason: reason.into() }
    }

    /// Roll back and give the message up. The reason is stored with the dead letter: no secrets,
    /// please.
    pub fn dead(reason: impl Into<String>) -> Self {
        Self::Dead(reason.into())
    }
}

/// A committed outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer<R> {
    /// The effect was complete.
    Done(R),
    /// The business said no.
    Rejected(R),
}

/// How the inbox dealt with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict<R> {
    /// The handler ran and its effect is committed.
    Handled(Answer<R>),
    /// A duplicate: the handler did not run, this is what it said the first time.
    Replayed(StoredAnswer),
    /// A duplicate: another copy is being worked on right now. Ask again later.
    InFlight,
    /// The key was used before with another payload. Recorded as a dead letter; the stored outcome
    /// is untouched.
    Mismatch,
    /// No effect; run again after this time.
    Retry {
        /// How long to wait, from [`Outcome::Retry`], [`Outcome::Snooze`] or the backoff.
        after: Duration,
        /// Why.
        reason: String,
    },
    /// Not run: in [`Inbox::run_batch`](crate::Inbox::run_batch), an earlier message of its
    /// ordering key had no effect. Run it again after that one.
    Behind,
    /// Given up for good and recorded as a dead letter, now or earlier.
    Dead {
        /// Why.
        reason: String,
    },
}
