//! A recording of the passes, for the checker in `model/`: which lanes a pass claimed, the rows it
//! read in which snapshot, the answers of streams, and how it moved the cursors. It has ids, and
//! neither keys nor payloads.
//!
//! A worker writes each line before it makes the step, and waits for it. A queue beside the workers
//! would lose its end with the process.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use oncebox_schema::Recording;
use serde_json::{Value, json};

use crate::{
    delivery::{Message, Outcome, Settlement},
    postgres::Claim,
};

/// Where a relay writes its passes. Clones write into the same file.
#[derive(Clone, Debug)]
pub(crate) struct TraceFile {
    recording: Recording,
    /// The number of the last pass.
    passes: Arc<AtomicU64>,
}

impl TraceFile {
    /// Opens the file at its end, after the lives that it has already.
    pub(crate) fn open(path: &Path, outbox: &str) -> io::Result<Self> {
        let recording = Recording::open(path, json!({ "pass": 0, "outbox": outbox }))?;
        Ok(Self { recording, passes: Arc::default() })
    }

    /// The messages that a pass has read; returns the number of the pass.
    pub(crate) fn claimed(&self, claims: &[Claim], messages: &[Message]) -> u64 {
        let pass = self.passes.fetch_add(1, Relaxed) + 1;
        let lanes: Vec<Value> = claims.iter().map(claimed).collect();
        self.recording.write("claimed", json!({ "pass": pass, "lanes": lanes, "rows": rows(messages) }));
        pass
    }

    /// The messages that have come into the lanes of a pass since.
    pub(crate) fn read_on(&self, pass: u64, messages: &[Message], snapshot: &str) {
        self.recording
            .write("read_on", json!({ "pass": pass, "snapshot": snapshot, "rows": rows(messages) }));
    }

    /// The answers to the messages of a round.
    pub(crate) fn published(&self, pass: u64, messages: &[Message], outcomes: &[Outcome]) {
        let answers = messages.iter().zip(outcomes).filter_map(|(message, outcome)| {
            let Outcome::Stored { duplicate, stream, sequence, .. } = outcome else { return None };
            Some(json!([message.lane, message.id, &**stream, sequence, duplicate]))
        });
        let answers: Vec<Value> = answers.collect();
        self.recording.write("acknowledged", json!({ "pass": pass, "answers": answers }));
    }

    /// The settlement that a pass is about to commit.
    pub(crate) fn settling<'a>(
        &self,
        pass: u64,
        settlements: &[(i16, Settlement)],
        reads: &[LaneRead],
        parked: impl Iterator<Item = &'a Message>,
    ) {
        let lanes: Vec<Value> =
            settlements.iter().map(|(lane, settlement)| moved(*lane, settlement)).collect();
        let reads: Vec<Value> = reads.iter().map(|of| json!([of.lane, of.done, of.is_full])).collect();
        let parked: Vec<Value> = parked.map(|message| json!([message.lane, message.id])).collect();
        self.recording
            .write("settling", json!({ "pass": pass, "lanes": lanes, "reads": reads, "parked": parked }));
    }

    /// PostgreSQL has answered the commit of a pass.
    pub(crate) fn settled(&self, pass: u64) {
        self.recording.write("settled", json!({ "pass": pass }));
    }
}

/// How far the rows of a lane were done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneRead {
    pub(crate) lane: i16,
    /// The number of rows, from the first one.
    pub(crate) done: usize,
    /// A limit may have cut the read.
    pub(crate) is_full: bool,
}

fn claimed(claim: &Claim) -> Value {
    let mut lane = json!(claim.cursor);
    lane["lane"] = claim.lane.into();
    lane["snapshot"] = claim.snapshot.as_str().into();
    lane
}

/// Lane and id, and the kind of a row that is no new one: `p`arked, a `r`eplay, one that waits
/// `b`ehind its ordering key, one that is `s`kipped while a lane is sent again.
fn rows(messages: &[Message]) -> Vec<Value> {
    let row = |message: &Message| {
        let marks = [
            (message.parked.is_some(), 'p'),
            (message.replay.is_some(), 'r'),
            (message.blocked, 'b'),
            (message.is_passed, 's'),
        ];
        let kind: String = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
        json!([message.lane, message.id, kind])
    };
    messages.iter().map(row).collect()
}

fn moved(lane: i16, settlement: &Settlement) -> Value {
    let mut moved = json!(settlement);
    moved["lane"] = lane.into();
    moved
}
