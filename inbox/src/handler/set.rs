//! Messages that a handler takes together.

use std::future::Future;

use deadpool_postgres::Transaction;

use crate::{Context, Handler, HandlerError, Outcome};

/// A handler that can also take many messages at once, with a statement or two for all of them.
///
/// Most of what a small message costs in a batch are the round trips of its own statements: one
/// INSERT of 64 rows takes a fraction of the time of 64 of them.
/// [`Inbox::run_sets`](crate::Inbox::run_sets) and
/// [`Consumer::run_sets`](crate::Consumer::run_sets) use this form first. When it fails for
/// whatever reason, its writes are rolled back and each message goes to [`Handler::handle`] by
/// itself: so both must have the same effects.
///
/// ```
/// use oncebox_inbox::{Context, Handler, HandlerError, Outcome, Set, SetHandler};
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
/// }
///
/// impl SetHandler for Charge {
///     async fn handle_set(&self, set: Set<'_, Order>) -> Result<Vec<Outcome<()>>, HandlerError> {
///         let customers: Vec<i64> = set.messages().map(|order| order.customer).collect();
///         let cents: Vec<i64> = set.messages().map(|order| order.cents).collect();
///         let sql = "INSERT INTO charge (customer, cents) SELECT * FROM unnest($1::bigint[], $2::bigint[])";
///         set.transaction().execute(sql, &[&customers, &cents]).await?;
///         Ok(set.messages().map(|_| Outcome::done(())).collect())
///     }
/// }
/// ```
pub trait SetHandler: Handler {
    /// Handles all messages of the set: those of one ordering key stand in their order, and no key
    /// occurs twice.
    ///
    /// Returns an outcome for each, in the same order. Only [`Outcome::Done`] and
    /// [`Outcome::Reject`] can be shared: any other, an error, a panic, a missing outcome or more
    /// time than the handler's limit send each message to [`Handler::handle`].
    fn handle_set(
        &self,
        set: Set<'_, Self::Message>,
    ) -> impl Future<Output = Result<Vec<Outcome<Self::Reply>>, HandlerError>> + Send;
}

/// Messages whose keys are claimed in one transaction: two at least, 64 at most.
#[derive(Debug)]
pub struct Set<'a, M> {
    pub(crate) transaction: &'a Transaction<'a>,
    pub(crate) items: Vec<(Context<'a>, M)>,
}

impl<'a, M> Set<'a, M> {
    /// The transaction that all keys are claimed in, behind a savepoint. It is the inbox that
    /// commits it, or rolls it back.
    #[must_use]
    pub fn transaction(&self) -> &'a Transaction<'a> {
        self.transaction
    }

    /// The decoded messages.
    pub fn messages(&self) -> impl Iterator<Item = &M> {
        self.items.iter().map(|(_, message)| message)
    }

    /// Each message with what is known about it: its key, its tenant, its headers.
    pub fn iter(&self) -> impl Iterator<Item = (&Context<'a>, &M)> {
        self.items.iter().map(|(context, message)| (context, message))
    }

    /// How many there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a set has two messages at least")]
    pub fn len(&self) -> usize {
        self.items.len()
    }
}
