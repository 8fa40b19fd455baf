//! Messages that one cause refuses wait together, and a few of them are tried.
//!
//! What a full stream refuses, or a subject without a stream, is parked so that others get past it.
//! Tried one by one, a million of such messages would be a million tries and rows written every
//! half minute. Instead they wait for the same: of each group, which is one stream or one subject
//! in one lane, the oldest few keep their due times, the probes, while the others have one that is
//! hours away. Each of these costs the row that parks it, and no attempt. When a probe is stored,
//! some of those that wait are due at once (`release_waiting.sql`), two for each one stored, so
//! that all flow after a few passes; what is refused again goes back.
//!
//! | what might go wrong | why it does not |
//! |---|---|
//! | the probes of a stream are larger than others for which it has room | whenever one of them is refused for its size, one that waits is tried as well, in turn |
//! | the probes of a group die, are discarded, or wait for something else now | each that leaves its group has the next one tried; maintenance looks once a minute for groups without a probe (`unprobed.sql`) |
//! | the relay dies, or another one works beside it | which are probes is only remembered so that there are few: every row has its due time |
//! | a message overtakes another of its ordering key | parked ones are sent in the order of their ids, whatever their due times |

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::backoff::Backoff;

/// Messages of a group that are tried at a time.
const PROBES: usize = 4;
/// Groups of a lane. Messages beyond them are tried by themselves, seldom.
const GROUPS_MAX: usize = 64;
/// How often a message beyond the groups is tried: tens of thousands of subjects without a stream
/// must not keep others waiting. Once there is a stream, each goes on within three minutes.
pub(super) const SELDOM: Backoff = Backoff { first: Duration::from_secs(120), max: Duration::from_secs(120) };
/// A probe that was not seen again so long after it was due is another relay's, or gone.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// When those that are no probes are tried, should nobody have released them before.
pub(super) const WAITS: Duration = Duration::from_secs(6 * 60 * 60);
/// Messages released for each one stored, as long as none is refused: not many more are due than
/// there may be room for.
const GROWTH: u64 = 2;

/// The groups of a lane, by what they wait for, each with the ids of its probes.
type Groups = HashMap<String, BTreeMap<i64, Instant>>;

/// Shared by the workers of a relay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probes(Arc<Mutex<HashMap<i16, Groups>>>);

/// What a refused message is for its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Probe,
    Waits,
    /// There are too many groups.
    Alone,
}

impl Probes {
    /// Where a message belongs that has been refused and would be tried again after this delay.
    pub(super) fn place(&self, lane: i16, waits_for: &str, id: i64, delay: Duration) -> Place {
        let now = Instant::now();
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = lanes.entry(lane).or_default();
        for probes in groups.values_mut() {
            probes.retain(|_, forgotten| now < *forgotten);
        }
        groups.retain(|_, probes| !probes.is_empty());
        if groups.len() >= GROUPS_MAX && !groups.contains_key(waits_for) {
            return Place::Alone;
        }
        let probes = groups.entry(waits_for.to_owned()).or_default();
        probes.insert(id, now + delay + FORGOTTEN);
        let last = if probes.len() > PROBES { probes.pop_last() } else { None };
        if last.is_some_and(|(last, _)| last == id) { Place::Waits } else { Place::Probe }
    }

    /// A message has left its group.
    pub(super) fn leave(&self, lane: i16, waits_for: &str, id: i64) {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(probes) = lanes.get_mut(&lane).and_then(|groups| groups.get_mut(waits_for)) {
            probes.remove(&id);
        }
    }
}

/// What became in a pass of a group's messages that were tried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tried {
    pub(super) stored: u64,
    pub(super) refused: u64,
    /// Probes of which the stream says that they are too large.
    pub(super) too_large: u64,
    /// Tried messages that wait for something else now, or for nothing any more.
    pub(super) left: u64,
}

impl Tried {
    /// How many of those that wait are due now.
    pub(super) fn released(self) -> u64 {
        let growth = if self.refused == 0 { GROWTH } else { 1 };
        // The stream may have room for smaller ones.
        let another = u64::from(self.stored == 0 && self.too_large > 0);
        self.stored * growth + self.left + another
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const DELAY: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_oldest_few_of_each_group_are_probes() {
        let probes = Probes::default();
        let place = |waits_for, id| probes.place(0, waits_for, id, DELAY);
        for id in 11..15 {
            assert_eq!(place("stream S", id), Place::Probe);
        }
        assert_eq!(place("stream S", 15), Place::Waits);
        assert_eq!(place("stream S", 14), Place::Probe, "refused again");
        assert_eq!(place("stream S", 1), Place::Probe, "older than the others");
        assert_eq!(place("stream S", 14), Place::Waits, "there are four others");
        assert_eq!(place("stream T", 16), Place::Probe, "another group");
        assert_eq!(probes.place(1, "stream S", 17, DELAY), Place::Probe, "another lane");
        probes.leave(0, "stream S", 1);
        assert_eq!(place("stream S", 18), Place::Probe);
        assert_eq!(place("stream S", 19), Place::Waits);
        advance(DELAY + FORGOTTEN).await;
        assert_eq!(place("stream S", 19), Place::Probe, "nobody has seen the others again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_groups_of_a_lane_are_bounded() {
        let probes = Probes::default();
        let place = |number: usize| probes.place(0, &format!("subject {number}"), 1, DELAY);
        for number in 0..GROUPS_MAX {
            assert_eq!(place(number), Place::Probe);
        }
        assert_eq!(place(GROUPS_MAX), Place::Alone);
        advance(DELAY + FORGOTTEN).await;
        assert_eq!(place(GROUPS_MAX), Place::Probe);
    }

    #[test]
    fn many_follow_where_none_is_refused() {
        let tried = |stored, refused, left| Tried { stored, refused, left, too_large: 0 };
        let released = |stored, refused, left| tried(stored, refused, left).released();
        assert_eq!(released(4, 0, 0), 8);
        assert_eq!(released(4, 1, 0), 4, "room for no more than come");
        assert_eq!(released(0, 4, 1), 1);
        assert_eq!(released(0, 4, 0), 0);
        assert_eq!(Tried { too_large: 3, ..tried(0, 4, 0) }.released(), 1, "perhaps a smaller one");
        assert_eq!(Tried { too_large: 3, ..tried(1, 4, 0) }.released(), 1);
    }
}
