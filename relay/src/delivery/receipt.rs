//! Receipts: they prove that a stream still has the messages that it acknowledged.
//!
//! JetStream acknowledges a message before it is on the disk. After a power loss, a restored
//! backup, or a replica that comes back from an old copy, the end of a stream is gone, and no
//! client hears of it. The log still has the messages, and a cursor is a position in it, so the
//! relay can send the lost messages again by writing an old cursor once more. It needs an old
//! cursor for which the stream can prove that none of the messages it calls settled is missing: a
//! receipt.
//!
//! A receipt is a cursor of a lane, with a stream, a sequence, and the id of the message there. It
//! means exactly:
//!
//! > every message that this cursor calls settled was acknowledged by this stream at or below this
//! > sequence, or by another stream, or it was set aside and has, once it is stored, a late receipt
//! > of its own.
//!
//! A stream gives out sequences in order. When it has lost its end, everything below some sequence
//! is there and everything above is not; but it gives the sequences above out again, to the next
//! publishers. So a sequence alone proves nothing: the message at it must be the receipt's, which
//! its `Nats-Msg-Id` tells. If it is, all messages that the receipt covers are there.
//!
//! | at the receipt's sequence, the stream has | the receipt is |
//! |---|---|
//! | the message with the receipt's id | proven |
//! | another message; or the sequence lies above the last one | missing: acknowledged, and lost |
//! | nothing, and begins above it: the message expired, or was purged, dropped by a limit, consumed | as good as proven: the stream let it go as it was told, and lost nothing |
//! | nothing, with messages around it: deleted, consumed, dropped by a limit per subject | not proven, and no sign of a loss |
//!
//! The newest receipt of a lane is its cursor itself: each settlement writes down the highest
//! sequence of every stream beside it (`Acknowledged`), so every settled message always has one.
//! The relay keeps older ones, one a second at most, for the way back. So that there is always one
//! to go back to, a lane's first message in a stream, and the first one after a pause, comes with a
//! receipt of the cursor before it. If that cursor knows of nothing in the stream, the receipt has
//! the sequence 0, which every stream proves as long as it is the same one. A cursor names all its
//! streams: each one that is not in it has acknowledged nothing.

use std::{collections::BTreeMap, sync::Arc};

/// For each stream the highest sequence that it has acknowledged to a lane, and the id of the
/// message there. A stream that is not among them has acknowledged nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    streams: BTreeMap<Arc<str>, (u64, String)>,
}

impl Acknowledged {
    /// As it stands in the database.
    pub fn parse(json: &str) -> Self {
        let map: BTreeMap<String, (u64, String)> = serde_json::from_str(json).unwrap_or_default();
        Self { streams: map.into_iter().map(|(stream, mark)| (stream.into(), mark)).collect() }
    }

    /// As it is written to the database.
    #[must_use]
    pub fn to_json(&self) -> String {
        let map: BTreeMap<&str, &(u64, String)> =
            self.streams.iter().map(|(name, mark)| (&**name, mark)).collect();
        serde_json::to_string(&map).expect("texts and numbers are JSON")
    }

    /// The highest sequence of a stream.
    pub fn sequence(&self, stream: &str) -> Option<u64> {
        self.streams.get(stream).map(|(sequence, _)| *sequence)
    }

    /// The highest sequence of a stream, with the id of the message there.
    #[must_use]
    pub fn mark(&self, stream: &str) -> Option<(u64, &str)> {
        self.streams.get(stream).map(|(sequence, id)| (*sequence, id.as_str()))
    }

    /// Raises the sequence of a stream; a lower one, of a duplicate, changes nothing.
    pub fn raise(&mut self, stream: &Arc<str>, sequence: u64, id: impl FnOnce() -> String) {
        if self.sequence(stream).is_none_or(|known| known < sequence) {
            self.streams.insert(Arc::clone(stream), (sequence, id()));
        }
    }
}

/// The first and the last sequence of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The sequence of the first message; one above the last where there is none.
    pub first: u64,
    /// The last sequence that was given out.
    pub last: u64,
}

/// A stream's proof of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// All that it covers is there, or was let go as the stream was told to.
    Proven,
    /// The message was acknowledged, and is lost.
    Missing,
    /// The stream proves neither.
    Unknown,
}

