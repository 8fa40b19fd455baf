//! The types of the state machine: the state of an instance, the events that can happen to it, and
//! the commands that are sent then.

#![expect(missing_docs, reason = "public only for the specification, by `rules`")]

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::graph::{Graph, Node};

/// The state of an instance and of each of its steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Progress {
    pub direction: Direction,
    /// Why the instance is undone. A text for people, which no recording has.
    #[serde(skip)]
    pub reason: Option<String>,
    /// In the order of the graph.
    pub steps: Vec<StepProgress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    Forward,
    Backward,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StepProgress {
    pub state: StepState,
    /// The newest attempt, 0 before the first.
    pub attempt: u32,
    pub undo_attempt: u32,
    /// Whether an attempt before the newest may have had an effect.
    pub in_doubt: bool,
    #[serde(skip)]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepState {
    Pending,
    Sent,
    Done,
    /// The participant said no: the newest attempt had no effect.
    Rejected,
    /// The command is dead or its answer is late: it is not known whether it had an effect.
    Failed,
    Undoing,
    UndoFailed,
    Undone,
}

/// The state of an instance as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Running,
    Compensating,
    Stuck,
    Completed,
    Compensated,
}

/// An event of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    Started,
    Answered(Command, Answer),
    /// The newest command of this step was not answered in time.
    StepLate(usize),
    /// The deadline of the instance passed before its pivot was done.
    Late,
    /// An operator wants another attempt after this one.
    Retry(Command),
    /// An operator has done this step, or undone it, by hand.
    Skip(Command),
}

/// One attempt at a step, or at its compensation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Command {
    pub step: usize,
    pub is_undo: bool,
    pub attempt: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Done,
    Rejected,
    /// The inbox of this scope has given the command up.
    Dead {
        scope: String,
        #[serde(skip)]
        reason: String,
    },
}

/// The result of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Applied,
    /// It answers a command that was not sent yet, so it has to wait.
    Early,
    /// It comes too late to matter, and changes nothing.
    Late,
    /// It is known already, and changes nothing.
    Duplicate,
    /// It tells of a copy of the command, which is not the participant's, and changes nothing.
    Foreign,
}

/// A command to be sent, after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    pub command: Command,
    pub pause: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub progress: Progress,
    pub verdict: Verdict,
    pub sendings: Vec<Sending>,
}

impl Progress {
    /// The progress of an instance that has not begun.
    pub fn new(graph: &Graph) -> Self {
        let step = StepProgress {
            state: StepState::Pending,
            attempt: 0,
            undo_attempt: 0,
            in_doubt: false,
            reason: None,
        };
        Self { direction: Direction::Forward, reason: None, steps: vec![step; graph.nodes.len()] }
    }

    pub fn state(&self, graph: &Graph) -> State {
        let any = |waits: fn(StepState) -> bool| self.steps.iter().any(|step| waits(step.state));
        match self.direction {
            Direction::Forward if any(|state| matches!(state, StepState::Rejected | StepState::Failed)) => {
                State::Stuck
            }
            Direction::Forward if any(|state| state != StepState::Done) => State::Running,
            Direction::Forward => State::Completed,
            Direction::Backward if any(|state| state == StepState::UndoFailed) => State::Stuck,
            Direction::Backward => {
                let is_settled = |at: usize| self.steps[at].is_settled(&graph.nodes[at]);
                if (0..self.steps.len()).all(is_settled) { State::Compensated } else { State::Compensating }
            }
        }
    }

    /// Whether an answer to the newest command of this step is awaited.
    pub fn is_awaited(&self, step: usize) -> bool {
        matches!(self.steps[step].state, StepState::Sent | StepState::Undoing)
    }
}

impl StepProgress {
    /// Backward: nothing of this step is left to be undone.
    pub(crate) fn is_settled(&self, node: &Node) -> bool {
        match self.state {
            StepState::Pending | StepState::Undone => true,
            StepState::Rejected => !self.in_doubt || node.compensation.is_none(),
            StepState::Done | StepState::Failed => node.compensation.is_none(),
            StepState::Sent | StepState::Undoing | StepState::UndoFailed => false,
        }
    }

    /// Whether it may have had an effect.
    pub fn may_have_acted(&self) -> bool {
        match self.state {
            StepState::Pending => false,
            StepState::Rejected => self.in_doubt,
            _ => true,
        }
    }
}
