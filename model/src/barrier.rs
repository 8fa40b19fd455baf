//! The barrier of a saga's participant (`0009_barrier.sql`): commands for two attempts at an action
//! and two at its compensation. They come in any order, again and again, and die at any step.

use stateright::{Model, Property};

/// A mistake at the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A compensation that finds no action leaves no mark that refuses the action.
    NoMark,
    /// A compensation undoes again.
    UndoTwice,
    /// A second attempt acts although the first one did.
    ActTwice,
    /// A compensation passes an action that is under way.
    UndoWhileActing,
    /// A rejected action is acted again after its compensation.
    ActAfterUndo,
    /// An attempt under a lease is taken over although it may have undone.
    UndoIsTakenOver,
}

/// Under a lease, entry and end are two transactions, with the effect between them.
#[derive(Clone, Copy, Debug)]
pub struct Barrier {
    pub is_leased: bool,
    pub mutant: Option<Mutant>,
}

/// The column `state` of the table `barrier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Row {
    Acting,
    Acted,
    Rejected,
    Undoing,
    Undone,
    Refused,
}

/// A command: an attempt at the action, or at its compensation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Command {
    pub is_undo: bool,
    pub attempt: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Run {
    #[default]
    Idle,
    Entered,
    /// It has had its effect, and has not said so.
    Affected,
}

const COMMANDS: [Command; 4] = [
    Command { is_undo: false, attempt: 1 },
    Command { is_undo: false, attempt: 2 },
    Command { is_undo: true, attempt: 1 },
    Command { is_undo: true, attempt: 2 },
];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    row: Option<(Row, u8)>,
    runs: [Run; 4],
    /// Commands that have had their effect outside: the leased run remembers it.
    had_effect: [bool; 4],
    /// A compensation has been answered: undone, or nothing to undo.
    is_compensated: bool,
    acted: u8,
    undone: u8,
    left_rejections: u8,
    left_deaths: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Enter(usize),
    Affect(usize),
    /// The end, with or without an effect.
    End(usize, bool),
    Die(usize),
}

pub const ONCE: &str = "an action acts once, and is undone once";
pub const NOTHING_STAYS: &str = "of a compensated action nothing stays";

impl Barrier {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// `enter_action`: whether it may act.
    fn enter_action(&self, next: &mut State, attempt: u8) -> bool {
        let entered = if self.is_leased { Row::Acting } else { Row::Acted };
        let may = match next.row {
            None => true,
            Some((Row::Acted, _)) => self.is(Mutant::ActTwice),
            Some((Row::Acting, of)) => of == attempt,
            Some((Row::Rejected, of)) => of <= attempt,
            Some((Row::Refused, _)) => self.is(Mutant::ActAfterUndo),
            Some(_) => false,
        };
        if may {
            next.row = Some((entered, attempt));
        }
        may
    }

    /// `enter_compensation`: whether it has something to undo; `None` to wait.
    fn enter_compensation(&self, next: &mut State, attempt: u8) -> Option<bool> {
        let (row, of) = match next.row {
            None => {
                next.row = (!self.is(Mutant::NoMark)).then_some((Row::Refused, 1));
                return Some(false);
            }
            Some(row) => row,
        };
        let undoing = if self.is_leased { Row::Undoing } else { Row::Undone };
        let may_have_undone =
            || next.had_effect[1 + usize::from(of)] || next.runs[1 + usize::from(of)] != Run::Idle;
        match row {
            Row::Acting if !self.is(Mutant::UndoWhileActing) => None,
            Row::Undoing if of != attempt && may_have_undone() && !self.is(Mutant::UndoIsTakenOver) => None,
            Row::Acting | Row::Acted | Row::Undoing => {
                next.row = Some((undoing, attempt));
                Some(true)
            }
            Row::Undone if self.is(Mutant::UndoTwice) => Some(true),
            Row::Rejected => {
                next.row = Some((Row::Refused, attempt));
                Some(false)
            }
            Row::Undone | Row::Refused => Some(false),
        }
    }

    fn enter(&self, next: &mut State, c: usize) {
        let Command { is_undo, attempt } = COMMANDS[c];
        let may = if is_undo {
            let Some(has_something) = self.enter_compensation(next, attempt) else { return };
            next.is_compensated |= !has_something;
            has_something
        } else {
            self.enter_action(next, attempt)
        };
        if may && self.is_leased {
            next.runs[c] = Run::Entered;
        } else if may {
            // Entry, effect and end are one transaction.
            affect(next, c);
            next.is_compensated |= is_undo;
        }
    }

    /// `end_action` and `end_compensation`: only of the run that was let through.
    fn end(&self, next: &mut State, c: usize, had_effect: bool) {
        let Command { is_undo, attempt } = COMMANDS[c];
        let under_way = if is_undo { Row::Undoing } else { Row::Acting };
        let fits = |(row, of): (Row, u8)| row == under_way && of == attempt;
        next.runs[c] = Run::Idle;
        if !next.row.is_some_and(fits) {
            return;
        }
        let ended = match (is_undo, had_effect) {
            (false, true) | (true, false) => Row::Acted,
            (false, false) => Row::Rejected,
            (true, true) => Row::Undone,
        };
        next.row = Some((ended, attempt));
        next.is_compensated |= is_undo && had_effect;
    }
}

fn affect(next: &mut State, c: usize) {
    // A leased run that is repeated remembers that its effect happened.
    if std::mem::replace(&mut next.had_effect[c], true) && next.runs[c] == Run::Entered {
        return;
    }
    if COMMANDS[c].is_undo {
        next.undone += 1;
    } else {
        next.acted += 1;
    }
}

impl Model for Barrier {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            row: None,
            runs: [Run::Idle; 4],
            had_effect: [false; 4],
            is_compensated: false,
            acted: 0,
            undone: 0,
            left_rejections: 1,
            left_deaths: 2,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for c in 0..COMMANDS.len() {
            match state.runs[c] {
                Run::Idle => actions.push(Action::Enter(c)),
                Run::Entered => {
                    actions.push(Action::Affect(c));
                    if state.left_rejections > 0 && !state.had_effect[c] {
                        actions.push(Action::End(c, false));
                    }
                }
                Run::Affected => actions.push(Action::End(c, true)),
            }
            if state.left_deaths > 0 && state.runs[c] != Run::Idle {
                actions.push(Action::Die(c));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Enter(c) => self.enter(&mut next, c),
            Action::Affect(c) => {
                affect(&mut next, c);
                next.runs[c] = Run::Affected;
            }
            Action::End(c, had_effect) => {
                next.left_rejections -= u8::from(!had_effect);
                self.end(&mut next, c, had_effect);
            }
            Action::Die(c) => {
                next.left_deaths -= 1;
                next.runs[c] = Run::Idle;
            }
        }
        (next != *state && next.acted < 3 && next.undone < 3).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |_, state: &State| state.acted <= 1 && state.undone <= 1),
            Property::always(NOTHING_STAYS, |_, state: &State| {
                !state.is_compensated || state.acted == state.undone
            }),
        ]
    }
}

/// Each mistake with the kind of run, and the promise that it breaks.
pub const MUTANTS: &[(Mutant, bool, &str)] = &[
    (Mutant::NoMark, false, NOTHING_STAYS),
    (Mutant::UndoTwice, false, ONCE),
    (Mutant::ActTwice, false, ONCE),
    (Mutant::ActAfterUndo, false, NOTHING_STAYS),
    (Mutant::UndoWhileActing, true, NOTHING_STAYS),
    (Mutant::UndoIsTakenOver, true, ONCE),
];
