//! Where the outbox is: the part of the configuration that every command needs.

use std::time::Duration;

use oncebox_schema::SchemaName;

use super::{ConfigError, Database, Sources, TIMES, database, reader::Reader, time};

/// The database and the schema of an outbox, for commands that talk to PostgreSQL alone.
#[derive(Clone, Debug)]
pub struct OutboxConfig {
    /// The database.
    pub database: Database,
    /// The schema in it.
    pub schema: SchemaName,
    /// `None`: settled messages are kept for ever.
    pub retention: Option<Duration>,
    pub(super) log_json: bool,
}

impl OutboxConfig {
    /// Checks the options that concern the database; the others are not looked at.
    ///
    /// # Errors
    /// All mistakes at once, none of which shows a secret.
    pub fn from_sources(sources: &Sources) -> Result<Self, ConfigError> {
        let mut read = Reader { sources, mistakes: sources.mistakes.clone(), weaknesses: Vec::new() };
        let config = Self {
            database: database::database(&mut read),
            schema: read.parsed("schema", schema).unwrap_or_default(),
            retention: read.parsed("retention", retention).flatten(),
            log_json: read.parsed("log-format", log_json).unwrap_or_default(),
        };
        if read.mistakes.is_empty() { Ok(config) } else { Err(ConfigError(read.mistakes)) }
    }

    /// Hosts and database, with no secret, for errors and logs.
    #[must_use]
    pub fn postgres_target(&self) -> String {
        self.database.target()
    }

    /// The PostgreSQL schema of the outbox.
    #[must_use]
    pub fn schema(&self) -> &SchemaName {
        &self.schema
    }

    /// How long settled messages are kept; `None` is for ever.
    #[must_use]
    pub fn retention(&self) -> Option<Duration> {
        self.retention
    }

    /// Whether log lines are JSON objects.
    #[must_use]
    pub fn log_json(&self) -> bool {
        self.log_json
    }
}

pub(super) fn schema(text: &str) -> Result<SchemaName, String> {
    text.parse().map_err(|error| format!("{error}"))
}

pub(super) fn log_json(text: &str) -> Result<bool, String> {
    match text {
        "text" => Ok(false),
        "json" => Ok(true),
        _ => Err(format!("{text:?} is neither \"text\" nor \"json\"")),
    }
}

pub(super) fn retention(text: &str) -> Result<Option<Duration>, String> {
    if text == "forever" {
        return Ok(None);
    }
    // 0 means "for ever" in some programs and "not at all" in others, so it is refused like the
    // rest.
    time(text)
        .map(Some)
        .ok_or_else(|| format!("{text:?} is neither a time {TIMES}, such as 36h or 7d, nor \"forever\""))
}
