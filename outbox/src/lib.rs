//! Enqueue messages inside the caller's PostgreSQL transaction.
//!
//! The message is a row that is written by the same transaction as the business rows it tells
//! about: both are committed, or neither. The relay carries committed messages to NATS JetStream,
//! at least once; the inbox of the consumer makes that an effect once.
//!
//! ```no_run
//! use oncebox_outbox::{Key, Message, Outbox};
//!
//! #[derive(serde::Serialize)]
//! struct OrderPlaced { order: i64, cents: i64 }
//!
//! # async fn place(pool: deadpool_postgres::Pool, request_key: &str) -> Result<(), Box<dyn std::error::Error>> {
//! let outbox = Outbox::default();
//! let mut client = pool.get().await?;
//! let transaction = client.transaction().await?;
//! let row = transaction.query_one("INSERT INTO orders (cents) VALUES (995) RETURNING id", &[]).await?;
//! let order = row.get("id");
//!
//! let key = Key::root(request_key)?.step("process-payment")?;   // the same on every retry of the request
//! let message = Message::json(key, "orders.placed".parse()?, &OrderPlaced { order, cents: 995 })?
//!     .ordering_key(format!("order:{order}"))
//!     .header("tenant", "acme")?;
//! outbox.enqueue(&transaction, &message).await?;
//! transaction.commit().await?;                                   // the message exists from here on
//! # Ok(()) }
//! ```
//!
//! # Promises
//!
//! - The message is relayed if and only if the transaction commits. [`Outbox::enqueue`] therefore
//!   takes a transaction and nothing else, see [`OpenTransaction`].
//! - Enqueuing the very same message again is no error and does nothing. The same key with another
//!   subject or payload is [`Error::Conflict`].
//! - Messages with one ordering key reach the stream in the order in which they were enqueued,
//!   provided that the transactions which enqueue them serialise, say on the row of the entity they
//!   are about. Without such a lock there is no order to keep.
//!
//! # Delayed messages
//!
//! [`Message::not_before`] and [`Message::delayed_by`] hold a message back until its time has come,
//! by the database's clock; a relay then moves it into the log, where it is an ordinary message,
//! after all messages in the log by then. [`Outbox::cancel_delayed`] gives it up in a transaction
//! of yours. See `docs/delayed-messages.md`.
//!
//! # Relays that sleep
//!
//! Beside a database that is suspended when it has no client, a relay may sleep (`sleep_after`).
//! With the feature `nats`, `wake` sends it a hint after your COMMIT, so that it sends the message
//! at once.
//!
//! # Tracing
//!
//! With the feature `opentelemetry` (on by default) a message gets `traceparent` and `tracestate`
//! from the current span when an OpenTelemetry layer is installed, so that the consumer's work
//! appears in the producer's trace. The layer must come from the same version of
//! `tracing-opentelemetry` as this crate's, else there is no context to be seen. A message that has
//! a header `traceparent` already keeps its own.

mod delayed;
mod due;
mod error;
mod message;
mod outbox;
mod trace;
#[cfg(feature = "nats")]
mod wake;

pub use delayed::Delayed;
pub use error::Error;
pub use message::Message;
pub use oncebox_schema::{
    Driver, InTransaction, InvalidSubject, Key, KeyError, SchemaName, Subject, VersionError,
};
#[doc(hidden)]
pub use outbox::{Ask, Direct, Through};
pub use outbox::{OpenTransaction, Outbox};
#[cfg(feature = "nats")]
pub use wake::wake;
