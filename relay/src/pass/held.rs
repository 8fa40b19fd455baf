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
//! | what might go wrong | why it does not |
//! |---|---|
//! | a message is stored twice | nothing behind the first refused message was stored |
//! | the relay dies, or another one works beside it | nothing is remembered but in memory: another relay finds out by itself |
//! | messages for other streams arrive meanwhile | the pause is two seconds and its jitter at most; then they are seen |

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::probes::Probes;
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
    fn hold(&self, lane: i16, is_moving: bool) -> bool {
        let mut lanes = self.lanes();
        let before = lanes.get(&lane).map(|held| held.tries);
        let tries = before.filter(|_| !is_moving).unwrap_or(0);
        let until = Instant::now() + PAUSE.delay(tries);
        lanes.insert(lane, Held { until, tries: tries.saturating_add(1) });
        before.is_none()
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
            let refused = rows[first..].iter().filter(|row| is_refused(&outcomes[**row]));
            let subjects: BTreeSet<&str> = refused.map(|row| &*messages[*row].subject).collect();
            let subjects: Vec<&str> = subjects.into_iter().collect();
            let last = rows.last().map_or(0, |row| messages[*row].id).max(claim.cursor.high);
            let others_wait = subjects.len() > SUBJECTS_MAX
                || session.other_subjects_wait(claim.lane, last, &subjects).await?;
            if others_wait {
                self.release(claim.lane);
                continue;
            }
            let is_new = self.hold(claim.lane, first > 0);
            for row in &rows[first + usize::from(is_new)..] {
                outcomes[*row] = Outcome::Unknown;
            }
        }
        Ok(())
    }
}

/// The first of a lane's rows that a full stream refused, when nothing else became of those after
/// it.
fn held_up(rows: &[usize], outcomes: &[Outcome]) -> Option<usize> {
    let first = rows.iter().position(|row| is_refused(&outcomes[*row]))?;
    let nothing_else = |row: &usize| !is_known(&outcomes[*row]) || is_refused(&outcomes[*row]);
    rows[first..].iter().all(nothing_else).then_some(first)
}

fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(_, failure) if failure.is_full_stream())
}

/// It was answered. One without an answer says nothing: NATS went away, perhaps.
fn is_known(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Unknown | Outcome::Behind)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::delivery::decision::{Decision, Failure};

    fn refused(err_code: u64) -> Outcome {
        let failure =
            Failure::Refused { err_code, description: "maximum messages exceeded".into(), stream: None };
        Outcome::Failed(Decision::Wait, failure)
    }

    fn taken() -> Outcome {
        let now = Instant::now();
        Outcome::Stored {
            duplicate: false,
            stream: "S".into(),
            sequence: 1,
            sent_at: now,
            acknowledged_at: now,
        }
    }

    #[test]
    fn a_lane_is_held_up_where_nothing_is_taken_any_more() {
        let check = |outcomes: &[Outcome], expected| {
            let rows: Vec<usize> = (0..outcomes.len()).collect();
            assert_eq!(held_up(&rows, outcomes), expected, "{outcomes:?}");
        };
        check(&[refused(10077), Outcome::Behind, refused(10002), Outcome::Unknown], Some(0));
        check(&[taken(), taken(), refused(10077)], Some(2));
        check(&[refused(10077), taken()], None);
        check(&[refused(10077), refused(10054)], None);
        check(&[Outcome::Behind, refused(10158)], None);
        check(&[], None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_lane_is_left_out_for_longer_each_time_and_then_tried_with_little() {
        let held = HeldLanes::default();
        let limits = ReadLimits { messages_max: 1_000, bytes_max: 1, dead_blocks: true };
        assert!(held.hold(3, false), "for the first time");
        assert_eq!(held.left_out(), [3]);
        advance(PAUSE.first * 2).await;
        assert!(held.left_out().is_empty());
        assert!(!held.hold(3, false));
        for _ in 0..20 {
            held.hold(3, false);
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
