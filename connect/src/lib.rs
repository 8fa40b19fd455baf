//! The ground that relays and operators' commands stand on: configuration, secrets, TLS,
//! connections to both servers, and errors.
//!
//! A relay and a command with the same configuration reach the same database and the same streams
//! in the same way: hosts in turn, certificates checked alike, a deadline for every wait, and the
//! same errors, each with its remedy.
//!
//! ```
//! use oncebox_connect::config::{Config, Values};
//!
//! let values = Values::from([
//!     ("database-url", "postgres://oncebox@localhost/orders".to_owned()),
//!     ("nats-url", "nats://localhost:4222".to_owned()),
//! ]);
//! assert_eq!(Config::from_values(&values)?.outbox().postgres_target(), "localhost:5432/orders");
//! # Ok::<(), oncebox_connect::config::ConfigError>(())
//! ```

pub mod backoff;
pub mod clock;
pub mod config;
pub mod error;
pub mod http;
pub mod nats;
pub mod postgres;
pub mod words;

pub use oncebox_schema::statements;
