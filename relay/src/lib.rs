//! The relay: carries committed outbox messages from PostgreSQL to NATS JetStream.
//!
//! The relay publishes a message if and only if its transaction committed, at least once in spite
//! of crashes, and in order within its ordering key. Any number of relays share the work through
//! `SKIP LOCKED`; one of them, the leader, does it alone while there is little.
//!
//! The model: the log is cut into lanes; each lane has a cursor, explained in the text of the
//! `cursor` module. A worker's pass is one transaction: claim lanes, read the due messages,
//! publish, settle, commit. After a crash another pass sends unsettled messages again, under the
//! same `Nats-Msg-Id`.
//!
//! ```no_run
//! use oncebox_relay::{Config, Relay, Values};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let values = Values::from([
//!     ("database-url", "postgres://oncebox@localhost/orders".to_owned()),
//!     ("nats-url", "nats://localhost:4222".to_owned()),
//! ]);
//! let config = Config::from_values(&values)?;
//! Relay::run(config, async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await?;
//! # Ok(())
//! # }
//! ```

mod delivery;
mod embedded;
pub mod facts;
mod nats;
pub mod parts;
mod pass;
mod postgres;
mod relay;
#[doc(hidden)]
pub mod rules;
mod serve;
mod supervisor;
mod telemetry;

// Named as if they were rooms of this crate, since every room uses them.
use oncebox_connect::{backoff, clock, config, error};

pub use config::{Config, ConfigError, Values};
pub use embedded::{Embedded, Watch};
pub use error::RelayError;
pub use relay::Relay;
pub use serve::http::{Probed, serve_probes};
pub use serve::systemd::{Systemd, SystemdError};
pub use supervisor::Supervisor;
