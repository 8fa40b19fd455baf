//! A cheap look whether anything may have become due, so that a relay at rest need not claim lanes
//! to find out; whether an outbox has work at all, and the note that its relay sleeps: see
//! `pass/idle.rs`.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio_postgres::SimpleQueryMessage;

use super::{Store, session::Session};
use crate::{delivery::Snapshot, error::StoreError};

/// A connection that was not used for this time is closed.
const IDLE_CONNECTION: Duration = Duration::from_secs(5);

impl Store {
    /// The snapshot of now. Nothing is prepared: outside of a transaction no statement checks whose
    /// session a pooler has lent.
    pub(crate) async fn look(&self) -> Result<Snapshot, StoreError> {
        let connection = self.connection().await?;
        look(&connection, &self.sql.look).await
    }

    /// Closes connections that were not used for a while.
    pub(crate) fn close_idle(&self) {
        drop(self.pool.retain(|_, metrics| metrics.last_used() < IDLE_CONNECTION));
    }
}

impl Session {
    /// The snapshot that the next statement of this transaction sees.
    pub(crate) async fn look(&self) -> Result<Snapshot, StoreError> {
        look(self.open(), &self.store.sql.look).await
    }
}

async fn look(client: &tokio_postgres::Client, sql: &str) -> Result<Snapshot, StoreError> {
    let answers = client.simple_query(sql).await;
    let answers = answers.map_err(|source| StoreError::Statement("look at the log", source))?;
    let snapshot = answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0).and_then(Snapshot::parse),
        _ => None,
    });
    Ok(snapshot.expect("PostgreSQL answers with a snapshot"))
}

/// The answer of one look.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Standstill {
    /// Where the ids stand: the sequence, and the newest message or cursor.
    pub(crate) ids: (i64, i64),
    /// A transaction that has enqueued is open.
    pub(crate) is_enqueuing: bool,
    /// The time until the next message or pause is due; zero when it is.
    pub(crate) next_due: Option<Duration>,
    /// The name of the database.
    pub(crate) database: String,
}

impl Store {
    /// Looks whether there is work, or soon will be.
    pub(crate) async fn look_for_work(self: &Arc<Self>) -> Result<Standstill, StoreError> {
        let rows = self.ask("look for work", &self.sql.idle, &[]).await?;
        let row = rows.first().expect("message_ids has one row");
        let next = row.get::<_, Option<f64>>("next_seconds");
        Ok(Standstill {
            ids: (row.get("stood_at"), row.get("needed")),
            is_enqueuing: row.get("is_enqueuing"),
            // Infinite, or too long for a duration: not in our time.
            next_due: next.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok()),
            database: row.get("database"),
        })
    }

    /// Notes that this relay sleeps for that time at most; returns the ids of all known relays.
    pub(crate) async fn fall_asleep(
        self: &Arc<Self>,
        at_most: Duration,
    ) -> Result<HashSet<String>, StoreError> {
        let seconds = at_most.as_secs_f64();
        let rows =
            self.ask("note that the relay sleeps", &self.sql.fall_asleep, &[&self.relay(), &seconds]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}
