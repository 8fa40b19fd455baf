//! The relay: carries committed outbox messages from PostgreSQL to NATS JetStream.
//!
//! A message is relayed if and only if its transaction committed, at least once whatever crashes,
//! and in order within its ordering key. Any number of relays share the work through `SKIP LOCKED`,
//! with no leader.
//!
//! The model: the log is cut into lanes; each lane has a cursor, explained in the text of the
//! `cursor` module. A worker's pass is one transaction: claim lanes, read what is due, publish,
//! settle, commit. What a crash leaves unsettled is sent again, under the same `Nats-Msg-Id`.
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
mod clock;
mod config;
mod delivery;
mod doctor;
mod error;
mod nats;
mod operator;
mod pass;
mod postgres;
mod relay;
mod serve;
mod telemetry;

pub use clock::{Skew, with_text};
pub use config::{Config, ConfigError, OPTIONS, OptionSpec, OutboxConfig, Sources, Values, options_document};
pub use delivery::{lag::DelayedCount, subjects::RecentSubject};
pub use doctor::{DatabaseFacts, Diagnosis, Examination, InboxFacts, Severity, examine};
pub use error::{PostgresError, RelayError, error_chain};
pub use nats::survey::{StreamStatus, Survey};
pub use operator::{
    ActedOn, AlteredCopy, AuditRow, BlockedKey, DeadLetter, DeadLetterDetails, DeadLetterSelection,
    DeadLetters, DelayedMessage, DelayedSelection, Difference, Finding, Holder, LaneStatus, LossStatus,
    Operator, ParkedAction, ParkedDetails, ParkedKind, ParkedMessage, ParkedReason, ParkedSelection, Rates,
    RelaySessions, RelaySettings, ReplaySelection, Replayed, SAGA_STATES, Saga, SagaAction, SagaDefinition,
    SagaDetails, SagaEvent, SagaGraphStep, SagaProgress, SagaSelection, SagaStep, SagasWaiting, Stamp,
    Status, SubjectPattern, Swept, Trace, TracedInbox, TracedMessage, TracedParking, TracedReplay,
    Verification, VerificationFinding, Verified,
};
pub use pass::{
    Claimed, Pass, Published, Settled,
    maintenance::{Maintained, Maintainer},
    mover::Mover,
    recovery::Recovery,
    worker::Worker,
};
pub use postgres::integrity::Fault;
pub use postgres::{connect::connect_postgres, delayed::Moved, retention::LowIds};
pub use relay::Relay;
pub use serve::systemd::{Systemd, SystemdError};
