//! The acknowledgements of streams in a pass, lane by lane: the cursors note them, unless they
//! cannot be true.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    delivery::{Acknowledged, Message, Outcome, Settlement, is_unseen},
    postgres::{Claim, Receipt},
};

/// The acknowledgements of one stream to one lane.
#[derive(Debug)]
struct Lane<'a> {
    highest: u64,
    message: &'a Message,
    /// The lowest sequence that is no duplicate's.
    lowest_new: Option<u64>,
}

/// The acknowledgements of all streams in a pass.
#[derive(Debug)]
pub(crate) struct Acknowledgements<'a> {
    claims: &'a [Claim],
    outcomes: &'a [Outcome],
    lanes: BTreeMap<(i16, &'a Arc<str>), Lane<'a>>,
}

impl<'a> Acknowledgements<'a> {
    /// Of settled messages and others alike: a receipt may always cover more.
    pub(crate) fn new(claims: &'a [Claim], messages: &'a [Message], outcomes: &'a [Outcome]) -> Self {
        let mut lanes: BTreeMap<(i16, &Arc<str>), Lane<'_>> = BTreeMap::new();
        for (message, outcome) in messages.iter().zip(outcomes) {
            let Outcome::Stored { duplicate, stream, sequence, .. } = outcome else { continue };
            if is_unseen(stream) {
                continue;
            }
            let new = Lane { highest: *sequence, message, lowest_new: None };
            let lane = lanes.entry((message.lane, stream)).or_insert(new);
            if *sequence > lane.highest {
                (lane.highest, lane.message) = (*sequence, message);
            }
            if !duplicate {
                lane.lowest_new = Some(lane.lowest_new.map_or(*sequence, |lowest| lowest.min(*sequence)));
            }
        }
        Self { claims, outcomes, lanes }
    }

    /// A stream that has just given out a sequence again. It acknowledged all messages that the
    /// claimed lanes know of before this pass published any, and the messages of `before` before
    /// this round published any, so new messages have higher sequences, and each its own. Lanes
    /// with rows of another cluster are not looked into before these are drained.
    pub(crate) fn regressed(&self, before: &[Outcome]) -> Option<(&'a Arc<str>, u64)> {
        let found = self.lanes.iter().find(|((_, stream), lane)| {
            let claims = self.claims.iter().filter(|claim| claim.cursor.reset_until.is_none());
            let known = claims.filter_map(|claim| claim.acknowledged.sequence(stream));
            let known = known.chain(before.iter().filter_map(|outcome| sequence(outcome, stream))).max();
            lane.lowest_new.zip(known).is_some_and(|(new, known)| new <= known)
        });
        found.and_then(|((_, stream), lane)| Some((*stream, lane.lowest_new?))).or_else(|| self.given_twice())
    }

    /// A sequence that two messages of this round got, a duplicate's included: the stream has lost
    /// the first one meanwhile.
    fn given_twice(&self) -> Option<(&'a Arc<str>, u64)> {
        let given = self.outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Stored { stream, sequence, .. } if !is_unseen(stream) => Some((stream, *sequence)),
            _ => None,
        });
        let mut given: Vec<(&Arc<str>, u64)> = given.collect();
        given.sort_unstable();
        given.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    }

    /// Notes the acknowledgements in the settlements. A lane of which only parked messages were
    /// sent has its cursor written again as it stands. Returns the receipts for where the cursors
    /// stand, and for where they are about to.
    pub(crate) fn note(&self, settlements: &mut Vec<(i16, Settlement)>) -> Vec<Receipt> {
        let mut receipts = Vec::new();
        for claim in self.claims {
            let of_lane = || self.lanes.iter().filter(|((lane, _), _)| *lane == claim.lane);
            let mut acknowledged = claim.acknowledged.clone();
            for ((_, stream), lane) in of_lane() {
                acknowledged.raise(stream, lane.highest, || lane.message.sent_id());
            }
            if acknowledged == claim.acknowledged {
                continue;
            }
            let settlement = match settlements.iter_mut().find(|(lane, _)| *lane == claim.lane) {
                Some((_, settlement)) => settlement,
                None if of_lane().next().is_none() => continue,
                None => {
                    settlements.push((claim.lane, claim.cursor.standing()));
                    &mut settlements.last_mut().expect("it was just pushed").1
                }
            };
            settlement.acknowledged = Some(acknowledged.to_json());
            for ((_, stream), _) in of_lane() {
                receipts.push(before(claim, stream));
                receipts.extend(after(claim, settlement, stream, &acknowledged));
            }
        }
        receipts
    }
}

fn sequence(outcome: &Outcome, of: &str) -> Option<u64> {
    match outcome {
        Outcome::Stored { stream, sequence, .. } if **stream == *of => Some(*sequence),
        _ => None,
    }
}

/// For the claimed cursor: its mark in the stream, or that the stream had nothing of the lane.
fn before(claim: &Claim, stream: &Arc<str>) -> Receipt {
    let mark = claim.acknowledged.mark(stream);
    Receipt {
        lane: claim.lane,
        stream: Arc::clone(stream),
        number: claim.cursor.number,
        sequence: mark.map_or(0, |(sequence, _)| sequence),
        message_id: mark.map(|(_, id)| id.to_owned()),
        floor: claim.cursor.floor,
        high: claim.cursor.high,
        snap: None,
    }
}

fn after(
    claim: &Claim,
    settlement: &Settlement,
    stream: &Arc<str>,
    acknowledged: &Acknowledged,
) -> Option<Receipt> {
    let (sequence, id) = acknowledged.mark(stream)?;
    Some(Receipt {
        lane: claim.lane,
        stream: Arc::clone(stream),
        number: settlement.number + 1,
        sequence,
        message_id: Some(id.to_owned()),
        floor: settlement.floor,
        high: settlement.high,
        snap: settlement.snap.clone(),
    })
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn stored(stream: &str, sequence: u64) -> Outcome {
        let (stream, now) = (Arc::from(stream), Instant::now());
        Outcome::Stored { duplicate: false, stream, sequence, sent_at: now, acknowledged_at: now }
    }

    #[test]
    fn a_sequence_belongs_to_one_message() {
        let messages = [Message::example(), Message::example()];
        let check = |second, duplicate| {
            let mut outcomes = [stored("ORDERS", 8), stored("ORDERS", second)];
            if let Outcome::Stored { duplicate: is_duplicate, .. } = &mut outcomes[1] {
                *is_duplicate = duplicate;
            }
            Acknowledgements::new(&[], &messages, &outcomes).regressed(&[]).map(|(_, sequence)| sequence)
        };
        assert_eq!([check(8, false), check(9, false), check(8, true)], [Some(8), None, Some(8)]);
    }

    #[test]
    fn a_round_is_compared_with_those_before_it() {
        let messages = [Message::example()];
        let check = |sequence| {
            let outcomes = [stored("ORDERS", sequence)];
            let before = [stored("ORDERS", 7), stored("OTHERS", 90), Outcome::Behind];
            Acknowledgements::new(&[], &messages, &outcomes).regressed(&before).map(|(_, sequence)| sequence)
        };
        assert_eq!([check(6), check(7), check(8)], [Some(6), Some(7), None]);
    }
}
