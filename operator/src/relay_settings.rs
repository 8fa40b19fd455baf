//! With which settings the relays of an outbox run: they should all have the same.

use std::time::Duration;

use oncebox_connect::postgres::typed;
use oncebox_schema::SchemaName;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Transaction;

use crate::rows::{from_row, values};

/// A relay that was seen within this time is at work.
const SEEN_SECONDS: f64 = 180.0;

const RELAYS: &str = include_str!("sql/relay_settings.sql");

/// Settings that all relays of an outbox should share.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct RelaySettings {
    /// How many relays have these.
    pub relays: i64,
    /// After how many seconds settled messages are deleted; `None` is never.
    pub retention_seconds: Option<f64>,
    /// Whether a dead message holds back its ordering key (`on-dead`).
    pub dead_blocks: bool,
}

from_row!(RelaySettings: relays, retention_seconds, dead_blocks);

impl RelaySettings {
    /// The differences, when relays do not all have the same.
    pub(crate) fn difference(groups: &[Self]) -> Option<String> {
        let text = |group: &Self| {
            let kept = group
                .retention_seconds
                .map(|kept| Duration::try_from_secs_f64(kept).unwrap_or(Duration::MAX));
            let kept = kept
                .map_or("for ever".to_owned(), |kept| format!("for {}", humantime::format_duration(kept)));
            let on_dead = if group.dead_blocks { "block" } else { "skip" };
            format!("{} with on-dead = {on_dead} that keep settled messages {kept}", group.relays)
        };
        let texts: Vec<String> = groups.iter().map(text).collect();
        (texts.len() > 1).then(|| format!("relays run with different settings: {}", texts.join("; ")))
    }
}

/// The settings of relays that were seen lately.
pub(crate) async fn relay_settings(
    transaction: &Transaction<'_>,
    schema: &SchemaName,
) -> Result<Vec<RelaySettings>, tokio_postgres::Error> {
    let rows = transaction.query_typed(&schema.sql(RELAYS), &typed(&[&SEEN_SECONDS])).await?;
    Ok(values(&rows))
}
