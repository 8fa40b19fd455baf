//! The definitions that are checked, and the numbers of their commands.

use std::time::Duration;

use oncebox_saga::{Definition, Graph, Step, rules::Command};

use crate::bits::Bits;

/// The scope of all participants.
pub(super) const SCOPE: &str = "s";
/// An attempt more than the definitions allow, for an operator's.
const ATTEMPTS_MAX: u8 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    graph: fn() -> Graph,
    /// For each step all that come after it.
    pub(super) behind: &'static [&'static [usize]],
}

impl Shape {
    pub(super) fn graph(&self) -> Graph {
        (self.graph)()
    }
}

fn step(name: &'static str) -> Step<()> {
    Step::new(name, format!("do.{name}"), |()| ()).scope(SCOPE)
}

fn undoable(name: &'static str) -> Step<()> {
    step(name).compensation(format!("undo.{name}"), |()| ())
}

fn build(stages: Vec<Vec<Step<()>>>) -> Graph {
    let builder = Definition::<()>::builder("order", 1);
    let definition = stages.into_iter().fold(builder, |builder, stage| builder.parallel(stage)).build();
    definition.expect("these are definitions").graph().clone()
}

/// Two steps that can be undone, and one that cannot.
pub(super) const CHAIN: Shape = Shape {
    name: "chain",
    graph: || build(vec![vec![undoable("reserve")], vec![undoable("pay")], vec![step("ship").pivot()]]),
    behind: &[&[1, 2], &[2], &[]],
};

/// A step after the pivot.
pub(super) const PIVOT: Shape = Shape {
    name: "pivot",
    graph: || build(vec![vec![undoable("pay")], vec![step("ship").pivot()], vec![step("tell")]]),
    behind: &[&[1, 2], &[2], &[]],
};

/// Further attempts.
pub(super) const AGAIN: Shape = Shape {
    name: "again",
    graph: || {
        let pay = undoable("pay").attempts(2, Duration::from_secs(1));
        build(vec![vec![undoable("reserve")], vec![pay]])
    },
    behind: &[&[1], &[]],
};

/// Two steps at the same time, and one after them.
pub(super) const PARALLEL: Shape = Shape {
    name: "parallel",
    graph: || build(vec![vec![undoable("reserve"), undoable("pay")], vec![undoable("ship")]]),
    behind: &[&[2], &[2], &[]],
};

/// The number of a command, which stands for its key.
pub(super) fn number(command: Command) -> u8 {
    let attempt = u8::try_from(command.attempt).expect("a few").min(ATTEMPTS_MAX);
    let step = u8::try_from(command.step).expect("a few");
    8 * step + 4 * u8::from(command.is_undo) + attempt
}

pub(super) fn command(number: u8) -> Command {
    Command {
        step: usize::from(number / 8),
        is_undo: number & 4 != 0,
        attempt: u32::from(number & ATTEMPTS_MAX),
    }
}

/// The commands of a step's action.
pub(super) fn actions_of(step: usize) -> Bits {
    0b1110 << (8 * step)
}
