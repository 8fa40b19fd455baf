//! Between the model's small numbers and the production code's words.

use oncebox_relay::rules;

use super::{
    pass::{Outcome, Pass},
    postgres::{Cursor, Snapshot},
    stream::REPLAY,
};

/// The cursor as the production code has it.
pub(crate) fn production(cursor: &Cursor) -> rules::Cursor {
    rules::Cursor {
        number: i64::from(cursor.number),
        floor: i64::from(cursor.floor),
        high: i64::from(cursor.high),
        target: cursor.target.map(Snapshot::text),
        after: cursor.after.map(i64::from),
        reset_until: cursor.reset_until.map(i64::from),
    }
}

pub(crate) fn names(pass: &Pass) -> Vec<String> {
    pass.readings.iter().map(|reading| format!("m{}", reading.row.message)).collect()
}

pub(crate) fn sent<'a>(names: &'a [String], pass: &Pass) -> Vec<rules::Sent<'a>> {
    let stored = |outcome: Outcome| match outcome {
        Outcome::Stored { sequence, is_duplicate } => Some((u64::from(sequence), is_duplicate)),
        _ => None,
    };
    let sent = pass.readings.iter().zip(names).map(|(reading, key)| rules::Sent {
        id: i64::from(reading.row.id),
        key,
        is_replay: reading.is_replay,
        stored: stored(reading.outcome),
    });
    sent.collect()
}

/// A mark with an id of the form of the production code's.
pub(crate) fn mark_text((sequence, sending): (u8, u8)) -> (u64, String) {
    (u64::from(sequence), id_text(sending))
}

pub(crate) fn id_text(sending: u8) -> String {
    let kind = if sending & REPLAY == 0 { "0" } else { "r1" };
    format!("o/d/{kind}/m{}", sending & !REPLAY)
}

/// The sending that an id names.
pub(crate) fn sending(id: &str) -> u8 {
    let mut parts = id.rsplit('/');
    let message = parts.next().and_then(|key| key.strip_prefix('m')?.parse::<u8>().ok());
    let is_replay = parts.next().is_some_and(|kind| kind.starts_with('r'));
    message.expect("keys of the model") | if is_replay { REPLAY } else { 0 }
}

pub(crate) fn small(number: i64) -> u8 {
    u8::try_from(number).expect("the model's numbers are small")
}

pub(crate) fn sequence(number: u64) -> u8 {
    u8::try_from(number).expect("the model's sequences are small")
}
