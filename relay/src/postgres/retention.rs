//! The statements of maintenance: milestones, retention, and messages that wait for nothing.

use std::{sync::Arc, time::Duration};

use oncebox_connect::postgres::Parameter;
use tokio_postgres::{Row, error::SqlState};

use super::{Store, session::Session};
use crate::error::StoreError;

/// Messages that one transaction looks at, at most.
const BATCH: i64 = 1_000;
/// Rows that one transaction looks at, at most, where it seldom finds anything.
const LOOK: i32 = 20_000;
/// Notes that one transaction deletes, at most.
const NOTES: i32 = 10_000;
/// After this time a relay that was not seen is forgotten.
const FORGOTTEN_SECONDS: f64 = 3_600.0;
/// A relay that was seen so recently is one of the fleet: twice the time after which each says
/// again that it is there.
const PRESENT_SECONDS: f64 = 180.0;

/// How far one batch in a lane came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Messages released.
    pub(crate) messages: u64,
    /// Where the next batch goes on; `None` when this was the last.
    pub(crate) next: Option<i64>,
}

/// A look into a segment of a restored database, before it is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    /// Messages that were written below the floor of their lane after the restore, and perhaps
    /// never sent: they are set aside now, and sent.
    pub(crate) unsent: u64,
    /// The highest id of them.
    pub(crate) unsent_id: Option<i64>,
}

/// New messages get ids that cursors have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct LowIds {
    /// The last id that was drawn.
    pub stood_at: i64,
    /// How far ids must have come at least.
    pub needed: i64,
}

/// Ids that stood too low are raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepairedIds {
    pub(crate) stood_at: i64,
    pub(crate) raised_to: i64,
    /// Messages that cursors had passed and that are sent now.
    pub(crate) set_aside: i64,
}

impl Store {
    /// Writes down where cursors stand that have moved, at most once per `interval`; returns the
    /// lanes, or `None` when another relay maintains just now.
    pub(crate) async fn reach(self: &Arc<Self>, interval: Duration) -> Result<Option<Vec<i16>>, StoreError> {
        let Some(session) = self.claim_maintenance().await? else { return Ok(None) };
        let rows = session.query("reach milestones", &self.sql.reach, &[&interval.as_secs_f64()]).await?;
        session.query_and_commit("thin receipts", &self.sql.thin_receipts, &[]).await?;
        Ok(Some(rows.iter().map(|row| row.get(0)).collect()))
    }

    /// Notes which segments of the log hold nothing that is due.
    pub(crate) async fn drain_segments(self: &Arc<Self>) -> Result<(), StoreError> {
        let what = "look which segments are drained";
        if self.maintain(what, &self.sql.drain_segments, &[]).await?.is_none() {
            return Ok(());
        }
        self.log.note_check();
        Ok(())
    }

    /// Empties the oldest segment of the log that is past retention; `None` when there is none, or
    /// another relay maintains just now. Returns about how many messages went: exactly up to a
    /// million.
    pub(crate) async fn empty_segment(
        self: &Arc<Self>,
        retention: Duration,
    ) -> Result<Option<u64>, StoreError> {
        let seconds = retention.as_secs_f64();
        let rows = self.maintain("empty a segment", &self.sql.empty_segment, &[&seconds]).await?;
        let row = rows.as_ref().and_then(|rows| rows.first());
        Ok(row.map(|row| row.get::<_, i64>("messages").unsigned_abs()))
    }

    /// Looks into the segment that is to be emptied next; `None` when there is nothing to look at,
    /// or no more, or another relay maintains just now.
    pub(crate) async fn find_unsent(
        self: &Arc<Self>,
        retention: Duration,
    ) -> Result<Option<Looked>, StoreError> {
        let parameters: [&dyn Parameter; 2] = [&retention.as_secs_f64(), &LOOK];
        let rows = self.maintain("look for messages never sent", &self.sql.find_unsent, &parameters).await?;
        Ok(rows.as_ref().and_then(|rows| rows.first()).map(|row| Looked {
            unsent: row.get::<_, i64>("unsent").unsigned_abs(),
            unsent_id: row.get("unsent_id"),
        }))
    }

