//! Lanes that a full stream holds up.
//!
//! When a stream is full, everything for it is refused. Parking each message would write rows by
//! the million, and try each again and again. Instead the lane stays where it is: from the first
//! refused message on, nothing of what was read is settled, so nothing is written for it, and its
//! order is that of the log. This relay leaves the lane out for a growing pause, then tries again
//! with a few messages; as soon as one is taken, it reads as much as ever. The first message that
//! is refused is parked like any other, once for each time that the lane is held, so that `status`
//! and `doctor` tell the reason.
//!
//! A lane is held only while nobody else in it could be delivered: everything from the first
//! refused message on was refused or waits behind such a message, and no other subject waits
//! further back (`others.sql`). Otherwise the refused ones are parked, so that the others get past
//! them, and wait there (`pass/probes.rs`).
//!
//! A stream that has too few bytes left, or never had as many, may still take a smaller message.
//! When a lane has been held for some seconds and nothing of it was taken, those that wait for
//! bytes are parked as well, a few at a time, as long as a message waits further back that is
//! smaller than all that were refused meanwhile. Each is looked for only once, so a stream that
//! takes nothing at all has few of them parked.
//!
//! | what might go wrong | why it does not |
//! |---|---|
//! | a message is stored twice | nothing behind the first refused message was stored |
//! | the relay dies, or another one works beside it | nothing is remembered but in memory: another relay finds out by itself |
//! | messages for other streams arrive meanwhile | the pause is two seconds and its jitter at most; then they are seen |

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    probes::Probes,
    refused::{Refused, held_up, is_known, is_refused},
};
use crate::{
    backoff::Backoff,
    config::ReadLimits,
    delivery::{message::Message, outcome::Outcome},
    error::StoreError,
    postgres::{claim::Claim, session::Session},
};

const PAUSE: Backoff = Backoff { first: Duration::from_millis(250), max: Duration::from_secs(2) };
/// Messages of a held lane that are tried at a time.
const TRIED: i64 = 16;
/// Refused subjects of a lane; with more of them it is not held.
const SUBJECTS_MAX: usize = 64;
/// After so many tries in vain, about four seconds, smaller messages get past larger ones.
const TRIES_BEFORE_SMALLER: u32 = 4;

/// Shared by the workers of a relay.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldLanes {
    lanes: Arc<Mutex<HashMap<i16, Held>>>,
    /// Of what is parked in lanes that are not held.
    pub(super) probes: Probes,
}

#[derive(Debug)]
struct Held {
    until: Instant,
    tries: u32,
    /// The bytes of the smallest payload that was refused since one was taken.
    smallest: i64,
}

impl HeldLanes {
    fn lanes(&self) -> MutexGuard<'_, HashMap<i16, Held>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lanes that are not to be claimed now.
    pub(super) fn left_out(&self) -> Vec<i16> {
        let now = Instant::now();
        self.lanes().iter().filter(|(_, held)| now < held.until).map(|(lane, _)| *lane).collect()
    }

    /// How much a pass reads of a lane: little when lanes that were held are tried again.
    pub(super) fn limits(&self, limits: ReadLimits) -> ReadLimits {
        let now = Instant::now();
        if self.lanes().values().all(|held| now < held.until) {
            return limits;
        }
        ReadLimits { messages_max: limits.messages_max.min(TRIED), ..limits }
    }

    /// Holds a lane; returns whether it was not held before.
    fn hold(&self, lane: i16, refused: &Refused<'_>) -> bool {
        let mut lanes = self.lanes();
        let before = lanes.get(&lane).filter(|_| !refused.is_moving);
        let tries = before.map_or(0, |held| held.tries);
        let smallest = before.map_or(i64::MAX, |held| held.smallest).min(refused.smallest);
        let until = Instant::now() + PAUSE.delay(tries);
        lanes.insert(lane, Held { until, tries: tries.saturating_add(1), smallest }).is_none()
    }

    /// The bytes below which a message could be taken, though nothing of the lane was for a while.
    fn smaller_than(&self, lane: i16, refused: &Refused<'_>) -> Option<i64> {
        let lanes = self.lanes();
        let held = lanes.get(&lane).filter(|held| held.tries >= TRIES_BEFORE_SMALLER)?;
        let smallest = held.smallest.min(refused.smallest);
        (!refused.is_moving && smallest > 0).then_some(smallest)
    }

    /// Has the next messages of a held lane tried at once.
    fn go_on(&self, lane: i16, smallest: i64) {
        if let Some(held) = self.lanes().get_mut(&lane) {
            held.until = Instant::now();
            held.smallest = smallest;
        }
    }

