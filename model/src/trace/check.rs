//! Replays passes, lane by lane in the order of the cursors' numbers, and judges them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use oncebox_relay::rules;

use super::{
    Circumstances, Rule, Verdict,
    ledger::{Lane, Ledger},
    line::{Claimed, Cursor, LaneRead, Row, Stand, sees},
    passes::{Pass, Passes},
};

/// Who made a pass, and its number.
type Name<'a> = &'a (String, u64);
/// The cursors that may have a number, in a lane: a settlement whose commit had no answer may have
/// happened or not.
type Written = BTreeMap<(i16, i64), Vec<Cursor>>;

struct Check<'a> {
    ledger: &'a Ledger,
    passes: Vec<(Name<'a>, &'a Pass)>,
    of: Circumstances,
    written: Written,
    verdict: Verdict,
}

pub(super) fn check(ledger: &Ledger, passes: &Passes, of: Circumstances) -> Verdict {
    let is_ours = |(run, _): &(String, u64)| passes.outboxes.get(run) == Some(&ledger.outbox);
    let of_outbox = passes.all.iter().filter(|(name, _)| is_ours(name)).collect();
    let mut check =
        Check { ledger, passes: of_outbox, of, written: Written::new(), verdict: Verdict::default() };
    for mistake in &passes.mistakes {
        check.verdict.breaks(Rule::Complete, mistake);
    }
    check.follow();
    for (name, pass) in check.passes.clone() {
        check.reads(name, pass);
        check.settles(name, pass);
    }
    check.order();
    check.delivered();
    check.vacuous();
    check.verdict
}