    /// Deletes the notes about messages that are gone, and their receipts; whether there are more
    /// notes.
    pub(crate) async fn forget(self: &Arc<Self>, retention: Duration) -> Result<bool, StoreError> {
        let Some(session) = self.claim_maintenance().await? else { return Ok(false) };
        let rows = session.query("forget emptied messages", &self.sql.forget_emptied, &[&NOTES]).await?;
        session.query_and_commit("forget milestones", &self.sql.forget, &[&retention.as_secs_f64()]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    /// Ends the turn of the log, if it has taken `span`; returns why it cannot. Producers wait for
    /// it for the given time at most, once in `pause`.
    pub(crate) async fn end_turn(
        self: &Arc<Self>,
        span: Duration,
        wait: Duration,
        pause: Duration,
    ) -> Result<Option<String>, StoreError> {
        let wait = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        let parameters: [&dyn Parameter; 3] = [&span.as_secs_f64(), &wait, &pause.as_secs_f64()];
        let rows = self.maintain("end the turn of the log", &self.sql.end_turn, &parameters).await?;
        Ok(rows.as_ref().and_then(|rows| rows.first()).and_then(|row| row.get(0)))
    }

    /// Whether new messages get ids that cursors have passed.
    pub(crate) async fn low_ids(self: &Arc<Self>) -> Result<Option<LowIds>, StoreError> {
        let rows = self.ask("compare ids with cursors", &self.sql.ids, &[]).await?;
        Ok(rows.first().map(|row| LowIds { stood_at: row.get(0), needed: row.get(1) }))
    }

    /// Raises them, and has the messages enqueued with such ids sent; `None` when another relay was
    /// faster.
    pub(crate) async fn repair_ids(self: &Arc<Self>) -> Result<Option<RepairedIds>, StoreError> {
        let rows = self.ask("raise the ids of new messages", &self.sql.repair_ids, &[]).await?;
        let repaired = |row: &Row| {
            let stood_at = row.get::<_, Option<i64>>(0)?;
            Some(RepairedIds { stood_at, raised_to: row.get(1), set_aside: row.get(2) })
        };
        Ok(rows.first().and_then(repaired))
    }

    /// Has messages looked at that wait for dead ones of a lane; `None` when another relay has the
    /// lane for a long time.
    pub(crate) async fn release_behind_dead(
        self: &Arc<Self>,
        lane: i16,
        after: i64,
    ) -> Result<Option<Progress>, StoreError> {
        let Some(session) = self.claim_lane(lane).await? else { return Ok(None) };
        let parameters: [&dyn Parameter; 3] = [&lane, &after, &BATCH];
        let rows =
            session.query_and_commit("release messages", &self.sql.release_behind_dead, &parameters).await?;
        let progress = rows.first().map(|row| Progress {
            messages: row.get::<_, i64>("released").unsigned_abs(),
            next: row.get::<_, Option<i64>>("last_id").filter(|_| row.get("is_full")),
        });
        Ok(progress)
    }

    /// Lanes with messages that wait with others of which none is tried, and the obstacle that they
    /// wait for.
    pub(crate) async fn unprobed(self: &Arc<Self>) -> Result<Vec<(i16, String)>, StoreError> {
        let rows = self.ask("find waiting messages", &self.sql.unprobed, &[&BATCH]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Makes messages due that were set aside while the clock was ahead; returns how many.
    pub(crate) async fn hasten(self: &Arc<Self>) -> Result<u64, StoreError> {
        let session = self.begin().await?;
        let hastened = session.execute("hasten messages", &self.sql.hasten, &[&BATCH]).await?;
        session.commit().await?;
        Ok(hastened)
    }

    /// Forgets a batch of the rows that operators discarded more than a day ago.
    pub(crate) async fn forget_kept(self: &Arc<Self>) -> Result<(), StoreError> {
        self.ask("forget what operators discarded", &self.sql.forget_kept, &[]).await.map(drop)
    }

    /// Has one of those messages tried, unless another relay has the lane for a long time; returns
    /// how many that is.
    pub(crate) async fn probe(self: &Arc<Self>, lane: i16, waits_for: &str) -> Result<u64, StoreError> {
        let Some(session) = self.claim_lane(lane).await? else { return Ok(0) };
        let released = session.release_waiting(&[(lane, waits_for, 1)]).await?;
        session.commit().await?;
        Ok(released)
    }

    /// Writes down that this relay is at work, and its settings; returns its id, and notes how many
    /// relays there are.
    pub(crate) async fn register(
        self: &Arc<Self>,
        retention: Option<Duration>,
        dead_blocks: bool,
    ) -> Result<(), StoreError> {
        let retention = retention.map(|retention| retention.as_secs_f64());
        let parameters: [&dyn Parameter; 5] =
            [&self.relay(), &retention, &dead_blocks, &FORGOTTEN_SECONDS, &PRESENT_SECONDS];
        let rows = self.ask("register the relay", &self.sql.register, &parameters).await?;
        let relays = rows.first().map_or(0, |row| row.get::<_, i64>(1));
        self.fleet.note_relays(usize::try_from(relays).unwrap_or_default());
        Ok(())
    }

    /// A relay has drained, or has slept.
    pub(crate) async fn unregister(self: &Arc<Self>, id: &str) -> Result<(), StoreError> {
        self.ask("take the relay off the list", &self.sql.unregister, &[&id]).await.map(drop)
    }

    /// A transaction that has a lane to itself; `None` when it could not be had in time.
    async fn claim_lane(self: &Arc<Self>, lane: i16) -> Result<Option<Session>, StoreError> {
        let session = self.begin().await?;
        match session.query("claim a lane", &self.sql.claim_lane, &[&lane]).await {
            Ok(_) => Ok(Some(session)),
            Err(StoreError::Statement(_, source)) if source.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                session.rollback().await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes down why a step of maintenance failed, for the doctor.
    pub(crate) async fn note_fault(self: &Arc<Self>, step: &str, reason: &str) -> Result<(), StoreError> {
        self.ask("note a fault of maintenance", &self.sql.note_fault, &[&step, &reason]).await.map(drop)
    }

    /// A step works again; `None` for all.
    pub(crate) async fn forget_faults(self: &Arc<Self>, step: Option<&str>) -> Result<(), StoreError> {
        self.ask("forget faults of maintenance", &self.sql.forget_faults, &[&step]).await.map(drop)
    }

    /// Runs a statement in a transaction that has the maintenance to itself; `None` when another
    /// relay maintains just now.
    async fn maintain(
        self: &Arc<Self>,
        what: &'static str,
        sql: &str,
        parameters: &[&(dyn Parameter + '_)],
    ) -> Result<Option<Vec<Row>>, StoreError> {
        let Some(session) = self.claim_maintenance().await? else { return Ok(None) };
        session.query_and_commit(what, sql, parameters).await.map(Some)
    }

    async fn claim_maintenance(self: &Arc<Self>) -> Result<Option<Session>, StoreError> {
        let session = self.begin().await?;
        if session.query("claim the maintenance", &self.sql.claim_maintenance, &[]).await?.is_empty() {
            session.rollback().await?;
            return Ok(None);
        }
        Ok(Some(session))
    }
}
