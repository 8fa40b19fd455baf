//! The participants of a saga, each with an inbox and a barrier whose effects are in its
//! transaction; `barrier` has the barrier itself, with leases.

use oncebox_saga::rules::Command;

use super::{Leads, Mutant, State, shape};
use crate::bits;

/// The row of a step in the table `barrier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Row {
    None,
    Acted,
    /// By this attempt.
    Rejected(u32),
    /// Undone, or never to act any more.
    Gone,
}

/// The outcome of a command at its participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Done,
    Rejected,
    /// The inbox has given it up; its operator may try it again.
    Dead,
}

impl Leads {
    /// The possible outcomes of a command that has none yet.
    pub(super) fn outcomes(state: &State, command: Command) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::Done];
        let may_reject = match state.rows[command.step] {
            _ if command.is_undo => false,
            Row::None => state.left.rejections > 0,
            Row::Rejected(of) if of <= command.attempt => state.left.rejections > 0,
            Row::Acted => false,
            Row::Rejected(_) | Row::Gone => return vec![Outcome::Rejected],
        };
        outcomes.extend(may_reject.then_some(Outcome::Rejected));
        outcomes.extend((state.left.deaths > 0).then_some(Outcome::Dead));
        outcomes
    }

    pub(super) fn handle(&self, next: &mut State, number: u8, outcome: Outcome) {
        let Command { step, is_undo, attempt } = shape::command(number);
        let row = next.rows[step];
        match outcome {
            Outcome::Dead => {
                next.left.deaths -= 1;
                next.dead = bits::with(next.dead, number);
            }
            Outcome::Rejected => {
                if !matches!(row, Row::Gone) && !matches!(row, Row::Rejected(of) if of > attempt) {
                    next.left.rejections -= 1;
                    next.rows[step] = Row::Rejected(attempt);
                }
                next.rejected = bits::with(next.rejected, number);
            }
            Outcome::Done => {
                next.done = bits::with(next.done, number);
                if is_undo {
                    next.undone[step] +=
                        u8::from(row == Row::Acted || row == Row::Gone && self.is(Mutant::UndoTwice));
                    let leaves_mark = row != Row::None || !self.is(Mutant::NoMark);
                    next.rows[step] = if leaves_mark { Row::Gone } else { row };
                } else {
                    next.acted[step] += u8::from(row != Row::Acted);
                    next.rows[step] = Row::Acted;
                }
            }
        }
    }
}

impl State {
    /// Whether an effect of this step stands, or may still come.
    pub(super) fn may_stand(&self, step: usize) -> bool {
        let sent = self.sent & shape::actions_of(step);
        match self.rows[step] {
            Row::None => sent != 0,
            Row::Acted => true,
            Row::Rejected(of) => bits::each(sent).any(|number| shape::command(number).attempt > of),
            Row::Gone => false,
        }
    }
}
