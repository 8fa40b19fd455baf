//! What maintenance asks of the database: milestones, retention, and ordering keys that wait for nothing.

use std::{sync::Arc, time::Duration};

use super::{Session, Store, StoreError, parameter::Parameter};

/// Messages that one transaction looks at, at most.
pub(super) const BATCH: i64 = 1_000;
/// Payload that one transaction deletes, at most, rounded up to a whole message: large ones are stored in many pieces.
pub(super) const BATCH_BYTES: i64 = 16 * 1024 * 1024;

/// After so long a relay that was not seen is forgotten.
const FORGOTTEN_SECONDS: f64 = 3_600.0;

/// How far one batch in a lane came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Messages deleted or released.
    pub(crate) messages: u64,
    /// Where the next batch goes on; `None` when this was the last.
    pub(crate) next: Option<i64>,
    /// The milestone that retention used.
    pub(crate) milestone: Option<i64>,
}

impl Progress {
    pub(super) fn new(messages: i64, is_full: bool, last_id: Option<i64>, milestone: Option<i64>) -> Self {
        Self { messages: messages.unsigned_abs(), next: last_id.filter(|_| is_full), milestone }
    }
}

impl Store {
    /// Writes down where cursors stand that have moved, at most once per `interval`; returns the lanes, or `None` when
    /// another relay maintains just now.
    pub(crate) async fn reach(self: &Arc<Self>, interval: Duration) -> Result<Option<Vec<i16>>, StoreError> {
        let Some(session) = self.maintain().await? else { return Ok(None) };
        let rows = session.query("reach milestones", &self.sql.reach, &[&interval.as_secs_f64()]).await?;
        session.commit().await?;
        Ok(Some(rows.iter().map(|row| row.get(0)).collect()))
    }

    /// Deletes a batch of messages of a lane that were settled longer ago than `retention`; `None` when another relay
    /// maintains just now.
    pub(crate) async fn prune(
        self: &Arc<Self>,
        lane: i16,
        after: i64,
        retention: Duration,
        finished: i64,
    ) -> Result<Option<Progress>, StoreError> {
        let Some(session) = self.maintain().await? else { return Ok(None) };
        let seconds = retention.as_secs_f64();
        let parameters: [&dyn Parameter; 7] =
            [&lane, &after, &seconds, &BATCH, &BATCH_BYTES, &finished, &false];
        let rows = session.query("prune messages", &self.sql.prune, &parameters).await?;
        let progress = rows.first().map(|row| {
            Progress::new(row.get("pruned"), row.get("is_full"), row.get("last_id"), row.get("number"))
        });
        if let Some(Progress { next: None, milestone: Some(number), .. }) = progress {
            session.query("forget milestones", &self.sql.forget, &[&lane, &number]).await?;
        }
        session.commit().await?;
        Ok(progress)
    }

    /// Has messages looked at that wait behind dead ones of a lane; `None` when a pass has the lane.
    pub(crate) async fn release_behind_dead(
        self: &Arc<Self>,
        lane: i16,
        after: i64,
    ) -> Result<Option<Progress>, StoreError> {
        let session = self.session().await?;
        session.begin().await?;
        if session.query("claim a lane", &self.sql.claim_lane, &[&lane]).await?.is_empty() {
            session.rollback().await?;
            return Ok(None);
        }
        let parameters: [&dyn Parameter; 3] = [&lane, &after, &BATCH];
        let rows = session.query("release messages", &self.sql.release_behind_dead, &parameters).await?;
        let progress = rows
            .first()
            .map(|row| Progress::new(row.get("released"), row.get("is_full"), row.get("last_id"), None));
        session.commit().await?;
        Ok(progress)
    }

    /// Writes down that this relay is at work, and its settings; returns its id.
    pub(crate) async fn register(
        self: &Arc<Self>,
        id: Option<&str>,
        retention: Option<Duration>,
        dead_blocks: bool,
    ) -> Result<Option<String>, StoreError> {
        let session = self.session().await?;
        session.begin().await?;
        let retention = retention.map(|retention| retention.as_secs_f64());
        let parameters: [&dyn Parameter; 4] = [&id, &retention, &dead_blocks, &FORGOTTEN_SECONDS];
        let rows = session.query("register the relay", &self.sql.register, &parameters).await?;
        session.commit().await?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    /// A transaction that has the maintenance to itself.
    async fn maintain(self: &Arc<Self>) -> Result<Option<Session>, StoreError> {
        let session = self.session().await?;
        session.begin().await?;
        if session.query("claim the maintenance", &self.sql.claim_maintenance, &[]).await?.is_empty() {
            session.rollback().await?;
            return Ok(None);
        }
        Ok(Some(session))
    }
}
