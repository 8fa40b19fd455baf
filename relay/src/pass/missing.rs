//! Looks for acknowledged messages that a stream no longer has.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use crate::{
    delivery::receipt::Evidence,
    nats::{
        connection::Connection,
        proof::{self, Facts},
    },
    postgres::receipts::{KnownStream, Mark},
};

/// A stream, and its losses.
pub(super) struct Look {
    pub(super) facts: Facts,
    pub(super) gone: Gone,
}

#[derive(PartialEq, Eq)]
pub(super) enum Gone {
    Nothing,
    /// Everything: it is another stream of the same name.
    All,
    /// For each lane the number of the oldest receipt that is missing. Newer messages that are
    /// there were published after the loss.
    Since(BTreeMap<i16, i64>),
}

/// `None` when the stream is not there: it refuses all messages, and when somebody makes it again,
/// it is another one.
pub(super) async fn look(connection: &Connection, stream: &KnownStream) -> Result<Option<Look>, String> {
    let facts = match proof::facts(connection, &stream.name).await {
        Ok(Some(facts)) => facts,
        Ok(None) => return Ok(None),
        Err(problem) => {
            if connection.is_out_of_reach(&stream.name).await {
                connection.places.doubt(&stream.name, stream.subjects.clone());
            } else {
                connection.places.trust(&stream.name);
            }
            return Err(problem);
        }
    };
    if stream.created.is_some_and(|created| !is_same_time(created, facts.created)) {
        return Ok(Some(Look { facts, gone: Gone::All }));
    }
    let (rest, mut asked): (Vec<&Mark>, Vec<&Mark>) = stream.marks.iter().partition(|mark| mark.is_checked);
    // As long as the highest is there, nothing at or below it was lost since they were looked at.
    let highest = rest.iter().max_by_key(|mark| mark.sequence).copied();
    asked.extend(stream.recent.iter().chain(highest));
    let mut evidence = ask(connection, stream, &facts, &asked).await?;
    if highest.is_some() && evidence.last() != Some(&Evidence::Proven) {
        evidence.extend(ask(connection, stream, &facts, &rest).await?);
        asked.extend(rest);
    }
    let mut missing: BTreeMap<i16, i64> = BTreeMap::new();
    for (mark, _) in asked.iter().zip(evidence).filter(|(_, found)| *found == Evidence::Missing) {
        let oldest = missing.entry(mark.lane).or_insert(mark.number);
        *oldest = mark.number.min(*oldest);
    }
    let gone = if missing.is_empty() { Gone::Nothing } else { Gone::Since(missing) };
    Ok(Some(Look { facts, gone }))
}

/// The stream's evidence for each of these. A stream that cannot be asked is trusted: delivery goes
/// on.
pub(super) async fn ask(
    connection: &Connection,
    stream: &KnownStream,
    facts: &Facts,
    marks: &[&Mark],
) -> Result<Vec<Evidence>, String> {
    let wanted: Vec<(u64, Option<&str>)> =
        marks.iter().map(|mark| (mark.sequence, mark.message_id.as_deref())).collect();
    let evidence = proof::evidence(connection, &stream.name, facts, &wanted).await;
    evidence.inspect_err(|_| connection.places.trust(&stream.name))
}

/// PostgreSQL keeps microseconds.
fn is_same_time(one: SystemTime, other: SystemTime) -> bool {
    let apart = one.duration_since(other).unwrap_or_else(|error| error.duration());
    apart < Duration::from_micros(2)
}