    fn release(&self, lane: i16) {
        self.lanes().remove(&lane);
    }

    /// Has nothing settled of what a full stream refused, in lanes where nothing else could be
    /// delivered.
    pub(super) async fn hold_back(
        &self,
        session: &Session,
        claims: &[Claim],
        messages: &[Message],
        outcomes: &mut [Outcome],
    ) -> Result<(), StoreError> {
        if self.lanes().is_empty() && !outcomes.iter().any(is_refused) {
            return Ok(());
        }
        for claim in claims {
            let is_row =
                |index: &usize| messages[*index].lane == claim.lane && messages[*index].parked.is_none();
            let rows: Vec<usize> = (0..messages.len()).filter(is_row).collect();
            let refused = held_up(&rows, outcomes).filter(|_| claim.cursor.reset_until.is_none());
            let Some(first) = refused else {
                if rows.iter().any(|row| is_known(&outcomes[*row])) {
                    self.release(claim.lane);
                }
                continue;
            };
            let refused = Refused::new(&rows, first, messages, outcomes);
            let last = rows.last().map_or(0, |row| messages[*row].id).max(claim.cursor.high);
            if self.lets_others_past(session, claim.lane, last, &refused).await? {
                continue;
            }
            let is_new = self.hold(claim.lane, &refused);
            for row in &rows[first + usize::from(is_new)..] {
                outcomes[*row] = Outcome::Unknown;
            }
        }
        Ok(())
    }

    /// Whether the refused messages are to be parked, since others wait behind them.
    async fn lets_others_past(
        &self,
        session: &Session,
        lane: i16,
        last: i64,
        refused: &Refused<'_>,
    ) -> Result<bool, StoreError> {
        let subjects = &refused.subjects;
        if subjects.len() > SUBJECTS_MAX || session.others_wait(lane, last, subjects, None).await? {
            self.release(lane);
            return Ok(true);
        }
        let Some(smaller_than) = self.smaller_than(lane, refused) else { return Ok(false) };
        let smaller_wait = session.others_wait(lane, last, subjects, Some(smaller_than)).await?;
        if smaller_wait {
            self.go_on(lane, smaller_than);
        }
        Ok(smaller_wait)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn by_bytes(smallest: i64) -> Refused<'static> {
        Refused { subjects: Vec::new(), smallest, is_moving: false }
    }

    #[tokio::test(start_paused = true)]
    async fn smaller_messages_get_past_after_some_tries_in_vain() {
        let held = HeldLanes::default();
        for bytes in [20, 10, 30] {
            assert_eq!(held.smaller_than(3, &by_bytes(bytes)), None, "too early");
            held.hold(3, &by_bytes(bytes));
        }
        held.hold(3, &by_bytes(15));
        assert_eq!(held.smaller_than(3, &by_bytes(12)), Some(10), "the smallest of all tries");
        assert_eq!(held.smaller_than(3, &by_bytes(0)), None, "fewer bytes do not help");
        held.go_on(3, 10);
        assert!(held.left_out().is_empty(), "the next are tried at once");
        assert_eq!(held.smaller_than(3, &by_bytes(9)), Some(9), "without waiting again");
        held.hold(3, &Refused { is_moving: true, ..by_bytes(40) });
        for _ in 0..TRIES_BEFORE_SMALLER {
            held.hold(3, &by_bytes(30));
        }
        assert_eq!(held.smaller_than(3, &by_bytes(50)), Some(30), "something was taken meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_lane_is_left_out_for_longer_each_time_and_then_tried_with_little() {
        let held = HeldLanes::default();
        let limits = ReadLimits { messages_max: 1_000, bytes_max: 1, dead_blocks: true };
        assert!(held.hold(3, &by_bytes(9)), "for the first time");
        assert_eq!(held.left_out(), [3]);
        advance(PAUSE.first * 2).await;
        assert!(held.left_out().is_empty());
        assert!(!held.hold(3, &by_bytes(9)));
        for _ in 0..20 {
            held.hold(3, &by_bytes(9));
        }
        advance(PAUSE.max / 3).await;
        assert_eq!(held.left_out(), [3]);
        assert_eq!(held.limits(limits).messages_max, 1_000, "others are read as ever");
        advance(PAUSE.max * 2).await;
        assert_eq!(held.limits(limits).messages_max, TRIED);
        held.release(3);
        assert!(held.left_out().is_empty());
        assert_eq!(held.limits(limits).messages_max, 1_000);
    }
}
