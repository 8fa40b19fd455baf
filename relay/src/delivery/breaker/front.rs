//! The front of a lane, which a full stream or a pause holds up in the log: see the table of
//! `breaker`.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::{Breaker, Circuits, FORGOTTEN};
use crate::{
    backoff::Backoff,
    delivery::{
        decision::{Failure, Outcome},
        message::Message,
    },
};

/// How long a lane is held.
pub(super) const HOLD: Backoff = Backoff { first: Duration::from_millis(250), max: Duration::from_secs(2) };
/// How long a lane is held for a throttle, and how soon its parked messages are tried again.
pub(crate) const THROTTLED: Duration = Duration::from_millis(100);
/// The probes of a held lane.
pub(crate) const LANE_PROBES: i64 = 16;
/// A lane with more refused subjects is not held.
const SUBJECTS_MAX: usize = 64;
/// After this number of tries in vain, about four seconds, smaller messages get past larger ones.
const TRIES_BEFORE_SMALLER: u32 = 4;
/// The relay forgets the size of parked messages after this time: another one may have stored them.
const SMALLER_AGAIN: Duration = Duration::from_secs(60 * 60);

/// The messages of a lane that a full stream has refused: the first of them and all after it.
#[derive(Debug, Default)]
pub(crate) struct Front<'m> {
    /// How many rows of the lane come before it.
    pub(crate) before: usize,
    pub(crate) subjects: Vec<&'m str>,
    /// The bytes of the smallest payload; 0 when fewer bytes would not help.
    pub(super) smallest: i64,
    /// A throttle refused them: some pass soon.
    pub(super) is_throttled: bool,
}

impl<'m> Front<'m> {
    /// Of a lane's rows; `None` when nothing was refused, or a message after the first refused one
    /// was answered otherwise.
    pub(crate) fn of<'o>(rows: impl Iterator<Item = (&'m Message, &'o Outcome)>) -> Option<Self> {
        let (mut before, mut subjects) = (0, BTreeSet::new());
        let (mut smallest, mut is_throttled) = (usize::MAX, true);
        for (message, outcome) in rows {
            match refusal(outcome) {
                Some(failure) => {
                    subjects.insert(&*message.subject);
                    is_throttled &= failure.is_throttled();
                    smallest = smallest.min(failure.refused_bytes(message.payload_bytes));
                }
                None if subjects.is_empty() => before += 1,
                None if is_answered(outcome) => return None,
                None => {}
            }
        }
        let smallest = i64::try_from(smallest).unwrap_or(i64::MAX);
        let subjects: Vec<&str> = subjects.into_iter().collect();
        (!subjects.is_empty()).then_some(Self { before, subjects, smallest, is_throttled })
    }

    pub(crate) fn is_refused(outcome: &Outcome) -> bool {
        refusal(outcome).is_some()
    }

    pub(crate) fn has_many_subjects(&self) -> bool {
        self.subjects.len() > SUBJECTS_MAX
    }
}

fn refusal(outcome: &Outcome) -> Option<&Failure> {
    match outcome {
        Outcome::Failed(_, failure) if failure.holds_lane() => Some(failure),
        _ => None,
    }
}

/// A message without an answer says nothing: NATS went away, perhaps.
pub(crate) fn is_answered(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Unknown | Outcome::Behind)
}

#[derive(Debug)]
pub(super) struct Held {
    until: Instant,
    is_throttled: bool,
    tries: u32,
    /// The bytes of the smallest payload that was parked for its size, and since when there is one.
    parked: Option<(i64, Instant)>,
}

impl Breaker {
    /// The lanes that are not to be claimed now, and whether any other is half open.
    pub(crate) fn held_lanes(&self) -> (Vec<i16>, bool) {
        let now = Instant::now();
        let (mut open, mut is_half_open) = (Vec::new(), false);
        for (number, lane) in &mut self.circuits().lanes {
            lane.front.take_if(|held| now >= held.until + FORGOTTEN);
            match &lane.front {
                Some(held) if now < held.until => open.push(*number),
                Some(held) => is_half_open |= !held.is_throttled,
                None => {}
            }
        }
        (open, is_half_open)
    }

    /// Whether no lane is held, nor about to be tried again.
    pub(crate) fn holds_none(&self) -> bool {
        self.circuits().lanes.values().all(|lane| lane.front.is_none())
    }

    /// Holds a lane, for longer each time unless it is moving; returns whether it was not held
    /// before.
    pub(crate) fn hold(&self, lane: i16, front: &Front<'_>) -> bool {
        let mut circuits = self.circuits();
        let held = &mut circuits.lanes.entry(lane).or_default().front;
        let before = held.as_ref().filter(|_| front.before == 0);
        let (tries, parked) = before.map_or((0, None), |held| (held.tries, held.parked));
        let delay = if front.is_throttled { THROTTLED } else { HOLD.delay(tries) };
        let (until, is_throttled) = (Instant::now() + delay, front.is_throttled);
        held.replace(Held { until, is_throttled, tries: tries.saturating_add(1), parked }).is_none()
    }

    /// The bytes below which a stream could take a message of a lane that has stood for a while.
    pub(crate) fn smaller_than(&self, lane: i16, front: &Front<'_>) -> Option<i64> {
        let circuits = self.circuits();
        let held =
            circuits.lanes.get(&lane)?.front.as_ref().filter(|held| held.tries >= TRIES_BEFORE_SMALLER)?;
        let parked = held.parked.filter(|(_, since)| since.elapsed() < SMALLER_AGAIN);
        let smallest = parked.map_or(front.smallest, |(parked, _)| parked.min(front.smallest));
        (front.before == 0 && front.smallest > 0).then_some(smallest)
    }

    /// The refused messages of a held lane are parked for their size: it is half open at once.
    pub(crate) fn park_larger(&self, lane: i16, smallest: i64) {
        if let Some(held) = self.circuits().front(lane) {
            let now = Instant::now();
            let since = held.parked.map(|(_, since)| since).filter(|since| since.elapsed() < SMALLER_AGAIN);
            held.until = now;
            held.parked = Some((smallest, since.unwrap_or(now)));
        }
    }

    /// A parked message of the lane was stored: its stream has room, though perhaps not for the
    /// message in front.
    pub(crate) fn has_room(&self, lane: i16) {
        if let Some(held) = self.circuits().front(lane) {
            held.parked = None;
        }
    }

    pub(crate) fn close_lane(&self, lane: i16) {
        if let Some(lane) = self.circuits().lanes.get_mut(&lane) {
            lane.front = None;
        }
    }
}

impl Circuits {
    fn front(&mut self, lane: i16) -> Option<&mut Held> {
        self.lanes.get_mut(&lane)?.front.as_mut()
    }
}
