//! Enqueue messages, and consume them once per key, in transactions of sqlx.
//!
//! An [`Inbox`] runs a [`Handler`](oncebox_inbox::Handler) once per key, in a transaction of sqlx,
//! and [`Outbox::enqueue`](oncebox_outbox::Outbox::enqueue) takes one. Both make the same promises
//! as over tokio-postgres: it is the same code, with the same SQL statements. Batches and leases
//! need tokio-postgres.
//!
//! # Consuming
//!
//! ```no_run
//! use oncebox_inbox::{Consumer, Handler, HandlerError, Outcome};
//! use oncebox_sqlx::{Context, Inbox, Sqlx};
//!
//! #[derive(serde::Deserialize)]
//! struct Order { order: String, cents: i64 }
//!
//! struct Charge;
//! impl Handler<Sqlx> for Charge {
//!     type Message = Order;
//!     type Reply = ();
//!
//!     async fn handle(&self, mut cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
//!         let charge = sqlx::query("INSERT INTO charge (id, cents) VALUES ($1, $2)");
//!         charge.bind(order.order).bind(order.cents).execute(&mut **cx.transaction()).await?;
//!         Ok(Outcome::done(()))
//!     }
//! }
//!
//! async fn consume(
//!     pool: sqlx::PgPool,
//!     jetstream: async_nats::jetstream::Context,
//!     shutdown: tokio_util::sync::CancellationToken,
//! ) -> Result<(), oncebox_inbox::Error> {
//!     let inbox = Inbox::over(pool).scope("payment-service:charge").single_tenant().build()?;
//!     Consumer::new(jetstream, "ORDERS", "payment").run(inbox, Charge, shutdown).await
//! }
//! ```
//!
//! The pool has as many connections as messages are handled at once. Its option
//! `test_before_acquire`, on by default, costs each message a round trip. Without it, a message
//! that gets a connection which was lost is only run again. A connection whose network drops
//! packets silently stays in the pool until TCP gives up, so set TCP keepalives and
//! `tcp_user_timeout` on the host, or on the server, or give the pool an `after_release` that pings
//! with a deadline and fails when it passes; the message is run again on another connection.
//!
//! # Producing
//!
//! [`Outbox::enqueue`](oncebox_outbox::Outbox::enqueue) takes a transaction of sqlx:
//!
//! ```no_run
//! use oncebox_outbox::{Key, Message, Outbox};
//!
//! async fn place(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut transaction = pool.begin().await?;
//!     sqlx::query("INSERT INTO orders (id) VALUES ('4711')").execute(&mut *transaction).await?;
//!     let key = Key::root("order-4711")?.step("process-payment")?;
//!     let message = Message::bytes(key, "orders.placed".parse()?, r#"{"order":"4711"}"#);
//!     Outbox::default().enqueue(&mut transaction, &message).await?;
//!     transaction.commit().await?;
//!     Ok(())
//! }
//! ```

mod driver;

pub use driver::Sqlx;
#[doc(hidden)]
pub use driver::columns;
use oncebox_inbox::LockError;
use oncebox_outbox::{OpenTransaction, SchemaName, Through};

/// The transaction that handlers write through.
pub type Transaction = sqlx::Transaction<'static, sqlx::Postgres>;
/// A handler's view of its message.
pub type Context<'a> = oncebox_inbox::Context<'a, Sqlx>;
/// Runs handlers once per key, over a pool of sqlx.
pub type Inbox = oncebox_inbox::Inbox<Sqlx>;

impl<'a> OpenTransaction<Sqlx> for &'a mut sqlx::Transaction<'_, sqlx::Postgres> {
    type Asked = Through<'a, Sqlx>;

    fn asked(self) -> Through<'a, Sqlx> {
        Through(&mut **self)
    }
}

/// Takes the locks of these entities until the transaction ends, for code outside of handlers: as
/// [`oncebox_inbox::lock`] over tokio-postgres.
///
/// # Errors
/// As there.
pub async fn lock<N: AsRef<str>>(
    transaction: &mut sqlx::Transaction<'_, sqlx::Postgres>,
    schema: &SchemaName,
    names: impl IntoIterator<Item = N>,
) -> Result<(), LockError> {
    oncebox_inbox::lock_through::<Sqlx, _>(transaction, schema, names).await
}
