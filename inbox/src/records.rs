//! The records of messages beside their keys: attempts, snoozes, dead letters.

mod attempts;
pub(crate) mod dead_letters;
mod snoozes;

use std::sync::Arc;

use oncebox_claims::database::Database;

pub(crate) use attempts::name as copy_name;
pub(crate) use dead_letters::headers_json;
pub(crate) use snoozes::{SNOOZE, SnoozeRecord};

/// The statements, as this schema has them.
#[derive(Debug)]
pub(crate) struct Records {
    database: Arc<Database>,
    attempts: attempts::Statements,
    dead_letters: dead_letters::Statements,
    snoozes: snoozes::Statements,
}

impl Records {
    pub(crate) fn new(database: Arc<Database>) -> Self {
        let schema = database.schema();
        Self {
            attempts: attempts::Statements::new(schema),
            dead_letters: dead_letters::Statements::new(schema),
            snoozes: snoozes::Statements::new(schema),
            database,
        }
    }
}

/// Counts and sequences of NATS are far below 2^63.
pub(crate) fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
