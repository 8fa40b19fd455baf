//! Times as texts, and their description.

use std::{borrow::Cow, error::Error, ops::Deref, time::SystemTime};

use oncebox_connect::clock::with_text;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

/// When a message of the log was enqueued: `enqueue` alone checks its columns, and a row may have
/// been changed by hand.
pub(crate) fn enqueued_at(row: &Row) -> SystemTime {
    row.get::<_, Option<SystemTime>>("created_at").unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A time that is serialised and described in UTC, as RFC 3339 writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "it is its time")]
pub struct Time(pub SystemTime);

impl Deref for Time {
    type Target = SystemTime;

    fn deref(&self) -> &SystemTime {
        &self.0
    }
}

impl From<Time> for SystemTime {
    fn from(Time(time): Time) -> Self {
        time
    }
}

impl Serialize for Time {
    /// One that has no such text is the nearest that has.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_micros(with_text(self.0)))
    }
}

impl JsonSchema for Time {
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

impl<'a> FromSql<'a> for Time {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        SystemTime::from_sql(kind, raw).map(Self)
    }

    fn accepts(kind: &Type) -> bool {
        <SystemTime as FromSql<'_>>::accepts(kind)
    }
}

/// A time to the second, for people.
pub(crate) fn text(time: impl Into<SystemTime>) -> String {
    humantime::format_rfc3339_seconds(with_text(time.into())).to_string()
}
