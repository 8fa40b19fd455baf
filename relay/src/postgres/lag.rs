//! The lag, for metrics and readiness, at the same cost for any backlog.

use std::sync::Arc;

use tokio_postgres::Row;

use super::Store;
use crate::{
    delivery::lag::{DelayedCount, FinishedSagas, LaneLag, ParkedCount, SagaCount, Standing},
    error::StoreError,
};

/// Kinds of sagas, of one type, version and state, that a scrape looks at.
const KINDS_MAX: i32 = 1_000;

impl Store {
    pub(crate) async fn lag(self: &Arc<Self>) -> Result<Standing, StoreError> {
        let session = self.session().await?;
        session.begin().await?;
        // All in one round trip: while the processor is full, each costs more than the statements.
        let (rows, parked, delayed, sagas, finished) = tokio::join!(
            session.query("read the lag", &self.sql.lag, &[]),
            session.query("count parked messages", &self.sql.parked, &[]),
            session.query("count delayed messages", &self.sql.delayed, &[]),
            session.query("count sagas", &self.sql.sagas, &[&KINDS_MAX]),
            session.query("count sagas that finished", &self.sql.finished_sagas, &[]),
        );
        // In this order: the first error says why, the others only that the transaction is aborted.
        let (rows, parked, delayed, sagas, finished) = (rows?, parked?, delayed?, sagas?, finished?);
        let lanes = rows
            .iter()
            .map(|row| LaneLag {
                lane: row.get("lane"),
                lag_seconds: row.get("lag_seconds"),
                backlog_messages: row.get("backlog_messages"),
            })
            .collect();
        let parked = parked.first().map_or(ParkedCount::default(), |row| ParkedCount {
            parked: row.get("parked"),
            dead: row.get("dead"),
            replays: row.get("replays"),
            losses: row.get("losses"),
        });
        let delayed = delayed.first().map(delayed_count).unwrap_or_default();
        let sagas = sagas
            .iter()
            .map(|row| SagaCount {
                saga_type: row.get("type"),
                state: row.get("state"),
                sagas: row.get("sagas"),
                oldest_seconds: row.get("oldest_seconds"),
            })
            .collect();
        let finished = finished.iter().map(|row| FinishedSagas {
            saga_type: row.get("type"),
            state: row.get("state"),
            sagas: row.get("sagas"),
        });
        let finished_sagas = finished.collect();
        session.rollback().await?;
        Ok(Standing { lanes, parked, delayed, sagas, finished_sagas })
    }
}

/// Of a row of `delayed.sql`.
#[must_use]
pub fn delayed_count(row: &Row) -> DelayedCount {
    DelayedCount { messages: row.get("messages"), late_seconds: row.get("late_seconds") }
}
