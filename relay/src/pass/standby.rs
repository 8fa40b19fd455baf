//! The standbys: of many relays one is the leader, and the others watch over it.
//!
//! The leader has an advisory lock, which ends with its connection: when it dies, the next one that
//! asks is the leader. One of two relays asks about once a second; each of many asks more
//! rarely, and all together more often. A relay may also hang, be stopped or lose its way to NATS,
//! with its connection open. So standbys look for lanes that nobody serves:
//!
//! | event | reaction of a standby |
//! |---|---|
//! | no transaction has ended | nothing |
//! | one has ended, nothing is due | claims, finds nothing, does nothing until another one ends |
//! | something is due, and a moment later its lane has moved on | nothing: somebody serves it |
//! | something is due, and its lane has not moved | helps for a while, as if it were the leader |
//! | so much is due that one relay takes long | the same |
//!
//! It never matters for safety who works: lanes are locked.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    bounded,
    worker::{Quiet, Worker},
};
use crate::{config::ReadLimits, delivery::Snapshot, error::RelayError, postgres::Wanted};

/// A lane in which something is due that does not move for so long lags.
pub(super) const LAG: Duration = Duration::from_millis(400);
/// So many messages are more than one relay's work.
const BEHIND: i64 = 10_000;
/// However quiet the log is, lanes are looked at so often: parked messages may be due.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// No more is read of a lane that is only looked at.
const ONE: i64 = 1;

impl Worker {
    /// Whether lanes lag, by a snapshot of now.
    pub(super) async fn finds_lag(&mut self, lanes_max: i64, snapshot: Snapshot) -> Result<bool, RelayError> {
        let is_quiet = |quiet: &Quiet| {
            quiet.snapshot.is_same_but(&snapshot, &quiet.own) && quiet.claimed_at.elapsed() < LOOK_EVERY
        };
        if self.quiet.as_ref().is_some_and(is_quiet) || !self.is_connected().await {
            return Ok(false);
        }
        let claimed_at = Instant::now();
        let (due, behind) = self.due_lanes(lanes_max).await?;
        if behind >= BEHIND {
            return Ok(true);
        }
        if due.is_empty() {
            self.quiet = Some(Quiet { snapshot, own: Vec::new(), claimed_at, still_since: claimed_at });
            return Ok(false);
        }
        self.quiet = None;
        sleep(LAG).await;
        let (still_due, _) = self.due_lanes(lanes_max).await?;
        Ok(due.iter().any(|lane| still_due.contains(lane)))
    }

    /// Lanes in which something is due and that nobody has locked, with the numbers of their
    /// cursors; and about how many messages are due, if they are many.
    async fn due_lanes(&mut self, lanes_max: i64) -> Result<(Vec<(i16, i64)>, i64), RelayError> {
        let limits = ReadLimits { messages_max: ONE, bytes_max: ONE, ..self.shared.tuning.read };
        let looking = async {
            let (session, lanes) = self.shared.store.claim(lanes_max, &[], Wanted::Due, limits, 0).await?;
            let behind = session.behind().await?;
            session.rollback().await?;
            Ok((lanes.cursors(), behind))
        };
        let lanes = bounded(looking).await?;
        self.note_answer();
        Ok(lanes)
    }
}
