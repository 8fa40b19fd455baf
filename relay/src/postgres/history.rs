//! Table `history`: see `0024_history.sql`.

use std::{sync::Arc, time::SystemTime};

use oncebox_connect::postgres::Parameter;

use super::Store;
use crate::{
    delivery::{Standing, minute::Counts},
    error::StoreError,
};

/// Inboxes in which the messages of a sample are looked for, one for each scope and tenant.
const INBOXES_MAX: i32 = 64;

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
        let parameters: [&dyn Parameter; 3] = [&keys, &times, &INBOXES_MAX];
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
