//! The records of messages beside their keys: attempts, snoozes, dead letters.

mod attempts;
pub(crate) mod dead_letters;
mod lines;
mod snoozes;

use std::{sync::Arc, time::SystemTime};

use oncebox_claims::{
    database::{Database, TokioPostgres},
    identity::Identity,
};
use oncebox_schema::{Driver, Value};

use crate::{Origin, Received};

pub(crate) use attempts::FailedAttempt;
#[cfg(feature = "nats")]
pub(crate) use lines::Head;
pub(crate) use lines::Place;
pub(crate) use snoozes::SnoozeRecord;

/// The statements, as this schema has them.
#[derive(Debug)]
pub(crate) struct Records<D: Driver = TokioPostgres> {
    database: Arc<Database<D>>,
    attempts: attempts::Statements,
    dead_letters: dead_letters::Statements,
    lines: lines::Statements,
    snoozes: snoozes::Statements,
}

impl<D: Driver> Records<D> {
    pub(crate) fn new(database: Arc<Database<D>>) -> Self {
        let schema = database.schema();
        Self {
            attempts: attempts::Statements::new(schema),
            dead_letters: dead_letters::Statements::new(schema),
            lines: lines::Statements::new(schema),
            snoozes: snoozes::Statements::new(schema),
            database,
        }
    }
}

/// Counts and sequences of NATS are far below 2^63.
pub(crate) fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A key's name, as the statements take it.
fn name_values<'a>(scope: &'a str, identity: &'a Identity) -> [Value<'a>; 3] {
    [Value::Text(Some(scope)), Value::Text(Some(&identity.tenant)), Value::Text(Some(identity.key.as_str()))]
}

/// The microseconds since 1970 at which the stream stored a message.
fn stored_at(origin: &Origin) -> i64 {
    let stored = origin.stored_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(stored.as_micros()).unwrap_or(i64::MAX)
}

/// The subject of a message, as the tables take it.
fn subject(received: &Received) -> String {
    received.subject().replace('\0', "\u{fffd}")
}

/// Which copy of a message: a stream that is recreated counts from 1 again.
fn copy_name(received: &Received) -> String {
    let Some(origin) = received.origin() else { return String::new() };
    format!("{} {} {}", origin.stream, origin.sequence, stored_at(origin))
}
