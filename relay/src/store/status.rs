//! What metrics and readiness ask of the database, at the same cost for any backlog.

use std::sync::Arc;

use super::{Store, StoreError};

/// How far a lane is behind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LaneLag {
    pub(crate) lane: i16,
    /// Age of the oldest message due, 0 when nothing is.
    pub(crate) lag_seconds: f64,
    /// Messages due; exact up to 10,000 in all lanes together, estimated above.
    pub(crate) backlog_messages: i64,
}

/// Messages set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParkedCount {
    pub(crate) parked: i64,
    pub(crate) dead: i64,
    /// Replays still to be sent.
    pub(crate) replays: i64,
}

impl Store {
    pub(crate) async fn lag(self: &Arc<Self>) -> Result<(Vec<LaneLag>, ParkedCount), StoreError> {
        let session = self.session().await?;
        session.begin().await?;
        // Both in one round trip: while the processor is full, each costs more than the statements.
        let (rows, parked) = tokio::try_join!(
            session.query("read the lag", &self.sql.lag, &[]),
            session.query("count parked messages", &self.sql.parked, &[]),
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
        session.rollback().await?;
        Ok((lanes, count))
    }
}
