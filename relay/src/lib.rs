//! The relay: carries committed outbox messages from PostgreSQL to NATS JetStream.
//!
//! A message is relayed if and only if its transaction committed, at least once whatever crashes, and in order
//! within its ordering key. Any number of relays share the work through `SKIP LOCKED`, with no leader.
//!
//! The model: the log is cut into lanes; each lane has a cursor, explained in the text of the `cursor` module. A
//! worker's pass is one transaction: claim lanes, read what is due, publish, settle, commit. What a crash leaves
//! unsettled is sent again, under the same `Nats-Msg-Id`.
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

mod backoff;
mod broker;
mod chains;
mod clock;
mod config;
mod cursor;
mod database;
mod decision;
mod denials;
mod doctor;
mod findings;
mod health;
mod http;
mod letters;
mod link;
mod maintenance;
mod message;
mod message_id;
mod metrics;
mod publisher;
mod relay;
mod selection;
mod skew;
mod store;
mod streams;
mod subjects;
mod systemd;
mod tls;
mod traces;
mod wake;
mod window;
mod worker;

pub use broker::{Broker, StreamStatus};
pub use config::{Config, ConfigError, OPTIONS, OptionSpec, Sources, Values, options_document};
pub use doctor::{Diagnosis, Examination, Severity, examine};
pub use findings::Finding;
pub use maintenance::{Maintained, Maintainer};
pub use relay::{Relay, RelayError, connect_postgres, error_chain};
pub use selection::{Aside, AsideSelection, LetterSelection, ReplaySelection, SubjectPattern};
pub use skew::Skew;
pub use store::{
    AsideAction, AsideMessage, AuditRow, BlockedKey, DatabaseFacts, DeadLetter, DeadLetters, Holder,
    InboxFacts, LaneStatus, LowIds, OpenedLetter, Operator, ParkedMessage, ParkedReason, Rates,
    RelaySessions, RelaySettings, Replayed, Stamp, Status, Swept, Trace, TracedInbox, TracedMessage,
    TracedParking, TracedReplay,
};
pub use subjects::RecentSubject;
pub use systemd::{Systemd, SystemdError};
pub use worker::{Claimed, Pass, Published, Settled, Worker};
