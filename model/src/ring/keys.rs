//! Two transactions enqueue one key, while turns end and segments are emptied; or one moves the
//! delayed message that has the key. Which of the closed segments are drained is left open: any may
//! be emptied, but that of the turn before.

use stateright::{Model, Property};

use super::{Ending, Mutant, TURNS_MAX, before, number};
use crate::bits::{self, Bits};

#[derive(Clone, Copy, Debug)]
pub struct Keys {
    pub mutant: Option<Mutant>,
}

/// How a transaction enqueues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    ReadCommitted,
    /// All its statements have the snapshot of its beginning.
    RepeatableRead,
    /// `move_delayed`: it writes the delayed message of the key into the log.
    Mover,
}

/// The part of a snapshot that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// Producers.
    committed: Bits,
    /// Turns with a row in the table `segment`.
    noted: Bits,
    has_delayed: bool,
}

/// `enqueue`, between whose steps others may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Idle,
    Begun,
    /// It has read the turn.
    Turned(u8),
    /// Its INSERT has a snapshot.
    Inserting(u8, Snapshot),
    Written,
    Committed,
    /// The key was there, or it was undone.
    Ended,
    /// 40001: its snapshot is older than the turn.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Producer {
    way: Way,
    /// The snapshot of the whole transaction.
    own: Option<Snapshot>,
    phase: Phase,
    /// The turn in whose segment its row is.
    row: Option<u8>,
    /// Segments that it has locked to write, and to look.
    wrote: Bits,
    looked: Bits,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    turn: u8,
    ending: Ending,
    now: Snapshot,
    producers: [Producer; 2],
    /// Segments that hold nothing, as the table `segment` says it.
    empty: Bits,
    /// Producers whose rows were emptied.
    gone: Bits,
    left_aborts: u8,
    left_deaths: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Produce(usize),
    Abort(usize),
    Lock,
    SetTurn,
    EndTurn,
    /// The process of `end_turn` dies.
    Die,
    NoteTurn,
    Empty(u8),
}

pub const UNIQUE: &str = "a key is unique within a turn and the one before, and while it is delayed";

impl Producer {
    fn new(way: Way) -> Self {
        Self { way, own: None, phase: Phase::Idle, row: None, wrote: 0, looked: 0 }
    }

    fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Committed | Phase::Ended | Phase::Refused)
    }

    fn is_in(&self, segment: u8) -> bool {
        self.row.is_some_and(|row| number(row) == segment)
    }
}

impl State {
    /// Producers whose rows are committed and stand in a segment.
    fn rows_in(&self, segment: u8) -> Bits {
        let rows = bits::each(self.now.committed & !self.gone);
        rows.filter(|p| self.producers[usize::from(*p)].is_in(segment)).fold(0, bits::with)
    }

    fn note_turn(&mut self) {
        self.now.noted = bits::with(self.now.noted, self.turn);
        self.empty = bits::without(self.empty, number(self.turn));
    }
}

impl Keys {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// For the lock of a segment, or for another transaction that has written the key.
    fn waits(&self, state: &State, p: usize) -> bool {
        let Phase::Inserting(turn, _) = state.producers[p].phase else { return false };
        let is_locked = state.ending.locked(state.turn) == Some(number(turn));
        let other = state.producers[1 - p];
        is_locked && !self.is(Mutant::NoShareLock) || other.is_open() && other.is_in(number(turn))
    }

    fn produce(&self, next: &mut State, p: usize) {
        let (turn, now) = (next.turn, next.now);
        let producer = &mut next.producers[p];
        match producer.phase {
            Phase::Idle => {
                producer.own = (producer.way == Way::RepeatableRead).then_some(now);
                producer.phase = Phase::Begun;
            }
            Phase::Begun => {
                // check_turn()
                let is_noted = producer.own.is_none_or(|own| bits::has(own.noted, turn));
                let may = is_noted || self.is(Mutant::NoCheckTurn);
                producer.phase = if may { Phase::Turned(turn) } else { Phase::Refused };
            }
            Phase::Turned(of) => producer.phase = Phase::Inserting(of, producer.own.unwrap_or(now)),
            Phase::Inserting(of, seen) => self.insert(next, p, of, seen),
            Phase::Written => {
                next.now.has_delayed &= producer.way != Way::Mover;
                next.now.committed = bits::with(now.committed, u8::try_from(p).expect("two"));
                producer.phase = Phase::Committed;
            }
            Phase::Committed | Phase::Ended | Phase::Refused => {}
        }
    }

    /// The INSERT of `enqueue` and `append`: it locks its tables, reads the turn again, and looks.
    fn insert(&self, next: &mut State, p: usize, turn: u8, seen: Snapshot) {
        let is_this_turn = turn == next.turn || self.is(Mutant::TurnIsNotReadAgain);
        // The unique index has all rows, also those that the snapshot does not show.
        let is_placeholder = |of: &Snapshot, turn: u8| of.has_delayed && turn == 0;
        let is_moved = next.producers[p].way == Way::Mover;
        let is_taken = next.rows_in(number(turn)) != 0 || is_placeholder(&next.now, turn) && !is_moved;
        let rows_before = turn > 0 && next.rows_in(before(turn)) & seen.committed != 0;
        let is_before = rows_before || turn > 0 && is_placeholder(&seen, turn - 1);
        let finds = is_before && !self.is(Mutant::NoLookBefore)
            || seen.has_delayed && !self.is(Mutant::NoLookAtDelayed);
        let producer = &mut next.producers[p];
        producer.wrote = bits::with(producer.wrote, number(turn));
        producer.looked = bits::with(producer.looked, before(turn));
        producer.phase = match () {
            () if !is_this_turn => Phase::Begun,
            () if is_taken || finds && !is_moved => Phase::Ended,
            () => Phase::Written,
        };
        producer.row = (producer.phase == Phase::Written).then_some(turn);
    }

