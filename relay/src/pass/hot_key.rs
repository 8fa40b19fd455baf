//! An ordering key that fills a lane gives way to the others in it.
//!
//! Messages of one ordering key are sent one after another, each after the acknowledgement of the
//! one before: some thousands a second. A burst of tens of thousands would hold up all later
//! messages of its lane for seconds. The cursor settles prefixes, so no message can be sent ahead
//! of the burst while it is in the log. Instead the relay parks the burst, which is quick. When a
//! read that may have been cut is nearly all of one ordering key, and others wait for it, the relay
//! sends a share of it, and sets the rest aside to follow that share. From then on every message of
//! the key that is read finds one of its key parked, and is set aside as well (`read.sql`); so the
//! passes reach the others as fast as rows are written. Parked ones are sent in their order, a
//! share in each pass (`read_parked.sql`), due at once when nothing before them is left
//! (`release.sql`). While no others wait, a pass asks for them every 50 ms at most.
//!
//! | danger | why it does not happen |
//! |---|---|
//! | a message of the key overtakes another | parked ones go in the order of their ids, and none of the key is sent from the log while one is parked |
//! | one is lost | parking and the cursor move in one transaction; a crash before it leaves all in the log |
//! | an ordinary drain writes rows for messages | only a lane that is full of one key parks any, and only while others wait |

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    config::ReadLimits,
    delivery::Message,
    error::StoreError,
    postgres::{Claim, Session},
};

/// The most messages of a key that gives way which a pass sends, one after another: all other
/// messages wait for them. `read_parked.sql` has the same number.
const SHARE: usize = 32;

/// If no message waited for an ordering key, the relay asks again after this time: to look through
/// ten thousand messages in vain takes PostgreSQL longer than to read a pass.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Lanes that one ordering key fills, and in which no other message waited a moment ago.
#[derive(Debug, Default)]
pub(super) struct HotKeys(HashMap<i16, (String, Instant)>);

impl HotKeys {
    /// Blocks the messages that an ordering key has above its share in a lane that it fills.
    pub(super) async fn give_way(
        &mut self,
        session: &Session,
        claims: &[Claim],
        messages: &mut [Message],
        limits: ReadLimits,
    ) -> Result<(), StoreError> {
        for lane in messages.chunk_by_mut(|a, b| a.lane == b.lane) {
            let Some(claim) = claims.iter().find(|claim| claim.lane == lane[0].lane) else { continue };
            if claim.cursor.reset_until.is_some() || !claim.is_full(lane.iter(), limits) {
                continue;
            }
            let Some(key) = filling(lane).map(ToOwned::to_owned) else { continue };
            if self.is_alone(claim.lane, &key) {
                continue;
            }
            let last = lane.last().map_or(0, |message| message.id).max(claim.cursor.high);
            if session.other_keys_wait(claim.lane, last, &key).await? {
                set_aside(lane, &key);
            } else {
                self.0.insert(claim.lane, (key, Instant::now() + ASK_EVERY));
            }
        }
        Ok(())
    }

    /// Whether no message waited for this ordering key a moment ago.
    fn is_alone(&mut self, lane: i16, key: &str) -> bool {
        let Entry::Occupied(known) = self.0.entry(lane) else { return false };
        let (alone, until) = known.get();
        let is_alone = alone == key && Instant::now() < *until;
        if !is_alone {
            known.remove();
        }
        is_alone
    }
}

/// The ordering key of nine in ten messages of a lane, when more are to be sent than its share.
fn filling(lane: &[Message]) -> Option<&str> {
    let key = lane.iter().filter_map(|message| message.ordering_key.as_deref());
    let key = majority(key)?;
    let of_key = || lane.iter().filter(|message| message.ordering_key.as_deref() == Some(key));
    let is_filled = of_key().count() * 10 >= lane.len() * 9;
    (is_filled && of_key().filter(|message| !message.blocked).count() > SHARE).then_some(key)
}

/// The value of more than half of the items, if there is one: it is left when unlike ones cancel
/// out.
fn majority<'a>(all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut left = (None, 0_usize);
    for one in all {
        left = match left {
            (_, 0) => (Some(one), 1),
            (Some(key), count) if key == one => (Some(key), count + 1),
            (key, count) => (key, count - 1),
        };
    }
    left.0
}

fn set_aside(lane: &mut [Message], key: &str) {
    let of_key = lane.iter_mut().filter(|message| message.ordering_key.as_deref() == Some(key));
    for message in of_key.skip(SHARE) {
        message.blocked = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(keys: &[(&str, usize)]) -> Vec<Message> {
        let each = keys.iter().flat_map(|(key, count)| std::iter::repeat_n(*key, *count));
        each.map(|key| Message { ordering_key: Some(key.to_owned()), ..Message::example() }).collect()
    }

    #[test]
    fn a_key_fills_a_lane_with_nine_in_ten_of_its_messages() {
        assert_eq!(filling(&lane(&[("b", 20), ("a", 180)])), Some("a"));
        assert_eq!(filling(&lane(&[("b", 21), ("a", 180)])), None);
        assert_eq!(filling(&lane(&[("a", SHARE)])), None, "no more than its share");
        assert_eq!(filling(&[]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_was_alone_in_its_lane_is_asked_about_again() {
        let mut keys = HotKeys::default();
        assert!(!keys.is_alone(3, "a"));
        keys.0.insert(3, ("a".to_owned(), Instant::now() + ASK_EVERY));
        assert!(keys.is_alone(3, "a") && !keys.is_alone(4, "a"));
        tokio::time::advance(ASK_EVERY).await;
        assert!(!keys.is_alone(3, "a") && keys.0.is_empty());
        keys.0.insert(3, ("a".to_owned(), Instant::now() + ASK_EVERY));
        assert!(!keys.is_alone(3, "b") && !keys.is_alone(3, "a"), "another key fills the lane");
    }

    #[test]
    fn what_is_more_than_its_share_is_set_aside() {
        let mut lane = lane(&[("a", 150), ("b", 2), ("a", 1)]);
        set_aside(&mut lane, "a");
        let blocked: Vec<usize> = (0..lane.len()).filter(|index| lane[*index].blocked).collect();
        assert_eq!(blocked, (SHARE..150).chain([152]).collect::<Vec<_>>());
        assert_eq!(filling(&lane), None, "the rest of it is set aside already");
    }
}
