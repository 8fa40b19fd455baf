//! The lag, for metrics and readiness, at the same cost for any backlog; and table `history`, which
//! keeps it by the minute: see `0024_history.sql`.

use std::{sync::Arc, time::SystemTime};

use oncebox_connect::postgres::Parameter;
use tokio_postgres::Row;

use super::{Store, expectations::expectation};
use crate::{
    delivery::{
        Standing,
        lag::{DelayedCount, FinishedSagas, InboxStatus, LaneLag, ParkedCount, SagaCount},
        minute::Counts,
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

/// Inboxes in which the messages of a sample are looked for, one for each scope and tenant.
const SAMPLED_INBOXES_MAX: i32 = 64;

/// How long messages took until they were handled in an inbox of this database.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handled {
    sampled: i64,
    handled: i64,
    /// Of half of them, and of 99 in 100, at most.
    seconds: Option<Vec<f64>>,
}

impl Store {
    /// Looks for messages in the inboxes.
    pub(crate) async fn handled(
        self: &Arc<Self>,
        sample: &[(String, SystemTime)],
    ) -> Result<Handled, StoreError> {
        let (keys, times): (Vec<&str>, Vec<SystemTime>) =
            sample.iter().map(|(key, created_at)| (key.as_str(), *created_at)).unzip();
        let parameters: [&dyn Parameter; 3] = [&keys, &times, &SAMPLED_INBOXES_MAX];
        let rows = self.ask("see when messages were handled", &self.sql.handled, &parameters).await?;
        let sampled = i64::try_from(sample.len()).unwrap_or(i64::MAX);
        Ok(rows.first().map_or(Handled::default(), |row| Handled {
            sampled,
            handled: row.get("handled"),
            seconds: row.get("seconds"),
        }))
    }

    /// Writes a row; a leader adds how the database stands.
    pub(crate) async fn note_history(
        self: &Arc<Self>,
        counts: &Counts,
        stands: Option<(&Standing, &Handled)>,
    ) -> Result<(), StoreError> {
        let stored = i64::try_from(counts.stored).unwrap_or(i64::MAX);
        let (median, p99) = (counts.ages.quantile(0.5), counts.ages.quantile(0.99));
        let mut subjects: Vec<(&str, i64)> =
            counts.subjects.iter().map(|(subject, messages)| (subject.as_str(), *messages)).collect();
        subjects.sort_by_key(|(subject, messages)| (subject.is_empty(), -messages));
        let (subjects, messages): (Vec<&str>, Vec<i64>) = subjects.into_iter().unzip();
        let lag = stands
            .map(|(standing, _)| standing.lanes.iter().map(|lane| lane.lag_seconds).fold(0.0, f64::max));
        let held = stands.map(|(standing, _)| held(standing));
        let looked = stands.map(|(_, handled)| vec![handled.sampled, handled.handled]);
        let handled = stands.and_then(|(_, handled)| handled.seconds.clone());
        let parameters: [&dyn Parameter; 13] = [
            &self.relay(),
            &env!("CARGO_PKG_VERSION"),
            &stands.is_some(),
            &counts.since.elapsed().as_secs_f64(),
            &stored,
            &median,
            &p99,
            &subjects,
            &messages,
            &lag,
            &held,
            &looked,
            &handled,
        ];
        self.ask("write down what happened in this minute", &self.sql.note_history, &parameters)
            .await
            .map(drop)
    }
}

/// Messages due, parked, dead, delayed, failing, and dead letters.
fn held(standing: &Standing) -> Vec<i64> {
    let Standing { lanes, parked, delayed, inboxes, .. } = standing;
    vec![
        lanes.iter().map(|lane| lane.backlog_messages).sum(),
        parked.parked,
        parked.dead,
        delayed.messages,
        inboxes.iter().map(|inbox| inbox.failing).sum(),
        inboxes.iter().map(|inbox| inbox.dead).sum(),
    ]
}
