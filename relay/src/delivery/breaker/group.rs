//! Parked messages of a lane that one stream or subject refuses: see the table of `breaker`.

use std::time::Duration;

use tokio::time::Instant;

use super::{Breaker, FORGOTTEN, THROTTLED};
use crate::backoff::Backoff;

/// The probes of a stream or a subject in a lane.
const PROBES: usize = 4;
/// Circuits of parked messages in a lane. Beyond them each message is tried by itself, seldom.
pub(super) const GROUPS_MAX: usize = 64;
/// How often such a message is tried: tens of thousands of subjects without a stream must not keep
/// others waiting. Once there is a stream, each goes on within three minutes.
pub(crate) const SELDOM: Backoff = Backoff { first: Duration::from_secs(120), max: Duration::from_secs(120) };
/// When a message that is no probe is tried, unless a probe has freed it before.
pub(crate) const WAITS: Duration = Duration::from_secs(6 * 60 * 60);
/// Messages freed for each probe stored while none is refused: not many more are due than there may
/// be room for.
const GROWTH: u64 = 2;

/// How a refused message is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Probe,
    Waits,
    /// The lane has too many circuits.
    Alone,
}

/// The fate of a circuit's messages that were tried in a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried {
    pub(crate) stored: u64,
    pub(crate) refused: u64,
    /// Probes that are too large, as the stream says.
    pub(crate) too_large: u64,
    /// They wait for another cause now, or for nothing.
    pub(crate) left: u64,
}

impl Tried {
    /// How many of the messages that wait are due now.
    pub(crate) fn freed(self) -> u64 {
        let growth = if self.refused == 0 { GROWTH } else { 1 };
        let another = u64::from(self.stored == 0 && self.too_large > 0);
        self.stored * growth + self.left + another
    }
}

impl Breaker {
    /// The place of a message that was refused and would be tried again after this delay. A
    /// throttle's probes are tried so often that one which was not tried is another relay's.
    pub(crate) fn place(&self, lane: i16, waits_for: &str, id: i64, delay: Duration) -> Place {
        let now = Instant::now();
        let mut circuits = self.circuits();
        let groups = &mut circuits.lanes.entry(lane).or_default().groups;
        for probes in groups.values_mut() {
            probes.retain(|_, forgotten| now < *forgotten);
        }
        groups.retain(|_, probes| !probes.is_empty());
        if groups.len() >= GROUPS_MAX && !groups.contains_key(waits_for) {
            return Place::Alone;
        }
        let probes = groups.entry(waits_for.to_owned()).or_default();
        let forgotten = if delay == THROTTLED { THROTTLED * 5 } else { delay + FORGOTTEN };
        probes.insert(id, now + forgotten);
        let last = if probes.len() > PROBES { probes.pop_last() } else { None };
        if last.is_some_and(|(last, _)| last == id) { Place::Waits } else { Place::Probe }
    }

    /// A message no longer waits for this cause.
    pub(crate) fn leave(&self, lane: i16, waits_for: &str, id: i64) {
        let mut circuits = self.circuits();
        let groups = circuits.lanes.get_mut(&lane).map(|lane| &mut lane.groups);
        if let Some(probes) = groups.and_then(|groups| groups.get_mut(waits_for)) {
            probes.remove(&id);
        }
    }
}
