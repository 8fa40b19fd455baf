//! The lag, for metrics and readiness, at the same cost for any backlog.

use std::sync::Arc;

use tokio_postgres::Row;

use super::{Store, expectations::expectation};
use crate::{
    delivery::{
        Standing,
        lag::{DelayedCount, FinishedSagas, InboxStatus, LaneLag, ParkedCount, SagaCount},
    },
    error::StoreError,
};

/// Kinds of sagas, of one type, version and state, that a scrape looks at.
const KINDS_MAX: i32 = 1_000;
/// Inboxes that a scrape looks at.
const INBOXES_MAX: i64 = 1_000;
/// Inboxes that a scrape names; the others have one series together.
const INBOXES_NAMED_MAX: i64 = 100;

impl Store {
    pub(crate) async fn lag(self: &Arc<Self>) -> Result<Standing, StoreError> {
        let session = self.begin().await?;
        // All in one round trip: while the processor is full, each costs more than the statements.
        let (rows, parked, delayed, sagas, finished, inboxes, expected) = tokio::join!(
            session.query("read the lag", &self.log.reading().0.lag, &[]),
            session.query("count parked messages", &self.sql.parked, &[]),
            session.query("count delayed messages", &self.sql.delayed, &[]),
            session.query("count sagas", &self.sql.sagas, &[&KINDS_MAX]),
            session.query("count sagas that finished", &self.sql.finished_sagas, &[]),
            session.query("count failing messages", &self.sql.inboxes, &[&INBOXES_MAX, &INBOXES_NAMED_MAX]),
            session.query("count unhandled messages", &self.sql.expectations, &[]),
        );
        // In this order: the first error says why, the others only that the transaction is aborted.
        let (rows, parked, delayed, sagas, finished, inboxes, expected) =
            (rows?, parked?, delayed?, sagas?, finished?, inboxes?, expected?);
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
            pauses: row.get("pauses"),
            turn_late_seconds: row.get("turn_late_seconds"),
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
        let inboxes = inboxes.iter().map(inbox_status).collect();
        let expectations = expected.iter().map(expectation).collect();
        session.rollback().await?;
        Ok(Standing { lanes, parked, delayed, sagas, finished_sagas, inboxes, expectations })
    }
}

/// Of a row of `delayed.sql`.
#[must_use]
pub fn delayed_count(row: &Row) -> DelayedCount {
    DelayedCount { messages: row.get("messages"), late_seconds: row.get("late_seconds") }
}

/// Of a row of `inboxes.sql`.
#[must_use]
pub fn inbox_status(row: &Row) -> InboxStatus {
    InboxStatus {
        scope: row.get("scope"),
        failing: row.get("failing"),
        failing_oldest_seconds: row.get("failing_oldest_seconds"),
        dead: row.get("dead"),
        snoozed: row.get("snoozed"),
        is_capped: row.get("is_capped"),
        reason: row.get("reason"),
    }
}
