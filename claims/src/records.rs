//! The records beside a key: attempts, snoozes, dead letters, and lines that wait for them.

mod attempts;
mod dead_letters;
mod lines;
mod snoozes;

use std::{sync::Arc, time::SystemTime};

use oncebox_schema::{Driver, Value};

use crate::{
    database::{Database, TokioPostgres},
    identity::Identity,
};

pub use attempts::FailedAttempt;
pub use dead_letters::DeadLetter;
pub use lines::{Head, InLine, Place, Waiting};
pub use snoozes::SnoozeRecord;

/// The stream that a message is stored in, and its place there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The name of the stream.
    pub stream: String,
    /// The message's sequence number in the stream; reused when the stream is recreated.
    pub sequence: u64,
    /// When the stream stored the message.
    pub stored_at: SystemTime,
}

/// A message, as its records have it.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The subject.
    pub subject: &'a str,
    /// The headers, of which a name may occur more than once.
    pub headers: &'a [(String, String)],
    /// The payload; that of the Object Store where `is_fetched`.
    pub payload: &'a [u8],
    /// A dead letter leaves the payload in the Object Store, where the headers say; a retry fetches
    /// it.
    pub is_fetched: bool,
    /// Where it is stored, if in a stream.
    pub origin: Option<&'a Origin>,
    /// How often it was delivered, this time included.
    pub deliveries: u64,
    /// Its last run is recorded as begun, and is known to be no attempt.
    pub has_begun: bool,
}

/// The statements, as this schema has them.
#[derive(Debug)]
pub struct Records<D: Driver = TokioPostgres> {
    database: Arc<Database<D>>,
    attempts: attempts::Statements,
    dead_letters: dead_letters::Statements,
    lines: lines::Statements,
    snoozes: snoozes::Statements,
}

impl<D: Driver> Records<D> {
    /// Records in this database.
    #[must_use]
    pub fn new(database: Arc<Database<D>>) -> Self {
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
pub fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A key's name, as the statements take it.
fn name_values<'a>(scope: &'a str, identity: &'a Identity) -> [Value<'a>; 3] {
    [Value::Text(Some(scope)), Value::Text(Some(&identity.tenant)), Value::Text(Some(identity.key.as_str()))]
}

/// A key's name, and which copy of its message it is, as the statements take it.
fn copy_values<'a>(scope: &'a str, identity: &'a Identity, message: Message<'a>) -> [Value<'a>; 6] {
    let [scope, tenant, key] = name_values(scope, identity);
    let [stream, sequence, stored_at] = message.place_values();
    [scope, tenant, key, stream, sequence, stored_at]
}

/// The microseconds since 1970 at which the stream stored a message.
fn stored_at(origin: &Origin) -> i64 {
    let stored = origin.stored_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(stored.as_micros()).unwrap_or(i64::MAX)
}

impl<'a> Message<'a> {
    /// The subject, as the tables take it.
    fn subject(&self) -> String {
        self.subject.replace('\0', "\u{fffd}")
    }

    /// The payload, as a dead letter keeps it.
    #[must_use]
    pub fn kept_payload(&self) -> &'a [u8] {
        if self.is_fetched { &[] } else { self.payload }
    }

    /// The stream, the sequence in it, and when it was stored, as the statements take them.
    fn place_values(&self) -> [Value<'a>; 3] {
        let origin = self.origin;
        [
            Value::Text(origin.map(|origin| origin.stream.as_str())),
            Value::Integer(origin.map(|origin| bigint(origin.sequence))),
            Value::Integer(origin.map(stored_at)),
        ]
    }

    /// Which copy of a message: a stream that is recreated counts from 1 again.
    fn copy_name(&self) -> String {
        let Some(origin) = self.origin else { return String::new() };
        format!("{} {} {}", origin.stream, origin.sequence, stored_at(origin))
    }
}
