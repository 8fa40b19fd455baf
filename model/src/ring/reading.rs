//! Messages in a ring: passes that read one segment alone or all of them, segments that are drained
//! and emptied, and a resend that moves the cursor back.
//!
//! The cursor is the set of messages that it calls settled; the model of the outbox has the real
//! one. A pass may believe in any turn: a relay may have slept since its last claim.

use stateright::{Model, Property};

use super::{Ending, Mutant, SEGMENTS, TURNS_MAX, before, number};
use crate::bits::{self, Bits};

#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub mutant: Option<Mutant>,
}

/// A transaction with one message, in `enqueue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    Idle,
    /// It has read the turn.
    Turned(u8),
    /// Its row is in the segment of this turn.
    Written(u8),
    Committed(u8),
}

/// The part of a snapshot that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// Messages.
    committed: Bits,
    /// Segments in which a message may be due.
    live: Bits,
}

/// `read.sql`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// The turn whose segment alone it reads.
    believes: Option<u8>,
    seen: Snapshot,
    /// The turn when the snapshot was taken.
    turn: u8,
    /// The messages that it read, if its set was right.
    rows: Option<Bits>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    turn: u8,
    ending: Ending,
    /// The segment that `drain_segments` has found drained, and not committed.
    draining: Option<u8>,
    now: Snapshot,
    /// Segments that hold nothing, as the table `segment` says it.
    empty: Bits,
    /// Turns that have had their row in the table `segment`.
    noted: Bits,
    writers: [Writer; 2],
    pass: Option<Pass>,
    settled: Bits,
    /// Messages that a pass has read since they are due.
    read: Bits,
    parked: Bits,
    /// The messages that are set aside, with a copy of their own.
    carried: Bits,
    gone: Bits,
    left_deaths: u8,
    left_resends: u8,
    left_refusals: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Write(usize),
    Begin(Option<u8>),
    Read,
    /// The pass ends; a message is parked, perhaps.
    Settle(Option<u8>),
    Lock,
    SetTurn,
    EndTurn,
    Die,
    NoteTurn,
    Drain(u8),
    CommitDrained,
    /// A segment that is said to be empty is not.
    Find(u8),
    Empty(u8),
    Resend(u8),
}

pub const READ: &str = "a pass settles only messages that it has read";
pub const KEPT: &str = "nothing is emptied that is neither settled nor carried by its parked row";
pub const DELIVERED: &str = "each message that is due will be read";

impl State {
    fn rows_in(&self, segment: u8) -> Bits {
        let is_in =
            |m: &u8| matches!(self.writers[usize::from(*m)], Writer::Committed(of) if number(of) == segment);
        bits::each(self.now.committed & !self.gone).filter(is_in).fold(0, bits::with)
    }

    fn note_turn(&mut self) {
        self.noted = bits::with(self.noted, self.turn);
        self.now.live = bits::with(self.now.live, number(self.turn));
        self.empty = bits::without(self.empty, number(self.turn));
    }

    fn is_maintained(&self) -> bool {
        self.ending != Ending::No || self.draining.is_some()
    }
}

impl Reading {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// The turn whose segment alone is live, as `claim.sql` and `read.sql` say it.
    fn single_turn(&self, seen: Snapshot, turn: u8) -> Option<u8> {
        let is_single = bits::without(seen.live, number(turn)) == 0;
        (is_single || self.is(Mutant::LiveIsNotLookedAt)).then_some(turn)
    }

    fn claim(&self, state: &State) -> Option<u8> {
        let named = self.is(Mutant::ClaimNamesTurn).then_some(state.turn);
        named.or_else(|| self.single_turn(state.now, state.turn))
    }

    fn begin(state: &State, believes: Option<u8>) -> Pass {
        Pass { believes, seen: state.now, turn: state.turn, rows: None }
    }

    /// Once the snapshot is taken: the turn is looked up, and the rows are read. `None` when the
    /// set may be wrong.
    fn read(&self, state: &State, pass: Pass) -> Option<Bits> {
        let turn = if self.is(Mutant::TurnBeforeSnapshot) { pass.turn } else { state.turn };
        let is_right = pass.believes.is_none()
            || pass.believes == self.single_turn(pass.seen, turn)
            || self.is(Mutant::StaleTurnReads);
        let named = match pass.believes {
            Some(of) => state.rows_in(number(of)),
            None => (0..SEGMENTS).fold(0, |all, segment| all | state.rows_in(segment)),
        };
        is_right.then_some(named & pass.seen.committed & !state.settled)
    }

