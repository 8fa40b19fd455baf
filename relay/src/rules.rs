//! The rules by which a relay decides, for the executable specification in `model/`, which calls
//! them: no part of the interface.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::time::Instant;

pub use crate::{
    delivery::{
        cursor::{Cursor, Read, Settlement},
        decision::Decision,
        receipt::{Acknowledged, Evidence, Extent, newest_proven},
        snapshot::Snapshot,
    },
    nats::publisher::ordering::SendOrder,
    postgres::receipts::Receipt,
};
use crate::{
    delivery::{
        decision::{Failure, Outcome, decide},
        message::{Message, Replay},
    },
    pass::acknowledgements::Acknowledgements,
    postgres::claim::Claim,
};

/// The one stream of the model.
const STREAM: &str = "S";

/// A message that a pass has sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// The id of its row.
    pub id: i64,
    /// Its key.
    pub key: &'a str,
    /// Whether it is a replay of the message.
    pub is_replay: bool,
    /// The sequence in the acknowledgement, and whether that called it a duplicate.
    pub stored: Option<(u64, bool)>,
}

/// The acknowledgements of a pass, as it notes them.
#[derive(Clone, Debug)]
pub struct Noted {
    /// The sequence that the stream has given out again: it has lost messages.
    pub regressed: Option<u64>,
    /// The settlement with them.
    pub settlement: Option<Settlement>,
    /// The receipts of the pass.
    pub receipts: Vec<Receipt>,
}

/// The decision about an answer of `JetStream` with this code.
#[must_use]
pub fn refused(err_code: u64) -> Decision {
    decide(&Failure::Refused { err_code, description: String::new(), stream: None })
}

/// The mark of the model's stream in a lane's knowledge of it.
#[must_use]
pub fn mark(acknowledged: &Acknowledged) -> Option<(u64, &str)> {
    acknowledged.mark(STREAM)
}

/// A lane that knows of this mark in the model's stream.
#[must_use]
pub fn acknowledged(mark: Option<(u64, String)>) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    if let Some((sequence, id)) = mark {
        acknowledged.raise(&Arc::from(STREAM), sequence, || id);
    }
    acknowledged
}

/// The id that a message is published with.
#[must_use]
pub fn sent_id(sent: Sent<'_>) -> String {
    message(&sent).sent_id()
}

/// Notes the acknowledgements of a pass over one lane.
#[must_use]
pub fn note(
    cursor: &Cursor,
    known: &Acknowledged,
    sent: &[Sent<'_>],
    settlement: Option<Settlement>,
) -> Noted {
    let claims = [Claim::of_lane(0, cursor.clone(), known.clone())];
    let messages: Vec<Message> = sent.iter().map(message).collect();
    let outcomes: Vec<Outcome> = sent.iter().map(outcome).collect();
    let acknowledgements = Acknowledgements::new(&claims, &messages, &outcomes);
    let regressed = acknowledgements.regressed(&[]).map(|(_, sequence)| sequence);
    let mut settlements: Vec<(i16, Settlement)> = settlement.into_iter().map(|of| (0, of)).collect();
    let receipts = acknowledgements.note(&mut settlements);
    Noted { regressed, settlement: settlements.pop().map(|(_, settlement)| settlement), receipts }
}

fn message(sent: &Sent<'_>) -> Message {
    Message {
        outbox: "0123456789ab".into(),
        lane: 0,
        id: sent.id,
        key: sent.key.to_owned(),
        subject: "s".to_owned(),
        ordering_key: None,
        headers: None,
        payload: Bytes::new(),
        payload_bytes: 0,
        object: None,
        breach: None,
        is_unchecked: false,
        created_at: UNIX_EPOCH,
        blocked: false,
        is_passed: false,
        paused: None,
        parked: None,
        replay: sent.is_replay.then_some(Replay { number: 1, requested_at: SystemTime::UNIX_EPOCH }),
    }
}

fn outcome(sent: &Sent<'_>) -> Outcome {
    let Some((sequence, duplicate)) = sent.stored else { return Outcome::Unknown };
    let now = Instant::now();
    Outcome::Stored { duplicate, stream: STREAM.into(), sequence, sent_at: now, acknowledged_at: now }
}
