//! A cheap look whether anything may have become due, so that a relay at rest need not claim lanes
//! to find out.

use std::time::Duration;

use tokio_postgres::SimpleQueryMessage;

use super::{Store, session::Session};
use crate::{delivery::Snapshot, error::StoreError};

/// A connection that nobody has used for so long is closed.
const IDLE_CONNECTION: Duration = Duration::from_secs(5);

impl Store {
    /// The snapshot of now. Nothing is prepared: outside of a transaction nobody checks whose
    /// session a pooler has lent.
    pub(crate) async fn look(&self) -> Result<Snapshot, StoreError> {
        let connection = self.connection().await?;
        look(&connection, &self.sql.look).await
    }

    /// Closes connections that nobody has used for a while.
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
