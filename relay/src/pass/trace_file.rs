//! A recording of the passes, for the checker in `model/`: which lanes a pass claimed, the rows it
//! read in which snapshot, the answers of streams, and how it moved the cursors. It has ids, and
//! neither keys nor payloads.
//!
//! A worker writes each line before it makes the step, and waits for it: a killed relay leaves no
//! settlement that the recording does not know. A queue beside the workers would lose its end with
//! the process. Lines are numbered, and the next one after those that could not be written shows
//! the gap, so the checker refuses the recording.

use std::{
    fs::{File, OpenOptions},
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde_json::{Value, json};
use tracing::warn;

use crate::{
    delivery::{cursor::Settlement, message::Message, outcome::Outcome},
    postgres::claim::Claim,
};

/// Where a relay writes its passes. Clones write into the same file.
#[derive(Clone, Debug)]
pub(crate) struct TraceFile(Arc<Recorder>);

#[derive(Debug)]
struct Recorder {
    /// This life of a relay: a file may have several.
    run: String,
    passes: AtomicU64,
    file: Mutex<Lines>,
}

#[derive(Debug)]
struct Lines {
    file: File,
    number: u64,
    is_failing: bool,
}

impl TraceFile {
    /// Opens the file, behind the lives that it has already.
    pub(crate) fn open(path: &Path, outbox: &str) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        // A killed relay may have left half a line.
        file.write_all(b"\n")?;
        let run = format!("{:016x}", RandomState::new().build_hasher().finish());
        let file = Mutex::new(Lines { file, number: 0, is_failing: false });
        let trace = Self(Arc::new(Recorder { run, passes: AtomicU64::new(0), file }));
        trace.write(0, "started", json!({ "outbox": outbox }));
        Ok(trace)
    }

    /// The messages that a pass has read; returns the number of the pass.
    pub(crate) fn claimed(&self, claims: &[Claim], messages: &[Message]) -> u64 {
        let pass = self.0.passes.fetch_add(1, Relaxed) + 1;
        let lanes: Vec<Value> = claims.iter().map(claimed).collect();
        self.write(pass, "claimed", json!({ "lanes": lanes, "rows": rows(messages) }));
        pass
    }

    /// The messages that have come into the lanes of a pass since.
    pub(crate) fn read_on(&self, pass: u64, messages: &[Message], snapshot: &str) {
        self.write(pass, "read_on", json!({ "snapshot": snapshot, "rows": rows(messages) }));
    }

    /// The answers to the messages of a round.
    pub(crate) fn published(&self, pass: u64, messages: &[Message], outcomes: &[Outcome]) {
        let answers = messages.iter().zip(outcomes).filter_map(|(message, outcome)| {
            let Outcome::Stored { duplicate, stream, sequence, .. } = outcome else { return None };
            Some(json!([message.lane, message.id, &**stream, sequence, duplicate]))
        });
        let answers: Vec<Value> = answers.collect();
        self.write(pass, "acknowledged", json!({ "answers": answers }));
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
        self.write(pass, "settling", json!({ "lanes": lanes, "reads": reads, "parked": parked }));
    }

    /// PostgreSQL has answered the commit of a pass.
    pub(crate) fn settled(&self, pass: u64) {
        self.write(pass, "settled", json!({}));
    }

    fn write(&self, pass: u64, step: &str, mut line: Value) {
        let mut lines = self.0.file.lock().unwrap_or_else(PoisonError::into_inner);
        lines.number += 1;
        line["run"] = self.0.run.as_str().into();
        line["line"] = lines.number.into();
        line["pass"] = pass.into();
        line["step"] = step.into();
        let written = lines.file.write_all(format!("{line}\n").as_bytes());
        if let Err(error) = &written
            && !lines.is_failing
        {
            warn!(%error, "the trace file takes no more: the checker will refuse it");
        }
        lines.is_failing = written.is_err();
    }
}

/// How far the rows of a lane were done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneRead {
    pub(crate) lane: i16,
    /// So many rows from the first one.
    pub(crate) done: usize,
    /// A limit may have cut the read.
    pub(crate) is_full: bool,
}

fn claimed(claim: &Claim) -> Value {
    let Claim { lane, cursor, snapshot, .. } = claim;
    json!({
        "lane": lane,
        "number": cursor.number,
        "floor": cursor.floor,
        "high": cursor.high,
        "target": cursor.target,
        "after": cursor.after,
        "reset_until": cursor.reset_until,
        "snapshot": snapshot,
    })
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
    let Settlement { number, floor, high, snap, target, after, reset_until, .. } = settlement;
    json!({
        "lane": lane,
        "number": number,
        "floor": floor,
        "high": high,
        "snap": snap,
        "target": target,
        "after": after,
        "reset_until": reset_until,
    })
}