    fn settle(state: &mut State, pass: Pass, rows: Bits) {
        state.read |= rows;
        state.settled |= pass.seen.committed;
    }

    fn write(&self, next: &mut State, w: usize) {
        next.writers[w] = match next.writers[w] {
            Writer::Idle => Writer::Turned(next.turn),
            Writer::Turned(of) if of == next.turn || self.is(Mutant::TurnIsNotReadAgain) => {
                Writer::Written(of)
            }
            Writer::Turned(_) => Writer::Idle,
            Writer::Written(of) => {
                next.now.committed = bits::with(next.now.committed, u8::try_from(w).expect("two"));
                Writer::Committed(of)
            }
            ended @ Writer::Committed(_) => ended,
        };
    }

    fn maintenance(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_maintained() {
            actions.push(match state.ending {
                Ending::No => Action::CommitDrained,
                Ending::Locked => Action::SetTurn,
                Ending::Set => Action::EndTurn,
            });
            return actions.extend((state.left_deaths > 0).then_some(Action::Die));
        }
        let this = number(state.turn);
        if !bits::has(state.noted, state.turn) && !self.is(Mutant::TurnIsNotNoted) {
            return actions.push(Action::NoteTurn);
        }
        let writes = |of: &Writer| matches!(of, Writer::Written(of) if number(*of) == this);
        let may_lock = !state.writers.iter().any(writes) || self.is(Mutant::NoShareLock);
        if state.turn < TURNS_MAX && bits::has(state.empty, number(state.turn + 1)) && may_lock {
            actions.push(Action::Lock);
        }
        for segment in (0..SEGMENTS).filter(|segment| *segment != this) {
            let (rows, is_live) = (state.rows_in(segment), bits::has(state.now.live, segment));
            let is_empty = bits::has(state.empty, segment);
            if is_live && rows & !state.settled == 0 {
                actions.push(Action::Drain(segment));
            }
            if is_empty && rows != 0 {
                actions.push(Action::Find(segment));
            }
            let may_empty = !is_live || self.is(Mutant::EmptiesLive);
            if may_empty && !is_empty && segment != before(state.turn) {
                actions.push(Action::Empty(segment));
            }
        }
    }

    fn relay(&self, state: &State, actions: &mut Vec<Action>) {
        match state.pass {
            None => {
                actions.push(Action::Begin(None));
                actions.extend((0..=state.turn).map(|turn| Action::Begin(Some(turn))));
            }
            Some(Pass { rows: None, .. }) => actions.push(Action::Read),
            Some(Pass { rows: Some(rows), .. }) => {
                actions.push(Action::Settle(None));
                if state.left_refusals > 0 {
                    actions.extend(bits::each(rows).map(|m| Action::Settle(Some(m))));
                }
            }
        }
        // It locks the maintenance, and the lane.
        let is_free = !state.is_maintained() || self.is(Mutant::DrainsByOldCursor);
        if state.left_resends > 0 && is_free && state.pass.is_none() {
            actions.extend(bits::each(state.settled & !state.gone & !state.parked).map(Action::Resend));
        }
    }
}

