//! The backlog that is drained: enqueued once through the API, then copied for every run.
//!
//! Each run gets a copy of the database, so all drain the same rows from the same state. The copy
//! lies in the operating system's cache, not in PostgreSQL's: a backlog that has waited is cold
//! there. Before it is copied the backlog is vacuumed and analysed, which autovacuum does after
//! that number of inserts.

use anyhow::{Context, ensure};
use bytes::Bytes;

use crate::servers::Servers;

/// The size of a payload, in bytes.
pub(crate) const PAYLOAD_BYTES: usize = 256;
const TRANSACTION_MESSAGES: usize = 1_000;

/// Whether messages share ordering keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ordering {
    None,
    Keys(u32),
}

/// A database full of messages that no relay has seen, and the same messages in memory.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// No session stays connected to it: it is a template.
    pub(crate) database: String,
    pub(crate) messages: Vec<Message>,
}

/// A message as the relay must publish it.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) subject: String,
    pub(crate) payload: Bytes,
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) ordering_key: Option<String>,
    pub(crate) time: String,
}

impl Backlog {
    pub(crate) async fn fill(servers: &Servers, messages: usize, ordering: Ordering) -> anyhow::Result<Self> {
        let database = servers.migrated().await?;
        Self::fill_into(servers, database, messages, ordering).await
    }

    /// Fills a database that has, if any, only messages that are parked.
    pub(crate) async fn fill_into(
        servers: &Servers,
        database: String,
        messages: usize,
        ordering: Ordering,
    ) -> anyhow::Result<Self> {
        Self::add(servers, &database, messages, ordering).await?;
        Self::load(servers, database, messages).await
    }

    /// Reads the messages that were enqueued in a database.
    pub(crate) async fn load(servers: &Servers, database: String, messages: usize) -> anyhow::Result<Self> {
        let session = servers.session(&database).await?;
        let loaded = session.query(&servers.schema.sql(include_str!("sql/load.sql")), &[]).await?;
        let loaded: Vec<Message> = loaded
            .iter()
            .map(|row| Message {
                subject: row.get("subject"),
                payload: Bytes::copy_from_slice(row.get("payload")),
                key: row.get("key"),
                id: row.get("id"),
                ordering_key: row.get("ordering_key"),
                time: row.get("time"),
            })
            .collect();
        ensure!(loaded.len() == messages, "the backlog has {} messages, not {messages}", loaded.len());
        Ok(Self { database, messages: loaded })
    }

    /// Enqueues a number of further messages, and keeps none of them in memory.
    pub(crate) async fn add(
        servers: &Servers,
        database: &str,
        messages: usize,
        ordering: Ordering,
    ) -> anyhow::Result<()> {
        let session = servers.session(database).await?;
        let fill = session.prepare(&servers.schema.sql(include_str!("sql/fill.sql"))).await?;
        let ordering_keys = match ordering {
            Ordering::None => None,
            Ordering::Keys(keys) => Some(i64::from(keys)),
        };
        let payload_bytes = i32::try_from(PAYLOAD_BYTES)?;
        for first in (1..=messages).step_by(TRANSACTION_MESSAGES) {
            let last = messages.min(first + TRANSACTION_MESSAGES - 1);
            let range = (i64::try_from(first)?, i64::try_from(last)?);
            session
                .execute(&fill, &[&range.0, &range.1, &ordering_keys, &payload_bytes])
                .await
                .context("enqueue the backlog")?;
        }
        session.batch_execute("VACUUM (ANALYZE)").await?;
        Ok(())
    }
}
