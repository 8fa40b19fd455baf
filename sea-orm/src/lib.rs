//! Enqueue messages, and consume them once per key, in transactions of `SeaORM`.
//!
//! An [`Inbox`] runs a [`Handler`](oncebox_inbox::Handler) once per key, in a transaction of
//! `SeaORM`, and [`Outbox::enqueue`](oncebox_outbox::Outbox::enqueue) takes one. Both make the
//! same promises as over tokio-postgres: it is the same code, with the same SQL statements. Batches
//! and leases need tokio-postgres.
//!
//! # Consuming
//!
//! ```no_run
//! use oncebox_inbox::{Consumer, Handler, HandlerError, Outcome};
//! use oncebox_sea_orm::{Context, Inbox, SeaOrm};
//! use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, Statement};
//!
//! #[derive(serde::Deserialize)]
//! struct Order { order: String, cents: i64 }
//!
//! struct Charge;
//! impl Handler<SeaOrm> for Charge {
//!     type Message = Order;
//!     type Reply = ();
//!
//!     async fn handle(&self, mut cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
//!         let sql = "INSERT INTO charge (id, cents) VALUES ($1, $2)";
//!         let values = [order.order.into(), order.cents.into()];
//!         let charge = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
//!         cx.transaction().execute_raw(charge).await?;   // an entity's insert(cx.transaction()) as well
//!         Ok(Outcome::done(()))
//!     }
//! }
//!
//! async fn consume(
//!     connection: DatabaseConnection,
//!     jetstream: async_nats::jetstream::Context,
//!     shutdown: tokio_util::sync::CancellationToken,
//! ) -> Result<(), oncebox_inbox::Error> {
//!     let inbox = Inbox::over(connection).scope("payment-service:charge").single_tenant().build()?;
//!     Consumer::new(jetstream, "ORDERS", "payment").run(inbox, Charge, shutdown).await
//! }
//! ```
//!
//! The pool has as many connections as messages are handled at once. `SeaORM` cannot send BEGIN
//! with transaction modes, so setting them costs each message one more round trip than with sqlx.
//! The option `test_before_acquire`, on by default, costs another one.
//!
//! `SeaORM` prepares every statement. With a pooler in transaction mode that does not support
//! prepared statements, switch that off in the pool: `map_sqlx_postgres_opts(|options|
//! options.statement_cache_capacity(0))`.
//!
//! # Producing
//!
//! [`Outbox::enqueue`](oncebox_outbox::Outbox::enqueue) takes a transaction of `SeaORM`:
//!
//! ```no_run
//! use oncebox_outbox::{Key, Message, Outbox};
//! use sea_orm::{ConnectionTrait, DatabaseConnection, TransactionTrait};
//!
//! async fn place(connection: &DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut transaction = connection.begin().await?;
//!     transaction.execute_unprepared("INSERT INTO orders (id) VALUES ('4711')").await?;
//!     let key = Key::root("order-4711")?.step("process-payment")?;
//!     let message = Message::bytes(key, "orders.placed".parse()?, r#"{"order":"4711"}"#);
//!     Outbox::default().enqueue(&mut transaction, &message).await?;
//!     transaction.commit().await?;
//!     Ok(())
//! }
//! ```

mod driver;

pub use driver::SeaOrm;
use oncebox_inbox::LockError;
use oncebox_outbox::{OpenTransaction, SchemaName, Through};
use sea_orm::DatabaseTransaction;

/// A handler's view of its message.
pub type Context<'a> = oncebox_inbox::Context<'a, SeaOrm>;
/// Runs handlers once per key, over a connection of `SeaORM`.
pub type Inbox = oncebox_inbox::Inbox<SeaOrm>;

impl<'a> OpenTransaction<SeaOrm> for &'a mut DatabaseTransaction {
    type Asked = Through<'a, SeaOrm>;

    fn asked(self) -> Through<'a, SeaOrm> {
        Through(self)
    }
}

/// Takes the locks of these entities until the transaction ends, for code outside of handlers: as
/// [`oncebox_inbox::lock`] over tokio-postgres.
///
/// # Errors
/// As there.
pub async fn lock<N: AsRef<str>>(
    transaction: &mut DatabaseTransaction,
    schema: &SchemaName,
    names: impl IntoIterator<Item = N>,
) -> Result<(), LockError> {
    oncebox_inbox::lock_through::<SeaOrm, _>(transaction, schema, names).await
}
