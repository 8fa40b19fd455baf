//! The handler of messages: its trait, its context, its outcomes.

mod context;
mod function;
mod set;
mod stored_answer;
mod version;

use std::{future::Future, time::Duration};

use oncebox_claims::database::TokioPostgres;
use oncebox_schema::Driver;
use serde::Serialize;

use crate::{Decode, HandlerError};

pub(crate) use context::TransactionOf;
pub use context::{Context, Exclusive, MessageContext};
pub use function::{HandlerFn, handler_fn};
pub use set::Set;
pub use stored_answer::StoredAnswer;
pub use version::one_version;

/// Handles the messages of one scope.
///
/// The handler writes through [`Context::transaction`] and [`MessageContext::defer`] only. Its
/// writes are committed together with the key, or not at all. It may run more than once for a
/// message, never with a lasting effect more than once.
///
/// `D` is the client library of PostgreSQL: tokio-postgres unless you say otherwise. The crates
/// `oncebox-sqlx`, `oncebox-sea-orm` and `oncebox-diesel` bring the others.
pub trait Handler<D: Driver = TokioPostgres>: Send + Sync {
    /// The message that it takes: a type that serde can deserialise from JSON, or one that
    /// implements [`Decode`].
    type Message: Decode + Send;
    /// The reply that answers duplicates; stored as JSON, at most 1 MiB. Use `()` when no caller
    /// asks for it: it costs nothing.
    type Reply: Serialize + Send;

    /// Handles one message. An error rolls everything back; [`HandlerError`] tells the rest.
    fn handle(
        &self,
        cx: Context<'_, D>,
        message: Self::Message,
    ) -> impl Future<Output = Result<Outcome<Self::Reply>, HandlerError>> + Send;

    /// Whether [`Handler::handle_set`] is written too. Default: no.
    const TAKES_SETS: bool = false;

    /// Handles many messages at once, with a statement or two for all of them; used only where
    /// [`Handler::TAKES_SETS`] says so, by [`Inbox::run_batch`](crate::Inbox::run_batch) and
    /// [`Consumer::batch`](crate::Consumer::batch), over tokio-postgres.
    ///
    /// In a batch, most of the cost of a small message are the round trips of its own statements:
    /// one INSERT of 64 rows takes a fraction of the time of 64 of them. Messages of one ordering
    /// key stand in their order, and no key occurs twice.
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
    ///     async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
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

/// How a handler ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome<R> {
    /// The effect is complete: commit it, answer duplicates with the reply.
    Done(R),
    /// The business says no: commit the handler's writes, answer duplicates with the same no.
    Reject(R),
    /// Roll back and run again after this time; counts as an attempt.
    Retry(Duration),
    /// Roll back and run again after this time, for a reason that is not the message's fault, such
    /// as a system that the handler needs and that is away. Unlike [`Outcome::Retry`] it is no
    /// attempt: however often a message is snoozed, that brings it no nearer to the delivery limit.
    /// [`Builder::snooze_max`](crate::Builder::snooze_max) limits it: a message that is snoozed for
    /// longer in all becomes a dead letter.
    ///
    /// The pause is 100 milliseconds to 1 hour; others are brought within. Meanwhile JetStream
    /// keeps the message, and counts it for
    /// [`Consumer::max_ack_pending`](crate::Consumer::max_ack_pending). If it has an ordering key,
    /// the consumer holds it, and the messages after it wait.
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
    /// A duplicate: the handler did not run; it gave this answer the first time.
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
    /// Not run: with strict order, a dead letter of its ordering key is before it. It waits in the
    /// database, and runs once that one was retried or discarded: see [`BehindDead`].
    ///
    /// [`BehindDead`]: https://docs.rs/oncebox-inbox/latest/oncebox_inbox/enum.BehindDead.html
    InLine,
    /// Given up for good and recorded as a dead letter, now or earlier.
    Dead {
        /// Why.
        reason: String,
    },
}