impl<'a> Check<'a> {
    /// Follows the cursors of each lane from settlement to settlement.
    fn follow(&mut self) {
        let mut moves: Vec<(i16, i64, Name<'a>, &Claimed, &Cursor, bool)> = Vec::new();
        for (name, pass) in &self.passes {
            let Some(settling) = &pass.settling else { continue };
            for moved in &settling.lanes {
                let claim = pass.claims.iter().find(|claim| claim.cursor.lane == moved.lane);
                match claim {
                    Some(claim) => {
                        moves.push((moved.lane, moved.number, name, claim, moved, pass.is_settled));
                    }
                    None => self.verdict.breaks(Rule::Chain, format!("{name:?} settles an unclaimed lane")),
                }
            }
        }
        moves.sort_by_key(|(lane, number, ..)| (*lane, *number));
        // Of several passes that were about to write a number, the one with an answer has written
        // it.
        let answered: BTreeSet<(i16, i64)> =
            moves.iter().filter(|of| of.5).map(|(lane, number, ..)| (*lane, *number)).collect();
        for (lane, number, _, claim, moved, is_settled) in &moves {
            if !is_settled && answered.contains(&(*lane, *number)) && !self.of.postgres_crashed {
                continue;
            }
            let next = self.claimed(claim).into_iter().map(|old| Cursor {
                number: number + 1,
                snap: moved.snap.clone().or(old.snap),
                ..(*moved).clone()
            });
            let next: Vec<Cursor> = next.collect();
            self.written.entry((*lane, number + 1)).or_default().extend(next);
        }
        let settled: Vec<_> = moves.iter().filter(|(.., is_settled)| *is_settled).collect();
        for pair in settled.windows(2) {
            let [(lane, number, one, ..), (of, again, other, ..)] = pair else { continue };
            if lane != of {
                continue;
            }
            self.verdict.saw("takeovers", usize::from(one.0 != other.0));
            if number == again && !self.of.postgres_crashed {
                let twice = format!("lane {lane}, cursor {number}: by {one:?} and {other:?}");
                self.verdict.breaks(Rule::Once, twice);
            }
        }
    }

    /// The cursors that a claim may have found; it does not tell the snapshot.
    fn claimed(&self, claim: &Claimed) -> Vec<Cursor> {
        let cursor = &claim.cursor;
        let known = self.written.get(&(cursor.lane, cursor.number)).into_iter().flatten();
        let mut known: Vec<Cursor> = known.filter(|known| known.looks_like(cursor)).cloned().collect();
        known.dedup();
        if known.is_empty() && self.of.stream_lost {
            known = self.rewound(cursor);
        }
        // Nothing is settled yet, so there is no snapshot to know.
        if known.is_empty() && cursor.high == 0 && cursor.floor == 0 {
            known.push(cursor.clone());
        }
        known
    }

    /// A lane that is sent again goes back to a place where it stood before.
    fn rewound(&self, cursor: &Cursor) -> Vec<Cursor> {
        let before = self.written.range((cursor.lane, 0)..(cursor.lane, cursor.number));
        let there = before.flat_map(|(_, written)| written);
        let there = there.filter(|then| (then.floor, then.high) == (cursor.floor, cursor.high));
        there.map(|then| Cursor { snap: then.snap.clone(), ..cursor.clone() }).collect()
    }

    fn reads(&mut self, name: Name<'a>, pass: &Pass) {
        self.verdict.saw("claims", pass.claims.len());
        self.verdict.saw("reads", pass.rows.len());
        self.verdict.saw("further rounds", pass.rounds.len());
        self.verdict.saw("acknowledgements", pass.answers.len());
        for claim in &pass.claims {
            let lane = claim.cursor.lane;
            let cursors = self.claimed(claim);
            if cursors.is_empty() {
                self.verdict.breaks(Rule::Chain, format!("{name:?} claims lane {lane}: {:?}", claim.cursor));
                continue;
            }
            self.verdict.saw("drains", usize::from(claim.cursor.target.is_some()));
            self.committed(name, pass, claim);
            let rows = self.ledger.lanes.get(&lane);
            let late = pass.read(lane, &pass.rows).into_iter().filter(|id| *id <= claim.cursor.high);
            self.verdict.saw("late reads", late.count());
            self.due(name, pass, claim, &cursors, rows);
        }
    }

    /// The rows that were read were committed, and visible.
    fn committed(&mut self, name: Name<'a>, pass: &Pass, claim: &Claimed) {
        let lane = claim.cursor.lane;
        let snapshot = rules::Snapshot::parse(pass.last_snapshot(claim));
        let rows = self.ledger.lanes.get(&lane);
        // Rows of another cluster have transaction ids that mean nothing here.
        let is_reset = claim.cursor.reset_until.is_some();
        for row in pass.rows.iter().filter(|row| row.0 == lane) {
            let is_visible = |xact| is_reset || snapshot.as_ref().is_some_and(|snap| sees(snap, xact));
            let known = rows.and_then(|rows| rows.rows.get(&row.1));
            if !known.is_some_and(|known| row.is('p') || is_visible(known.xact)) {
                self.verdict.breaks(Rule::Committed, format!("{name:?} reads {lane}/{}", row.1));
            }
        }
    }

    /// A read has all that was due, or the first of it if a limit may have cut it.
    fn due(&mut self, name: Name<'a>, pass: &Pass, claim: &Claimed, cursors: &[Cursor], rows: Option<&Lane>) {
        let lane = claim.cursor.lane;
        if claim.cursor.reset_until.is_some() {
            return;
        }
        let settled = pass.settling.as_ref().and_then(|settling| settling.reads.get(&lane));
        let is_whole = settled.is_some_and(|read| !read.2);
        // A pass that came to no settlement may have been cut anywhere.
        let (read, snapshot) = match settled {
            Some(_) => (pass.read(lane, &pass.rows), pass.last_snapshot(claim)),
            None => (pass.read(lane, pass.first_rows()), claim.snapshot.as_str()),
        };
        let Some(snapshot) = rules::Snapshot::parse(snapshot) else { return };
        let due = |cursor: &Cursor| match rows {
            Some(rows) => rows.due(&Stand::of(cursor), &snapshot, read.len()),
            None => Vec::new(),
        };
        let agrees = |cursor: &Cursor| {
            let due = due(cursor);
            if is_whole { due == read } else { due.starts_with(&read) }
        };
        if !cursors.iter().any(agrees) {
            let (due, read) = (due(&cursors[0]), &read);
            let at = due.iter().zip(read).take_while(|(due, read)| due == read).count();
            let (due, read) = (due.get(at), read.get(at));
            self.verdict.breaks(Rule::Due, format!("{name:?}, lane {lane}: {due:?} was due, read {read:?}"));
        }
    }

    fn settles(&mut self, name: Name<'a>, pass: &Pass) {
        // A lane that is read again shows a parked message as a row of the log besides, which waits
        // for the parked one: itself.
        let places = |is: fn(&Row) -> bool| -> BTreeSet<(i16, i64)> {
            pass.rows.iter().filter(|row| is(row)).map(|row| (row.0, row.1)).collect()
        };
        let blocked = &places(|row| row.is('b')) - &places(|row| row.is('p') && !row.is('b'));
        for answer in pass.answers.iter().filter(|answer| blocked.contains(&(answer.0, answer.1))) {
            self.verdict
                .breaks(Rule::Order, format!("{name:?} sends {}/{}, which waits", answer.0, answer.1));
        }
        // The cursor of such a lane does not note the acknowledgement, and a loss would be missed.
        let is_claimed = |lane: i16| pass.claims.iter().any(|claim| claim.cursor.lane == lane);
        for answer in pass.answers.iter().filter(|answer| !is_claimed(answer.0)) {
            let sent = format!("{name:?} sends {}/{} of an unclaimed lane", answer.0, answer.1);
            self.verdict.breaks(Rule::Chain, sent);
        }
        let Some(settling) = &pass.settling else { return };
        self.verdict.saw("settlements", settling.lanes.len());
        self.verdict.saw("commits", usize::from(pass.is_settled));
        self.verdict.saw("set aside", settling.parked.len());
        for moved in &settling.lanes {
            let Some(claim) = pass.claims.iter().find(|claim| claim.cursor.lane == moved.lane) else {
                continue;
            };
            let cursors = self.claimed(claim);
            let ids = pass.read(moved.lane, &pass.rows);
            let read = settling.reads.get(&moved.lane).copied().unwrap_or(LaneRead(moved.lane, 0, true));
            let (cursor, snapshot) = (claim.cursor.of_relay(), pass.last_snapshot(claim));
            // A lane of which only parked messages were sent is written again as it stands.
            let advanced = (read.1 <= ids.len()).then(|| {
                let advanced = cursor.advance(rules::Read { ids: &ids, full: read.2, snapshot }, read.1);
                advanced.unwrap_or_else(|| cursor.standing())
            });
            if advanced.is_none_or(|expected| !is_same(&expected, moved)) {
                self.verdict.breaks(Rule::Advance, format!("{name:?}: {moved:?} after {ids:?}, {read:?}"));
            }
            let done = &ids[..read.1.min(ids.len())];
            self.acknowledged(name, pass, moved.lane, done);
            if claim.cursor.reset_until.is_some() {
                continue;
            }
            // Any of the cursors that it may have found explains it.
            let broken = cursors.iter().map(|cursor| self.newly_settled(cursor, moved, done));
            for broken in broken.min_by_key(Vec::len).unwrap_or_default() {
                self.verdict.breaks(Rule::Open, format!("{name:?} {broken}"));
            }
        }
    }

    fn acknowledged(&mut self, name: Name<'a>, pass: &Pass, lane: i16, done: &[i64]) {
        let stored: BTreeSet<(i16, i64)> = pass.answers.iter().map(|answer| (answer.0, answer.1)).collect();
        let parked = pass.settling.as_ref().map(|settling| &settling.parked);
        let skipped: BTreeSet<i64> =
            pass.rows.iter().filter(|row| row.0 == lane && row.is('s')).map(|row| row.1).collect();
        for id in done {
            let at = (lane, *id);
            let is_aside = parked.is_some_and(|parked| parked.contains(&at)) || skipped.contains(id);
            if !stored.contains(&at) && !is_aside {
                self.verdict.breaks(Rule::Acknowledged, format!("{name:?} settles {lane}/{id}"));
            }
        }
    }

    /// By the meaning of cursors alone: the new one settles the messages that the pass has done and
    /// no others, and forgets none.
    fn newly_settled(&self, old: &Cursor, moved: &Cursor, done: &[i64]) -> Vec<String> {
        let Some(rows) = self.ledger.lanes.get(&moved.lane) else { return Vec::new() };
        let mut broken = Vec::new();
        let snap = moved.snap.clone().or_else(|| old.snap.clone());
        let (old, new) = (Stand::of(old), Stand::of(&Cursor { snap, ..moved.clone() }));
        for (xact, id) in rows.concerned(&old, &new) {
            let settles = |of: &Stand| of.place().calls_settled(id, of.seen(xact));
            let (was, is) = (settles(&old), settles(&new));
            if is && !was && done.binary_search(&id).is_err() || was && !is {
                let verb = if is { "passes" } else { "forgets" };
                broken.push(format!("{verb} {}/{id}", moved.lane));
            }
        }
        broken
    }

    /// By sequence: the first copy of each message follows those of the messages before it. Of one
    /// that a pass has read without an answer, as when its relay died, the first copy is not known.
    fn order(&mut self) {
        if self.of.stream_lost {
            return;
        }
        let mut first: BTreeMap<(&str, &str), BTreeMap<i64, u64>> = BTreeMap::new();
        let mut unanswered: BTreeSet<i64> = BTreeSet::new();
        for (_, pass) in &self.passes {
            let replays: BTreeSet<(i16, i64)> =
                pass.rows.iter().filter(|row| row.is('r')).map(|row| (row.0, row.1)).collect();
            let answered: BTreeSet<i64> = pass.answers.iter().map(|answer| answer.1).collect();
            let read = pass.rows.iter().filter(|row| !row.is('r') && !row.is('s')).map(|row| row.1);
            unanswered.extend(read.filter(|id| !answered.contains(id)));
            for answer in pass.answers.iter().filter(|answer| !replays.contains(&(answer.0, answer.1))) {
                let row = self.ledger.lanes.get(&answer.0).and_then(|rows| rows.rows.get(&answer.1));
                let Some(key) = row.and_then(|row| row.ordering_key.as_deref()) else { continue };
                let copies = first.entry((&answer.2, key)).or_default();
                copies.entry(answer.1).and_modify(|at| *at = answer.3.min(*at)).or_insert(answer.3);
            }
        }
        for ((stream, key), copies) in first {
            let mut latest: Option<(i64, u64)> = None;
            for copy in copies {
                if let Some(before) = latest.filter(|before| before.1 >= copy.1) {
                    self.verdict.breaks(Rule::Order, format!("{stream}, {key}: {copy:?} before {before:?}"));
                }
                if !unanswered.contains(&copy.0) {
                    latest = latest.filter(|before| before.1 > copy.1).or(Some(copy));
                }
            }
        }
    }

    fn delivered(&mut self) {
        let answers = self.passes.iter().flat_map(|(_, pass)| &pass.answers);
        let stored: BTreeSet<(i16, i64)> = answers.map(|answer| (answer.0, answer.1)).collect();
        let cursors: HashMap<i16, &Cursor> =
            self.ledger.cursors.iter().map(|cursor| (cursor.lane, cursor)).collect();
        for (lane, rows) in &self.ledger.lanes {
            let stand = cursors.get(lane).map(|cursor| Stand::of(cursor));
            for (id, row) in &rows.rows {
                let is_settled =
                    stand.as_ref().is_some_and(|of| of.place().calls_settled(*id, of.seen(row.xact)));
                if !is_settled || !stored.contains(&(*lane, *id)) && !row.is_aside {
                    let what = if is_settled { "was never acknowledged" } else { "is not settled" };
                    self.verdict.breaks(Rule::Delivered, format!("{lane}/{id} {what}"));
                }
            }
        }
        for cursor in &self.ledger.cursors {
            let known = self.written.get(&(cursor.lane, cursor.number)).into_iter().flatten();
            if cursor.high > 0 && !known.into_iter().any(|known| known == cursor) {
                self.verdict.breaks(Rule::Chain, format!("the last one of lane {}: {cursor:?}", cursor.lane));
            }
        }
    }

    fn vacuous(&mut self) {
        let lives: BTreeSet<&str> = self.passes.iter().map(|(name, _)| name.0.as_str()).collect();
        let usual = ["claims", "reads", "acknowledgements", "settlements", "commits"];
        let several = (lives.len() > 1).then_some("takeovers");
        for action in usual.into_iter().chain(several).chain(self.of.expected.iter().copied()) {
            if self.verdict.actions.get(action).is_none_or(|times| *times == 0) {
                self.verdict.breaks(Rule::Vacuous, format!("no {action}"));
            }
        }
    }
}

fn is_same(expected: &rules::Settlement, moved: &Cursor) -> bool {
    let rules::Settlement { number, floor, high, snap, target, after, reset_until, .. } = expected.clone();
    *moved == Cursor { lane: moved.lane, number, floor, high, snap, target, after, reset_until }
}
