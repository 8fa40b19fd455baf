//! What metrics and readiness ask of the database, at the same cost for any backlog.

use std::sync::Arc;

use tokio_postgres::Row;

use super::Store;
use crate::{
    delivery::lag::{DelayedCount, LaneLag, ParkedCount},
    error::StoreError,
};

impl Store {
    pub(crate) async fn lag(
        self: &Arc<Self>,
    ) -> Result<(Vec<LaneLag>, ParkedCount, DelayedCount), StoreError> {
        let session = self.session().await?;
        session.begin().await?;
        // All in one round trip: while the processor is full, each costs more than the statements.
        let (rows, parked, delayed) = tokio::try_join!(
            session.query("read the lag", &self.sql.lag, &[]),
            session.query("count parked messages", &self.sql.parked, &[]),
            session.query("count delayed messages", &self.sql.delayed, &[]),
        )?;
        let lanes = rows
            .iter()
            .map(|row| LaneLag {
                lane: row.get("lane"),
                lag_seconds: row.get("lag_seconds"),
                backlog_messages: row.get("backlog_messages"),
            })
            .collect();
        let count = parked.first().map_or(ParkedCount::default(), |row| ParkedCount {
            parked: row.get("parked"),
            dead: row.get("dead"),
            replays: row.get("replays"),
        });
        let delayed = delayed.first().map(delayed_count).unwrap_or_default();
        session.rollback().await?;
        Ok((lanes, count, delayed))
    }
}

/// Of a row of `delayed.sql`.
pub(crate) fn delayed_count(row: &Row) -> DelayedCount {
    DelayedCount { messages: row.get("messages"), late_seconds: row.get("late_seconds") }
}