impl Model for Reading {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            turn: 0,
            ending: Ending::No,
            draining: None,
            now: Snapshot { committed: 0, live: 1 },
            empty: 0b110,
            noted: 1,
            writers: [Writer::Idle; 2],
            pass: None,
            settled: 0,
            read: 0,
            parked: 0,
            carried: 0,
            gone: 0,
            left_deaths: 1,
            left_resends: 1,
            left_refusals: 1,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (w, of) in state.writers.iter().enumerate() {
            let waits =
                matches!(of, Writer::Turned(of) if state.ending.locked(state.turn) == Some(number(*of)));
            if !matches!(of, Writer::Committed(_)) && (!waits || self.is(Mutant::NoShareLock)) {
                actions.push(Action::Write(w));
            }
        }
        self.maintenance(state, actions);
        self.relay(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Write(w) => self.write(&mut next, w),
            Action::Begin(believes) => next.pass = Some(Self::begin(state, believes)),
            Action::Read => {
                let mut pass = state.pass?;
                if self.is(Mutant::TurnBeforeSnapshot) {
                    pass.seen = state.now;
                }
                let rows = self.read(state, pass);
                next.pass = rows.map(|rows| Pass { rows: Some(rows), ..pass });
            }
            Action::Settle(parked) => {
                let pass = next.pass.take()?;
                Self::settle(&mut next, pass, pass.rows?);
                next.parked = parked.map_or(state.parked, |m| bits::with(state.parked, m));
                next.left_refusals -= u8::from(parked.is_some());
                let carries = parked.filter(|_| !self.is(Mutant::ParkedCarriesNothing));
                next.carried = carries.map_or(state.carried, |m| bits::with(state.carried, m));
            }
            Action::Lock => next.ending = Ending::Locked,
            Action::SetTurn => (next.turn, next.ending) = (state.turn + 1, Ending::Set),
            Action::EndTurn => {
                next.ending = Ending::No;
                next.note_turn();
            }
            Action::Die => {
                next.left_deaths -= 1;
                (next.ending, next.draining) = (Ending::No, None);
            }
            Action::NoteTurn => next.note_turn(),
            Action::Drain(segment) => next.draining = Some(segment),
            Action::CommitDrained => next.now.live = bits::without(state.now.live, next.draining.take()?),
            Action::Find(segment) => {
                next.empty = bits::without(state.empty, segment);
                next.now.live = bits::with(state.now.live, segment);
            }
            Action::Empty(segment) => {
                let rows = state.rows_in(segment);
                next.gone |= rows;
                next.empty = bits::with(state.empty, segment);
            }
            Action::Resend(m) => {
                next.left_resends -= 1;
                (next.settled, next.read) = (bits::without(state.settled, m), bits::without(state.read, m));
                let Writer::Committed(of) = state.writers[usize::from(m)] else { return None };
                let due = bits::with(0, number(of));
                next.now.live |= if self.is(Mutant::ResendLeavesDrained) { 0 } else { due };
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(READ, |_, state: &State| state.settled & !state.read == 0),
            Property::always(KEPT, |_, state: &State| {
                state.gone & !(state.settled & (!state.parked | state.carried)) == 0
            }),
            Property::always(DELIVERED, |ring: &Self, state: &State| {
                let mut calm = state.clone();
                let pass = Self::begin(&calm, ring.claim(&calm));
                if let Some(rows) = ring.read(&calm, pass) {
                    Self::settle(&mut calm, pass, rows);
                }
                calm.now.committed & !calm.settled == 0
            }),
            Property::sometimes("a message is late for the turn", |_, state: &State| {
                state.now.live.count_ones() > 1 && state.now.committed & !state.settled != 0
            }),
            Property::sometimes("a pass reads one segment, which is not the first", |_, state: &State| {
                let is_so =
                    |pass: Pass| pass.believes.is_some_and(|of| of > 0) && pass.rows.is_some_and(|r| r != 0);
                state.pass.is_some_and(is_so)
            }),
            Property::sometimes("the turn ends during a pass", |_, state: &State| {
                state.pass.is_some_and(|pass| pass.rows.is_some() && pass.turn < state.turn)
            }),
            Property::sometimes("a parked message outlives its segment", |_, state: &State| {
                state.parked & state.gone != 0
            }),
            Property::sometimes("a resent message is in a closed segment", |_, state: &State| {
                let due = state.now.committed & !state.settled;
                state.left_resends == 0 && state.rows_in(before(state.turn)) & due != 0
            }),
            Property::sometimes("a turn begins without its row", |_, state: &State| {
                !state.is_maintained() && !bits::has(state.noted, state.turn)
            }),
        ]
    }
}

/// Each mistake, and the promise that it breaks.
pub const MUTANTS: &[(Mutant, &str)] = &[
    (Mutant::TurnIsNotReadAgain, READ),
    (Mutant::NoShareLock, READ),
    (Mutant::TurnIsNotNoted, READ),
    (Mutant::EmptiesLive, KEPT),
    (Mutant::ParkedCarriesNothing, KEPT),
    (Mutant::DrainsByOldCursor, READ),
    (Mutant::ResendLeavesDrained, READ),
    (Mutant::StaleTurnReads, READ),
    (Mutant::TurnBeforeSnapshot, READ),
    (Mutant::LiveIsNotLookedAt, READ),
    (Mutant::ClaimNamesTurn, DELIVERED),
];
