//! Run a message handler once per key, in one transaction with its own writes.
//!
//! A broker delivers at least once. [`Inbox::run`] therefore claims the message's key in the
//! transaction that the handler writes through, and stores the handler's outcome in it: either the
//! effect, the key and the outcome are committed together, or none of them. A duplicate finds the
//! key and is answered from the stored outcome, without the handler. [`Consumer`] does this for the
//! messages of a JetStream stream, acknowledging each after its commit. If your messages come from
//! elsewhere, more than one at a time, give them to [`Inbox::run_each`].
//!
//! # Promises and limits
//!
//! - Effects written through [`Context::transaction`] happen once per (scope, tenant, key), after
//!   any crash.
//! - A duplicate that arrives while the first copy is worked on is answered at once as in flight;
//!   it does not wait.
//! - The same key with another payload is never answered from the stored outcome; it becomes a dead
//!   letter.
//! - If a handler keeps failing, or a message cannot be read or keeps killing the process, the
//!   inbox stores the whole message and the reason in the table `dead_letter`, instead of an
//!   endless redelivery.
//! - Not promised: effects outside this database, unless that other system takes the derived key
//!   ([`MessageContext::key`]`.step(..)`) as its own idempotency key, or the handler is a
//!   [`LeasedHandler`].
//!
//! # Effects outside the database
//!
//! A card cannot be charged in a transaction. [`Leased`] claims the key first, under a lease that
//! is renewed while the [`LeasedHandler`] runs, and remembers each [`Effect`] before and after it
//! is called: if the process dies, its successor knows the effects that happened, and asks the
//! provider about those that may have happened. A [`Consumer`] feeds it.
//!
//! [`Order`] describes the promises about the order of messages.
//!
//! # Beyond the key
//!
//! - Two different messages about one entity have different keys, and run at once:
//!   [`Context::lock`] makes one wait for the other, [`Context::update_version`] lets the one that
//!   was too late run again.
//! - One effect that is asked for under different keys: [`natural`].
//! - Very many copies of one key at once: `Gate`, in Redis (feature `redis`).
//! - The effect of an inbox on a service that works without one: [`Builder::shadow`].
//! - Whether a handler keeps its side of the bargain: the crate `oncebox-testkit` kills it at every
//!   statement.
//!
//! # Example
//!
//! ```
//! use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Outcome};
//! use serde::{Deserialize, Serialize};
//! use tokio_util::sync::CancellationToken;
//!
//! #[derive(Deserialize)]
//! struct Order { customer: i64, cents: i64 }
//! #[derive(Serialize, Deserialize)]
//! struct Receipt { charge: i64 }
//!
//! struct Charge;
//! impl Handler for Charge {
//!     type Message = Order;
//!     type Reply = Receipt;
//!
//!     async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<Receipt>, HandlerError> {
//!         if order.cents <= 0 {
//!             return Ok(Outcome::dead("an order costs something"));
//!         }
//!         let sql = "INSERT INTO charge (customer, cents) VALUES ($1, $2) RETURNING id";
//!         let row = cx.transaction().query_one(sql, &[&order.customer, &order.cents]).await?;
//!         Ok(Outcome::done(Receipt { charge: row.get(0) }))
//!     }
//! }
//!
//! async fn consume(
//!     pool: deadpool_postgres::Pool,
//!     jetstream: async_nats::jetstream::Context,
//!     shutdown: CancellationToken,
//! ) -> Result<(), oncebox_inbox::Error> {
//!     let inbox = Inbox::builder(pool).scope("payment-service:charge").single_tenant().build()?;
//!     Consumer::new(jetstream, "ORDERS", "payment")
//!         .filter_subject("orders.placed")
//!         .concurrency(16)
//!         .run(inbox, Charge, shutdown)
//!         .await
//! }
//! ```

#![cfg_attr(not(feature = "nats"), allow(dead_code, reason = "only the consumer uses it"))]

mod builder;
mod cloud_event;
#[cfg(feature = "nats")]
mod consumer;
mod counts;
mod decode;
mod disposition;
mod duplicate;
mod effect_time;
#[cfg(feature = "redis")]
mod gate;
mod handler;
mod identity;
mod inbox;
mod leased;
mod metrics;
mod received;
mod recording;
mod runner;
mod settings;
mod source;
mod trace;

pub use builder::Builder;
pub use cloud_event::CloudEvent;
#[cfg(feature = "nats")]
pub use consumer::{Backlog, BehindDead, Consumer, Order, Runs, dead_letter_id};
pub use counts::Counts;
pub use decode::{Decode, DecodeError};
pub use disposition::Disposition;
#[cfg(feature = "redis")]
pub use gate::Gate;
pub use handler::{
    Answer, Context, Exclusive, Handler, HandlerFn, MessageContext, Outcome, Set, StoredAnswer, Verdict,
    handler_fn, one_version,
};
pub use identity::{Extractor, KeySource, Part};
pub use inbox::Inbox;
pub use leased::{Leased, LeasedBuilder, LeasedContext, LeasedHandler};
#[doc(hidden)]
pub use oncebox_claims::lock_through;
/// The parts of `oncebox-claims` that handlers and programs need.
pub use oncebox_claims::{
    Error, HandlerError, InvalidSettings, LockError,
    database::TokioPostgres,
    leased::{
        Call, CallError, Effect, EffectError, InFlight, Lease, ProviderIdempotent, ReadyEffect, Reconcile,
        Reconciled,
    },
    limits::IsolationLevel,
    lock,
    metrics::{LeaseCounts, Measure, Measured, metrics_text},
    natural,
};
/// The transaction of a handler over tokio-postgres, and the trait of drivers.
pub use oncebox_schema::{Cause, Driver, Transaction};
pub use received::{Origin, Received};
pub use source::Source;