    fn maintenance(&self, state: &State, actions: &mut Vec<Action>) {
        if state.ending != Ending::No {
            let is_set = state.ending == Ending::Set;
            actions.push(if is_set { Action::EndTurn } else { Action::SetTurn });
            return actions.extend((state.left_deaths > 0).then_some(Action::Die));
        }
        let this = number(state.turn);
        let open = || state.producers.iter().filter(|of| of.is_open());
        let may_lock = !open().any(|of| bits::has(of.wrote, this)) || self.is(Mutant::NoShareLock);
        if !bits::has(state.now.noted, state.turn) {
            actions.push(Action::NoteTurn);
        } else if state.turn < TURNS_MAX && bits::has(state.empty, number(state.turn + 1)) && may_lock {
            actions.push(Action::Lock);
        }
        for segment in 0..super::SEGMENTS {
            let is_old = segment != before(state.turn) || self.is(Mutant::EmptiesSegmentBefore);
            let is_locked = open().any(|of| bits::has(of.wrote | of.looked, segment));
            if segment != this && is_old && !is_locked && !bits::has(state.empty, segment) {
                actions.push(Action::Empty(segment));
            }
        }
    }
}

impl Model for Keys {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let others = [Way::ReadCommitted, Way::RepeatableRead];
        let firsts = [Way::ReadCommitted, Way::RepeatableRead, Way::Mover];
        let ways = firsts.into_iter().flat_map(|first| others.map(|other| [first, other]));
        let begin = |ways: [Way; 2]| State {
            turn: 0,
            ending: Ending::No,
            now: Snapshot { committed: 0, noted: 1, has_delayed: ways[0] == Way::Mover },
            producers: ways.map(Producer::new),
            empty: 0b110,
            gone: 0,
            left_aborts: 1,
            left_deaths: 1,
        };
        ways.map(begin).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (p, of) in state.producers.iter().enumerate() {
            if (of.is_open() || of.phase == Phase::Idle) && !self.waits(state, p) {
                actions.push(Action::Produce(p));
            }
            if of.phase == Phase::Written && state.left_aborts > 0 {
                actions.push(Action::Abort(p));
            }
        }
        self.maintenance(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Produce(p) => self.produce(&mut next, p),
            Action::Abort(p) => {
                next.left_aborts -= 1;
                (next.producers[p].phase, next.producers[p].row) = (Phase::Ended, None);
            }
            Action::Lock => next.ending = Ending::Locked,
            Action::SetTurn => (next.turn, next.ending) = (state.turn + 1, Ending::Set),
            Action::EndTurn => {
                next.ending = Ending::No;
                next.note_turn();
            }
            Action::Die => {
                next.left_deaths -= 1;
                next.ending = Ending::No;
            }
            Action::NoteTurn => next.note_turn(),
            Action::Empty(segment) => {
                next.gone |= state.rows_in(segment);
                next.empty = bits::with(state.empty, segment);
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(UNIQUE, |_, state: &State| {
                let [first, other] = state.producers.map(|of| of.row);
                let are_near = first.zip(other).is_some_and(|(first, other)| first.abs_diff(other) <= 1);
                let is_delayed = state.now.has_delayed && state.now.committed != 0;
                !is_delayed && (state.now.committed != 0b11 || !are_near)
            }),
            Property::sometimes("a key comes again later", |_, state: &State| state.now.committed == 0b11),
            Property::sometimes("an older snapshot is refused", |_, state: &State| {
                state.producers.iter().any(|of| of.phase == Phase::Refused)
            }),
            Property::sometimes("an INSERT finds that the turn has ended", |_, state: &State| {
                state.producers.iter().any(|of| of.phase == Phase::Begun && of.wrote != 0)
            }),
            Property::sometimes("a turn begins without its row", |_, state: &State| {
                state.ending == Ending::No && !bits::has(state.now.noted, state.turn)
            }),
            Property::sometimes("a segment is used again", |_, state: &State| {
                state.gone != 0 && state.turn == TURNS_MAX
            }),
        ]
    }
}

/// Each mistake, and the promise that it breaks.
pub const MUTANTS: &[(Mutant, &str)] = &[
    (Mutant::TurnIsNotReadAgain, UNIQUE),
    (Mutant::NoCheckTurn, UNIQUE),
    (Mutant::NoLookBefore, UNIQUE),
    (Mutant::NoLookAtDelayed, UNIQUE),
    (Mutant::NoShareLock, UNIQUE),
    (Mutant::EmptiesSegmentBefore, UNIQUE),
];
