//! Looks for acknowledged messages that a stream no longer has.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use crate::{
    delivery::Evidence,
    nats::{
        Connection,
        proof::{self, Facts, Found},
    },
    postgres::{KnownStream, receipts::Mark},
};

/// A stream, and its losses.
pub(super) struct Look {
    pub(super) facts: Facts,
    /// The stream was created at another time than the one that was known.
    pub(super) has_moved: bool,
    /// A message shows that it is the same stream nevertheless.
    pub(super) is_same: bool,
    /// For each lane the number of the oldest receipt that is missing. Newer messages that are
    /// there were published after the loss.
    pub(super) missing: BTreeMap<i16, i64>,
}

impl Look {
    /// The stream has all that it acknowledged.
    pub(super) fn is_whole(&self) -> bool {
        self.missing.is_empty() && (self.is_same || !self.has_moved)
    }
}

/// `None` when the stream is not there: it refuses all messages, and when it is made again, it is
/// another one.
///
/// A stream that fails to answer, and answers the next question, was perhaps away, and is back with
/// less: it is looked at once more. One that fails again cannot be asked, as when NATS does not
/// permit it, and is trusted: delivery goes on.
pub(super) async fn look(connection: &Connection, stream: &KnownStream) -> Result<Option<Look>, String> {
    match look_once(connection, stream).await {
        Err(_) if answers(connection, stream).await => {}
        found => return found,
    }
    let found = look_once(connection, stream).await;
    if found.is_err() && answers(connection, stream).await {
        connection.places.trust(&stream.name);
    }
    found
}

/// Whether a stream that could not be looked at answers anything. One that does not is in doubt.
pub(super) async fn answers(connection: &Connection, stream: &KnownStream) -> bool {
    let is_away = connection.is_out_of_reach(&stream.name).await;
    if is_away {
        connection.places.doubt(&stream.name, stream.subjects.clone());
    }
    !is_away
}

async fn look_once(connection: &Connection, stream: &KnownStream) -> Result<Option<Look>, String> {
    let Some(facts) = proof::facts(connection, &stream.name).await? else { return Ok(None) };
    let has_moved = stream.created.is_some_and(|created| !is_same_time(created, facts.created));
    let (rest, mut asked): (Vec<&Mark>, Vec<&Mark>) =
        stream.marks.iter().partition(|mark| mark.is_checked && !has_moved);
    // As long as the highest is there, nothing at or below it was lost since they were looked at.
    let highest = rest.iter().max_by_key(|mark| mark.sequence).copied();
    asked.extend(stream.recent.iter().chain(highest));
    let mut found = ask(connection, stream, &facts, &asked).await?;
    if highest.is_some() && found.last().map(|found| found.evidence) != Some(Evidence::Proven) {
        found.extend(ask(connection, stream, &facts, &rest).await?);
        asked.extend(rest);
    }
    let mut missing: BTreeMap<i16, i64> = BTreeMap::new();
    let found = || asked.iter().zip(&found);
    for (mark, _) in found().filter(|(_, found)| found.evidence == Evidence::Missing) {
        let oldest = missing.entry(mark.lane).or_insert(mark.number);
        *oldest = mark.number.min(*oldest);
    }
    // A stream that was made anew has neither messages that it acknowledged before the last check,
    // nor any that are older than itself.
    let is_same = found().any(|(mark, found)| found.is_older || found.is_there && mark.is_checked);
    Ok(Some(Look { facts, has_moved, is_same, missing }))
}

/// The stream's evidence for each of these.
pub(super) async fn ask(
    connection: &Connection,
    stream: &KnownStream,
    facts: &Facts,
    marks: &[&Mark],
) -> Result<Vec<Found>, String> {
    let wanted: Vec<(u64, Option<&str>)> =
        marks.iter().map(|mark| (mark.sequence, mark.message_id.as_deref())).collect();
    proof::evidence(connection, &stream.name, facts, &wanted).await
}

/// PostgreSQL keeps microseconds.
fn is_same_time(one: SystemTime, other: SystemTime) -> bool {
    let apart = one.duration_since(other).unwrap_or_else(|error| error.duration());
    apart < Duration::from_micros(2)
}
