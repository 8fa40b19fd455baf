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
//! smaller than all of them. The size of the smallest that was parked so is remembered, so that few
//! are parked for a stream that takes nothing at all. The size is forgotten when a parked message
//! of the lane is stored: then there is room again, though perhaps not for the message in front.
//!
//! | what might go wrong | why it does not |
//! |---|---|
//! | a message is stored twice | nothing behind the first refused message was stored |
//! | the relay dies, or another one works beside it | nothing is remembered but in memory: another relay finds out by itself |
//! | messages for other streams arrive meanwhile | the pause is two seconds and its jitter at most; then they are seen |
//! | another relay has stored, or somebody has discarded, what was parked for its size | its size is forgotten after an hour |
//! | another relay has delivered a lane that was held here | it is forgotten, so that all others are read as ever |

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
/// Messages as small as those that were parked for their size are looked for again so much later.
const SMALLER_AGAIN: Duration = Duration::from_secs(60 * 60);
/// A lane that was not tried for so long after its pause is another relay's, or has nothing due.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// Shared by the workers of a relay.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldLanes {
    lanes: Arc<Mutex<HashMap<i16, Held>>>,
    /// The probes of messages that are parked in lanes that are not held.
    pub(super) probes: Probes,
}

#[derive(Debug)]
struct Held {
    until: Instant,
    tries: u32,
    /// The bytes of the smallest payload that was parked for its size, and since when there is one.
    parked: Option<(i64, Instant)>,
}

impl HeldLanes {
    fn lanes(&self) -> MutexGuard<'_, HashMap<i16, Held>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lanes that are not to be claimed now.
    pub(super) fn left_out(&self) -> Vec<i16> {
        let now = Instant::now();
        let mut lanes = self.lanes();
        lanes.retain(|_, held| now < held.until + FORGOTTEN);
        lanes.iter().filter(|(_, held)| now < held.until).map(|(lane, _)| *lane).collect()
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
        let (tries, parked) = before.map_or((0, None), |held| (held.tries, held.parked));
        let until = Instant::now() + PAUSE.delay(tries);
        lanes.insert(lane, Held { until, tries: tries.saturating_add(1), parked }).is_none()
    }

    /// The bytes below which a message could be taken, though nothing of the lane was for a while.
    fn smaller_than(&self, lane: i16, refused: &Refused<'_>) -> Option<i64> {
        let lanes = self.lanes();
        let held = lanes.get(&lane).filter(|held| held.tries >= TRIES_BEFORE_SMALLER)?;
        let parked = held.parked.filter(|(_, since)| since.elapsed() < SMALLER_AGAIN);
        let smallest = parked.map_or(refused.smallest, |(parked, _)| parked.min(refused.smallest));
        (!refused.is_moving && refused.smallest > 0).then_some(smallest)
    }

    /// Has the next messages of a held lane tried at once, as those that were refused are parked.
    fn go_on(&self, lane: i16, smallest: i64) {
        if let Some(held) = self.lanes().get_mut(&lane) {
            let now = Instant::now();
            let since = held.parked.map(|(_, since)| since).filter(|since| since.elapsed() < SMALLER_AGAIN);
            held.until = now;
            held.parked = Some((smallest, since.unwrap_or(now)));
        }
    }

    /// A parked message of the lane was stored.
    fn has_room(&self, lane: i16) {
        if let Some(held) = self.lanes().get_mut(&lane) {
            held.parked = None;
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
            let is_stored = |(message, outcome): (&Message, &Outcome)| {
                message.lane == claim.lane
                    && message.parked.is_some()
                    && matches!(outcome, Outcome::Stored { .. })
            };
            if messages.iter().zip(outcomes.iter()).any(is_stored) {
                self.has_room(claim.lane);
            }
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
        for bytes in [20, 10, 30, 15] {
            assert_eq!(held.smaller_than(3, &by_bytes(bytes)), None, "too early");
            held.hold(3, &by_bytes(bytes));
        }
        assert_eq!(held.smaller_than(3, &by_bytes(12)), Some(12), "those before are still there");
        assert_eq!(held.smaller_than(3, &by_bytes(0)), None, "fewer bytes do not help");
        held.go_on(3, 12);
        assert!(held.left_out().is_empty(), "the next are tried at once");
        held.hold(3, &by_bytes(0));
        assert_eq!(held.smaller_than(3, &by_bytes(40)), Some(12), "smaller than what is parked");
        advance(SMALLER_AGAIN).await;
        assert_eq!(held.smaller_than(3, &by_bytes(40)), Some(40), "not for ever");
        held.go_on(3, 40);
        held.has_room(3);
        assert_eq!(held.smaller_than(3, &by_bytes(50)), Some(50), "one of them was stored");
        held.go_on(3, 50);
        held.hold(3, &Refused { is_moving: true, ..by_bytes(60) });
        assert_eq!(held.smaller_than(3, &by_bytes(60)), None, "some of the lane were taken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_that_others_have_delivered_does_not_slow_those_of_this_relay() {
        let held = HeldLanes::default();
        let limits = ReadLimits { messages_max: 1_000, bytes_max: 1, dead_blocks: true };
        held.hold(3, &by_bytes(9));
        advance(PAUSE.first * 2).await;
        assert!(held.left_out().is_empty());
        assert_eq!(held.limits(limits).messages_max, TRIED);
        advance(FORGOTTEN).await;
        assert!(held.left_out().is_empty());
        assert_eq!(held.limits(limits).messages_max, 1_000);
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
