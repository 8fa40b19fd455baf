//! Handlers that are async closures.

use std::marker::PhantomData;

use oncebox_claims::database::TokioPostgres;
use oncebox_schema::Driver;
use serde::Serialize;

use crate::{Context, Decode, Handler, HandlerError, Outcome};

/// A [`Handler`] that is an async closure; see [`handler_fn`].
pub struct HandlerFn<S, M, R, F, D: Driver = TokioPostgres> {
    state: S,
    run: F,
    types: PhantomData<fn(M, D) -> R>,
}

/// Makes a [`Handler`] of an async closure. The closure captures nothing: it gets `state`, which is
/// shared by all messages.
///
/// ```
/// use oncebox_inbox::{Consumer, Context, HandlerError, Inbox, Outcome, handler_fn};
///
/// #[derive(serde::Deserialize)]
/// struct Order { customer: i64, cents: i64 }
///
/// struct Prices { discount: i64 }
///
/// # async fn example(inbox: Inbox, consumer: Consumer, shutdown: tokio_util::sync::CancellationToken) -> Result<(), oncebox_inbox::Error> {
/// let charge = handler_fn(Prices { discount: 5 }, async |prices: &Prices, cx: Context<'_>, order: Order| {
///     let sql = "INSERT INTO charge (customer, cents) VALUES ($1, $2)";
///     cx.transaction().execute(sql, &[&order.customer, &(order.cents - prices.discount)]).await?;
///     Ok(Outcome::done(()))
/// });
/// consumer.run(inbox, charge, shutdown).await
/// # }
/// ```
pub fn handler_fn<S, M, R, F, D>(state: S, run: F) -> HandlerFn<S, M, R, F, D>
where
    D: Driver,
    // For the types of the closure's parameters.
    F: AsyncFn(&S, Context<'_, D>, M) -> Result<Outcome<R>, HandlerError>,
    // For a future that other threads may run.
    F: for<'a> Run<'a, S, M, R, D>,
{
    HandlerFn { state, run, types: PhantomData }
}

impl<S, M, R, F, D> Handler<D> for HandlerFn<S, M, R, F, D>
where
    S: Send + Sync,
    M: Decode + Send,
    R: Serialize + Send,
    F: for<'a> Run<'a, S, M, R, D>,
    D: Driver,
{
    type Message = M;
    type Reply = R;

    async fn handle(&self, cx: Context<'_, D>, message: M) -> Result<Outcome<R>, HandlerError> {
        self.run.run(&self.state, cx, message).await
    }
}

/// The seal of [`handler_fn`]: an async closure whose future is [`Send`].
pub trait Run<'a, S: 'a, M, R, D: Driver>: Send + Sync {
    #[doc(hidden)]
    fn run(
        &self,
        state: &'a S,
        cx: Context<'a, D>,
        message: M,
    ) -> impl Future<Output = Result<Outcome<R>, HandlerError>> + Send;
}

impl<'a, S, M, R, D, F, Running> Run<'a, S, M, R, D> for F
where
    S: 'a,
    D: Driver,
    F: Fn(&'a S, Context<'a, D>, M) -> Running + Send + Sync,
    Running: Future<Output = Result<Outcome<R>, HandlerError>> + Send,
{
    fn run(
        &self,
        state: &'a S,
        cx: Context<'a, D>,
        message: M,
    ) -> impl Future<Output = Result<Outcome<R>, HandlerError>> + Send {
        self(state, cx, message)
    }
}

impl<S, M, R, F, D: Driver> std::fmt::Debug for HandlerFn<S, M, R, F, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandlerFn").finish_non_exhaustive()
    }
}