impl Extent {
    /// The evidence of the sequence alone; `None` if the relay must look at the message.
    pub fn judge(self, sequence: u64, id: Option<&str>) -> Option<Evidence> {
        if sequence == 0 {
            // Nothing was acknowledged yet.
            Some(Evidence::Proven)
        } else if sequence > self.last {
            Some(Evidence::Missing)
        } else if sequence < self.first {
            Some(Evidence::Proven)
        } else if id.is_none() {
            Some(Evidence::Unknown)
        } else {
            None
        }
    }
}

impl Evidence {
    /// The evidence of the message at the receipt's sequence; `found` is `None` when no message is
    /// there, and `Some(None)` when it has no id.
    pub fn of(expected: Option<&str>, found: Option<Option<&str>>) -> Self {
        match found {
            Some(id) if id == expected => Self::Proven,
            Some(_) => Self::Missing,
            None => Self::Unknown,
        }
    }
}

/// Which one of a lane's receipts, the newest first, to go back to: the newest that is proven and
/// has no missing one below it. Messages published between a loss and its discovery are there, and
/// prove nothing of the messages before them.
pub fn newest_proven(receipts: &[Evidence]) -> Option<usize> {
    let after_loss =
        receipts.iter().rposition(|evidence| *evidence == Evidence::Missing).map_or(0, |at| at + 1);
    let below = receipts.get(after_loss..)?;
    below.iter().position(|evidence| *evidence == Evidence::Proven).map(|at| after_loss + at)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A stream that appends, loses its end, lets its beginning go, and deletes in the middle.
    #[derive(Debug, Default)]
    struct Model {
        messages: BTreeMap<u64, u32>,
        last: u64,
        first: u64,
        /// The lost part: it was acknowledged, and the stream has it no more.
        lost: Vec<u32>,
    }

    impl Model {
        fn append(&mut self, message: u32) -> u64 {
            self.last += 1;
            self.messages.insert(self.last, message);
            self.last
        }

        fn lose_end(&mut self, count: u64) {
            let keeps = self.last.saturating_sub(count);
            let gone = self.messages.split_off(&(keeps + 1));
            self.lost.extend(gone.into_values());
            self.last = keeps;
            self.first = self.first.min(keeps + 1);
        }

        fn expire(&mut self, count: u64) {
            self.first = (self.first.max(1) + count).min(self.last + 1);
            self.messages = self.messages.split_off(&self.first);
        }

        fn evidence(&self, sequence: u64, id: u32) -> Evidence {
            let id = id.to_string();
            let extent = Extent { first: self.first.max(1), last: self.last };
            extent.judge(sequence, Some(&id)).unwrap_or_else(|| {
                let found = self.messages.get(&sequence).map(ToString::to_string);
                Evidence::of(Some(&id), found.as_ref().map(|found| Some(found.as_str())))
            })
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// The lane settles a message of its own, and keeps a receipt or none.
        Settle {
            keeps: bool,
        },
        /// Another program publishes.
        Foreign,
        Expire(u64),
        Delete(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<bool>().prop_map(|keeps| Step::Settle { keeps }),
            2 => Just(Step::Foreign),
            1 => (0_u64..8).prop_map(Step::Expire),
            1 => (0_u64..40).prop_map(Step::Delete),
        ]
    }

    proptest! {
        /// In every case all lost messages come after the chosen receipt, and without holes it is
        /// the newest such.
        #[test]
        fn what_was_lost_comes_after_the_receipt(
            steps in prop::collection::vec(step(), 1..80),
            lost in 0_u64..40,
            refilled in 0_usize..40,
        ) {
            let mut stream = Model { first: 1, ..Model::default() };
            // A receipt has the number of messages that the lane had settled by then.
            let mut receipts = vec![(0_u64, 0_u32)];
            let (mut settled, mut next, mut holes) = (Vec::new(), 0, false);
            for step in steps {
                next += 1;
                match step {
                    Step::Settle { keeps } => {
                        let sequence = stream.append(next);
                        settled.push((sequence, next));
                        if keeps {
                            receipts.push((sequence, next));
                        }
                    }
                    Step::Foreign => drop(stream.append(next)),
                    Step::Expire(count) => stream.expire(count),
                    Step::Delete(sequence) => holes |= stream.messages.remove(&sequence).is_some(),
                }
            }
            // The cursor's own.
            receipts.extend(settled.last());
            let reaches_expired = stream.last.saturating_sub(lost) + 1 < stream.first;
            stream.lose_end(lost);
            for _ in 0..refilled {
                next += 1;
                stream.append(next);
            }
            receipts.reverse();
            let evidence: Vec<Evidence> =
                receipts.iter().map(|(sequence, id)| stream.evidence(*sequence, *id)).collect();
            let chosen = newest_proven(&evidence).expect("before the first message nothing was lost");
            let covered = receipts[chosen].0;
            let mine = |id: &u32| settled.iter().find(|(_, mine)| mine == id).map(|(sequence, _)| *sequence);
            for sequence in stream.lost.iter().filter_map(mine) {
                prop_assert!(sequence > covered, "{sequence} was lost, {covered} is covered: {stream:?}");
            }
            if !holes && !reaches_expired {
                let newer = receipts[..chosen].iter().filter(|(_, id)| !stream.lost.contains(id));
                prop_assert_eq!(newer.count(), 0, "a newer one would do: {:?}", stream);
            }
        }
    }

    #[test]
    fn what_a_stream_says_of_a_receipt() {
        let extent = Extent { first: 10, last: 20 };
        for (sequence, id, expected) in [
            (0, None, Some(Evidence::Proven)),
            (9, Some("a"), Some(Evidence::Proven)),
            (21, Some("a"), Some(Evidence::Missing)),
            (15, None, Some(Evidence::Unknown)),
            (15, Some("a"), None),
        ] {
            assert_eq!(extent.judge(sequence, id), expected, "{sequence} {id:?}");
        }
        assert_eq!(Evidence::of(Some("a"), Some(Some("a"))), Evidence::Proven);
        assert_eq!(Evidence::of(Some("a"), Some(Some("b"))), Evidence::Missing);
        assert_eq!(Evidence::of(Some("a"), Some(None)), Evidence::Missing);
        assert_eq!(Evidence::of(Some("a"), None), Evidence::Unknown);
        // An empty stream that has lost everything, and a new one.
        assert_eq!(Extent { first: 0, last: 0 }.judge(1, Some("a")), Some(Evidence::Missing));
    }

    #[test]
    fn what_was_published_after_the_loss_proves_nothing() {
        use Evidence::{Missing, Proven, Unknown};
        for (receipts, expected) in [
            (&[][..], None),
            (&[Proven, Proven], Some(0)),
            (&[Missing, Proven, Proven], Some(1)),
            (&[Proven, Missing, Unknown, Proven], Some(3)),
            (&[Missing, Missing], None),
            (&[Unknown, Unknown], None),
        ] {
            assert_eq!(newest_proven(receipts), expected, "{receipts:?}");
        }
    }

    #[test]
    fn only_a_higher_sequence_counts() {
        let stream = Arc::from("S");
        let mut acknowledged = Acknowledged::parse(r#"{"S": [5, "a"], "T": [9, "t"]}"#);
        acknowledged.raise(&stream, 4, || unreachable!("a duplicate"));
        acknowledged.raise(&stream, 6, || "b".to_owned());
        assert_eq!(acknowledged.to_json(), r#"{"S":[6,"b"],"T":[9,"t"]}"#);
        assert_eq!((acknowledged.sequence("S"), acknowledged.sequence("U")), (Some(6), None));
    }

    proptest! {
        #[test]
        fn marks_of_any_text_are_read(
            text in any::<String>(),
            marks in prop::collection::btree_map(any::<String>(), (any::<u64>(), any::<String>()), 0..4),
        ) {
            Acknowledged::parse(&text);
            let streams = marks.into_iter().map(|(stream, mark)| (Arc::from(stream), mark)).collect();
            let acknowledged = Acknowledged { streams };
            prop_assert_eq!(Acknowledged::parse(&acknowledged.to_json()), acknowledged);
        }
    }
}
