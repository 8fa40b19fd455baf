//! Times as texts, and what a description of them says.

use std::{borrow::Cow, time::SystemTime};

use oncebox_connect::clock::with_text;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serializer;
use tokio_postgres::Row;

/// When a message of the log was enqueued: `enqueue` alone checks its columns, and a row may have
/// been changed by hand.
pub(crate) fn enqueued_at(row: &Row) -> SystemTime {
    row.get::<_, Option<SystemTime>>("created_at").unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A time in UTC, as RFC 3339 writes it: `#[serde(with = "Rfc3339")]` serialises and describes one.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a name for serde, with no value")]
pub struct Rfc3339;

/// The same, or null.
#[derive(Debug)]
pub(crate) struct Rfc3339Option;

impl Rfc3339 {
    /// Writes a time; one that has no such text is the nearest that has.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_micros(with_text(*time)))
    }
}

impl JsonSchema for Rfc3339 {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

impl Rfc3339Option {
    pub(crate) fn serialize<S: Serializer>(
        time: &Option<SystemTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => Rfc3339::serialize(time, serializer),
            None => serializer.serialize_none(),
        }
    }
}

impl JsonSchema for Rfc3339Option {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OptionalTime".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Option::<Rfc3339>::json_schema(generator)
    }
}

/// A time to the second, for people.
pub(crate) fn text(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(with_text(time)).to_string()
}
