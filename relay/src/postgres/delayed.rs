//! Delayed messages: the move of those that are due into the log.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use oncebox_connect::postgres::Parameter;

use super::Store;
use crate::error::StoreError;

/// Messages that one transaction moves, at most.
const BATCH: i32 = 2_000;
/// Payload that one transaction moves, at most, rounded up to a whole message.
const BATCH_BYTES: i64 = 16 * 1024 * 1024;

/// The result of one batch of moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// Messages that are in the log now.
    pub messages: u64,
    /// More are due, perhaps: go again at once.
    pub more: bool,
    /// In how long the next message is due, as far as is known.
    pub next_due: Option<Duration>,
}

/// The last delayed message that was looked at: its time and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DelayedPlace {
    not_before: SystemTime,
    id: i64,
}

impl Default for DelayedPlace {
    /// Before all of them.
    fn default() -> Self {
        Self { not_before: SystemTime::UNIX_EPOCH, id: 0 }
    }
}

impl Store {
    /// Moves a batch of the delayed messages that are due, after a place; returns where to go on.
    /// Nothing when another relay is at it.
    pub(crate) async fn move_delayed(
        self: &Arc<Self>,
        after: DelayedPlace,
    ) -> Result<(Moved, Option<DelayedPlace>), StoreError> {
        if after == DelayedPlace::default() {
            let next_due = self.next_delayed().await?;
            if next_due.is_none_or(|seconds| seconds > 0.0) {
                return Ok((Moved { next_due: next_due.map(from_seconds), ..Moved::default() }, None));
            }
        }
        let parameters: [&dyn Parameter; 4] = [&BATCH, &BATCH_BYTES, &after.not_before, &after.id];
        let rows = self.ask("move delayed messages", &self.sql.move_delayed, &parameters).await?;
        let Some(row) = rows.first().filter(|row| row.get::<_, Option<i64>>("moved").is_some()) else {
            return Ok((Moved::default(), None));
        };
        let place = row
            .get::<_, Option<SystemTime>>("last_time")
            .map(|not_before| DelayedPlace { not_before, id: row.get("last_id") });
        let next = row.get::<_, Option<f64>>("next_seconds");
        let moved = Moved {
            messages: row.get::<_, i64>("moved").unsigned_abs(),
            // Fewer than a full batch may have been looked at because they are large.
            more: place.is_some(),
            next_due: next.map(from_seconds),
        };
        Ok((moved, place))
    }

    async fn next_delayed(&self) -> Result<Option<f64>, StoreError> {
        let connection = self.connection().await?;
        let rows = connection.query_typed(&self.sql.next_delayed, &[]).await;
        let rows = rows.map_err(|source| StoreError::Statement("look for delayed messages", source))?;
        Ok(rows.first().map(|row| row.get("seconds")))
    }
}

fn from_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
