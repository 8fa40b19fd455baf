//! A pass that is made only when it may find something: a cheap look at the log comes first.
//!
//! | event | how the relay notices it |
//! |---|---|
//! | a message is committed after the look, whenever its transaction began, prepared ones too | at the next look its transaction has ended |
//! | it is committed between the look and the claim | the claim sees it, or the next look that its transaction has ended |
//! | it was enqueued before the sleep mark was set, so no NOTIFY was sent | the look that follows the mark after the shortest pause; the mark's own transaction does not count. If that look sees a transaction open, the pauses begin anew |
//! | a wake-up is lost, a lane was locked by a relay that died, a parked message is due | the claim of all lanes, which looks do not prevent |
//!
//! All lanes are claimed every 250 ms, and when a throttle lets messages pass. While no transaction
//! ends anywhere in the server only time can make something due, a parked message: then they are
//! claimed ever more rarely, to once a second.
//!
//! # Standbys
//!
//! Of many relays one is the leader, and the others watch over it.
//!
//! The leader has an advisory lock, which ends with its connection: when it dies, the next one that
//! asks is the leader. One of two relays asks about once a second; each of many asks more rarely,
//! and all together more often. A relay may also hang, be stopped or lose its way to NATS, with its
//! connection open. So standbys look for lanes that no relay serves:
//!
//! | event | reaction of a standby |
//! |---|---|
//! | no transaction has ended | nothing |
//! | one has ended, nothing is due | claims, finds nothing, does nothing until another one ends |
//! | something is due, and a moment later its lane has moved on | nothing: another relay serves it |
//! | something is due, and its lane has not moved | helps for a while, as if it were the leader |
//! | so much is due that one relay takes long | the same |
//!
//! It never matters for safety who works: lanes are locked.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    bounded,
    settle::Pass,
    worker::{Quiet, Worker},
};
use crate::{config::ReadLimits, delivery::Snapshot, error::RelayError, postgres::Wanted};

/// All lanes are claimed so often, even if looks find the log quiet.
const CLAIM_EVERY: Duration = Duration::from_millis(250);
/// All lanes are claimed at least so often when nothing has happened for a while.
const CLAIM_EVERY_MAX: Duration = Duration::from_secs(1);
/// The time in which nothing has happened, divided by this, is the pause between two claims of all
/// lanes.
const STILL: u32 = 8;

/// The pause between two claims of all lanes, when nothing has happened for that time.
fn claim_every(still: Duration) -> Duration {
    (still / STILL).clamp(CLAIM_EVERY, CLAIM_EVERY_MAX)
}

impl Quiet {
    /// All lanes need not be claimed yet.
    fn is_fresh(&self) -> bool {
        self.claimed_at.elapsed() < claim_every(self.still_since.elapsed())
    }
}

impl Worker {
    /// The pause after which a relay at rest does something again although nothing seems to have
    /// happened.
    pub(super) fn asks_every(&self) -> Duration {
        claim_every(self.quiet.as_ref().map_or(Duration::ZERO, |quiet| quiet.still_since.elapsed()))
    }

    /// One bounded pass as a relay at rest makes it: when nothing has happened in the log since a
    /// pass that found nothing due, no lane is claimed, and the answer is [`Pass::Idle`].
    ///
    /// # Errors
    /// As [`Worker::run_once`].
    pub async fn run_if_due(&mut self) -> Result<Pass, RelayError> {
        self.pass_if_due(self.shared.tuning.lanes_max, false).await
    }

    /// Makes a pass over `lanes_max` lanes at most, unless nothing has happened since the last one
    /// that found nothing; one that goes on while messages keep coming, where they do.
    pub(super) async fn pass_if_due(&mut self, lanes_max: i64, goes_on: bool) -> Result<Pass, RelayError> {
        let quiet = self.quiet.take();
        if !self.is_connected().await {
            return Ok(Pass::Away);
        }
        let snapshot = bounded(self.shared.store.look()).await?;
        self.heartbeat.beat();
        let still = quiet.as_ref().filter(|quiet| quiet.snapshot.is_same_but(&snapshot, &quiet.own));
        let still_since = still.map_or_else(Instant::now, |still| still.still_since);
        let is_throttle_due = self.shared.breaker.throttle_pause() == Some(Duration::ZERO);
        if let Some(still) = still.filter(|still| still.is_fresh() && !is_throttle_due) {
            self.quiet = Some(Quiet { snapshot, own: Vec::new(), ..still.clone() });
            return Ok(Pass::Idle);
        }
        let claimed_at = Instant::now();
        let passed = if goes_on { self.pass_on(lanes_max).await? } else { self.pass(lanes_max).await? };
        if passed == Pass::Idle {
            // A pass that has locked lanes was a transaction of its own, and knows which.
            let looked = || Quiet { snapshot, own: Vec::new(), claimed_at, still_since };
            self.quiet = Some(Quiet { still_since, ..self.quiet.take().unwrap_or_else(looked) });
        }
        Ok(passed)
    }

    /// Whether the last look, which has found nothing due, has seen transactions that were open.
    pub(super) fn has_seen_open(&self) -> bool {
        self.quiet.as_ref().is_some_and(|quiet| !quiet.snapshot.open().is_empty())
    }

    /// A transaction of our own has ended in which nothing was enqueued.
    pub(super) fn note_own(&mut self, xact: u64) {
        if let Some(quiet) = &mut self.quiet {
            quiet.own.push(xact);
        }
    }
}

/// A lane in which something is due lags when it does not move for this time.
pub(super) const LAG: Duration = Duration::from_millis(400);
/// More messages than this are more than one relay's work.
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

    /// Lanes in which something is due and that no relay has locked, with the numbers of their
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lanes_are_claimed_more_rarely_while_nothing_happens() {
        assert_eq!(claim_every(Duration::ZERO), CLAIM_EVERY);
        assert_eq!(claim_every(CLAIM_EVERY * STILL), CLAIM_EVERY);
        assert_eq!(claim_every(Duration::from_secs(4)), Duration::from_millis(500));
        assert_eq!(claim_every(Duration::MAX), CLAIM_EVERY_MAX);
    }
}
