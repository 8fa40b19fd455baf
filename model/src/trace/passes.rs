//! The passes in recordings.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    line::{Answer, Claimed, Cursor, LaneRead, Line, Row, Step},
    numbered::{self, Numbered},
};

/// The passes of some relays.
#[derive(Clone, Debug, Default)]
pub struct Passes {
    /// By the life of a relay and the number of the pass.
    pub(super) all: BTreeMap<(String, u64), Pass>,
    /// The outbox of each life.
    pub(super) outboxes: HashMap<String, String>,
    pub(super) mistakes: Vec<String>,
}

/// A pass, as far as it came.
#[derive(Clone, Debug, Default)]
pub(super) struct Pass {
    pub(super) claims: Vec<Claimed>,
    pub(super) rows: Vec<Row>,
    /// The snapshots of further rounds, and how many rows had been read before.
    pub(super) rounds: Vec<(String, usize)>,
    pub(super) answers: Vec<Answer>,
    pub(super) settling: Option<Settling>,
    pub(super) is_settled: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Settling {
    pub(super) lanes: Vec<Cursor>,
    pub(super) reads: BTreeMap<i16, LaneRead>,
    pub(super) parked: BTreeSet<(i16, i64)>,
}

impl Passes {
    /// Takes in a file; it may have several lives of a relay, each of which may end in half a line.
    pub fn add(&mut self, text: &str) {
        for line in numbered::read(text, &mut self.mistakes) {
            self.take(line);
        }
    }

    fn take(&mut self, Numbered { run, rest: Line { pass, step }, .. }: Numbered<Line>) {
        if let Step::Started { outbox } = step {
            self.outboxes.insert(run, outbox);
            return;
        }
        let pass = self.all.entry((run, pass)).or_default();
        match step {
            Step::Started { .. } => {}
            Step::Claimed { lanes, rows } => (pass.claims, pass.rows) = (lanes, rows),
            Step::ReadOn { snapshot, rows } => {
                pass.rounds.push((snapshot, pass.rows.len()));
                pass.rows.extend(rows);
            }
            Step::Acknowledged { answers } => pass.answers.extend(answers),
            Step::Settling { lanes, reads, parked } => {
                let reads = reads.into_iter().map(|read| (read.0, read)).collect();
                pass.settling = Some(Settling { lanes, reads, parked: parked.into_iter().collect() });
            }
            Step::Settled {} => pass.is_settled = true,
        }
    }
}

impl Pass {
    /// The ids that were read of a lane's log, in order.
    pub(super) fn read(&self, lane: i16, rows: &[Row]) -> Vec<i64> {
        let of_lane = rows.iter().filter(|row| row.0 == lane && !row.is('p'));
        let ids: BTreeSet<i64> = of_lane.map(|row| row.1).collect();
        ids.into_iter().collect()
    }

    /// The rows of the first read.
    pub(super) fn first_rows(&self) -> &[Row] {
        &self.rows[..self.rounds.first().map_or(self.rows.len(), |(_, before)| *before)]
    }

    /// The snapshot of the last read of a lane.
    pub(super) fn last_snapshot<'a>(&'a self, claim: &'a Claimed) -> &'a str {
        self.rounds.last().map_or(&claim.snapshot, |(snapshot, _)| snapshot)
    }
}
