//! The outbox's tables, and its copies in streams, as relays judge them: for operators' commands,
//! which must come to the same conclusion; and how both send a dead letter back.

pub use crate::{
    delivery::{
        cause::remedy,
        copy::{Content, Copy},
        lag::{DelayedCount, Expectation, InboxStatus},
        letter::Letter,
        subjects::{any_expression, covers, expression},
    },
    nats::objects::has_object,
    postgres::{
        expectations::expectation,
        integrity::{Explained, Fault, faults},
        lag::{delayed_count, inbox_status},
        retention::LowIds,
    },
};

/// Statements that relays and commands both run; each file says its parameters and its rows.
pub mod sql {
    /// How far each lane lags; `{log}` is the table of the log to look into, `log` for all of its
    /// segments.
    pub const LAG: &str = include_str!("postgres/sql/lag.sql");
    /// How many messages are set aside.
    pub const PARKED: &str = include_str!("postgres/sql/parked.sql");
    /// How many messages wait for their time: see [`delayed_count`](super::delayed_count).
    pub const DELAYED: &str = include_str!("postgres/sql/delayed.sql");
    /// How many sagas are in each state.
    pub const SAGAS: &str = include_str!("postgres/sql/sagas.sql");
    /// How many messages of each inbox are failing, dead and snoozed.
    pub const INBOXES: &str = include_str!("postgres/sql/inboxes.sql");
    /// The expectations, and the messages that each misses: see
    /// [`expectation`](super::expectation).
    pub const EXPECTATIONS: &str = include_str!("postgres/sql/expectations.sql");
    /// Which outbox it is.
    pub const OUTBOX: &str = include_str!("postgres/sql/outbox.sql");
    /// Whether new messages get ids that cursors have passed: see [`LowIds`](super::LowIds).
    pub const IDS: &str = include_str!("postgres/sql/ids.sql");
    /// Wakes those that listen.
    pub const NOTIFY: &str = include_str!("postgres/sql/notify.sql");
}
