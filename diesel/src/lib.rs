//! Enqueue messages, and consume them once per key, in transactions of diesel-async.
//!
//! An [`Inbox`] runs a [`Handler`](oncebox_inbox::Handler) once per key, on a connection of a
//! deadpool pool of diesel-async, and [`Outbox::enqueue`](oncebox_outbox::Outbox::enqueue) takes
//! such a connection with an open transaction. Both make the same promises as over tokio-postgres:
//! it is the same code, with the same SQL statements. Batches and leases need tokio-postgres.
//!
//! # Consuming
//!
//! ```no_run
//! use diesel_async::{AsyncPgConnection, RunQueryDsl, pooled_connection::deadpool::Pool};
//! use oncebox_diesel::{Context, Diesel, Inbox};
//! use oncebox_inbox::{Consumer, Handler, HandlerError, Outcome};
//!
//! diesel::table! {
//!     charge (id) { id -> Text, cents -> BigInt, }
//! }
//!
//! #[derive(serde::Deserialize)]
//! struct Order { order: String, cents: i64 }
//!
//! struct Charge;
//! impl Handler<Diesel> for Charge {
//!     type Message = Order;
//!     type Reply = ();
//!
//!     async fn handle(&self, mut cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
//!         diesel::insert_into(charge::table)
//!             .values((charge::id.eq(order.order), charge::cents.eq(order.cents)))
//!             .execute(cx.transaction())
//!             .await?;
//!         Ok(Outcome::done(()))
//!     }
//! }
//! # use diesel::ExpressionMethods;
//!
//! async fn consume(
//!     pool: Pool<AsyncPgConnection>,
//!     jetstream: async_nats::jetstream::Context,
//!     shutdown: tokio_util::sync::CancellationToken,
//! ) -> Result<(), oncebox_inbox::Error> {
//!     let inbox = Inbox::over(pool).scope("payment-service:charge").single_tenant().build()?;
//!     Consumer::new(jetstream, "ORDERS", "payment").run(inbox, Charge, shutdown).await
//! }
//! ```
//!
//! The pool has as many connections as messages are handled at once. Its `RecyclingMethod` is
//! `Verified` by default, which costs each message a round trip; with `Fast`, a message that gets a
//! connection which was lost is only run again.
//!
//! # Which errors diesel does not distinguish
//!
//! Diesel keeps eight SQLSTATEs of its errors, such as the one for a serialization failure. A
//! deadlock, and a session that an administrator ends, are recognised by the English message of
//! PostgreSQL. Where `lc_messages` is another language, both count as a failed attempt of the
//! handler. Nothing else depends on the language: the database alone decides about each commit.
//! Only an administrator may set it, for the role of the consumer: `ALTER ROLE consumer SET
//! lc_messages = 'C'`.
//!
//! Diesel prepares every statement under a name, so it needs a pooler in transaction mode that
//! supports named statements. `PgBouncer` does from version 1.21 on, with `max_prepared_statements`
//! above 0.
//!
//! # Producing
//!
//! [`Outbox::enqueue`](oncebox_outbox::Outbox::enqueue) takes an `AsyncPgConnection` with an open
//! transaction:
//!
//! ```no_run
//! use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
//! use oncebox_outbox::{Key, Message, Outbox};
//!
//! async fn place(connection: &mut AsyncPgConnection) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let key = Key::root("order-4711")?.step("process-payment")?;
//!     let message = Message::bytes(key, "orders.placed".parse()?, r#"{"order":"4711"}"#);
//!     connection
//!         .transaction(async |connection| {
//!             diesel::sql_query("INSERT INTO orders (id) VALUES ('4711')").execute(connection).await?;
//!             Outbox::default().enqueue(&mut *connection, &message).await?;
//!             Ok(())
//!         })
//!         .await
//! }
//! ```

mod driver;
mod statement;
mod transaction;

use diesel_async::AsyncPgConnection;
pub use driver::{Diesel, Error};
use oncebox_inbox::LockError;
use oncebox_outbox::{OpenTransaction, SchemaName, Through};
pub use transaction::Transaction;

/// A handler's view of its message.
pub type Context<'a> = oncebox_inbox::Context<'a, Diesel>;
/// Runs handlers once per key, over a pool of diesel-async's.
pub type Inbox = oncebox_inbox::Inbox<Diesel>;

impl<'a> OpenTransaction<Diesel> for &'a mut AsyncPgConnection {
    type Asked = Through<'a, Diesel>;

    fn asked(self) -> Through<'a, Diesel> {
        Through(self)
    }
}

impl<'a> OpenTransaction<Diesel> for &'a mut Transaction {
    type Asked = Through<'a, Diesel>;

    fn asked(self) -> Through<'a, Diesel> {
        Through(&mut **self)
    }
}

/// Takes the locks of these entities until the transaction ends, for code outside of handlers: as
/// [`oncebox_inbox::lock`] over tokio-postgres. Without an open transaction the locks are gone at
/// once.
///
/// # Errors
/// As there.
pub async fn lock<N: AsRef<str>>(
    transaction: &mut AsyncPgConnection,
    schema: &SchemaName,
    names: impl IntoIterator<Item = N>,
) -> Result<(), LockError> {
    oncebox_inbox::lock_through::<Diesel, _>(transaction, schema, names).await
}
