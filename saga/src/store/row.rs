//! Steps as their rows have them.

use oncebox_schema::Parameter;

use super::column;
use crate::{
    instance::{Commands, Instance, Sent},
    progress::{StepProgress, StepState},
};

struct StepRow<'a> {
    saga: i64,
    name: &'a str,
    step: &'a StepProgress,
    commands: &'a Commands,
    action: &'a Sent,
}

/// The steps of instances that are to be written, column by column, in the order in which the
/// statements take them; the first column has the sagas' ids.
pub(super) fn changed_steps<'a>(
    instances: impl IntoIterator<Item = &'a Instance>,
) -> [Box<dyn Parameter + Send + 'a>; 12] {
    let row = |instance: &'a Instance, at: usize| {
        let (step, commands) = (&instance.progress.steps[at], &instance.commands[at]);
        let (saga, name) = (instance.id, instance.process.graph().nodes[at].name.as_str());
        let action = commands.action.as_ref().expect("what changes was sent");
        StepRow { saga, name, step, commands, action }
    };
    let changed = instances.into_iter().flat_map(|one| one.changed.iter().map(move |at| row(one, at)));
    let rows: Vec<StepRow<'a>> = changed.collect();
    let number = |attempt: u32| i32::try_from(attempt).unwrap_or(i32::MAX);
    [
        Box::new(column(&rows, |row| row.saga)),
        Box::new(column(&rows, |row| row.name)),
        Box::new(column(&rows, |row| row.step.state.as_str())),
        Box::new(column(&rows, |row| number(row.step.attempt))),
        Box::new(column(&rows, |row| number(row.step.undo_attempt))),
        Box::new(column(&rows, |row| row.step.in_doubt)),
        Box::new(column(&rows, |row| row.action.subject.as_str())),
        Box::new(column(&rows, |row| row.action.payload.as_slice())),
        Box::new(column(&rows, |row| row.commands.undo.as_ref().map(|sent| sent.subject.as_str()))),
        Box::new(column(&rows, |row| row.commands.undo.as_ref().map(|sent| sent.payload.as_slice()))),
        Box::new(column(&rows, |row| row.step.reason.as_deref())),
        Box::new(column(&rows, |row| row.commands.late_in)),
    ]
}

/// The states of steps that have rows, and their names there.
const STATES: [(StepState, &str); 8] = [
    (StepState::Pending, "pending"),
    (StepState::Sent, "sent"),
    (StepState::Done, "done"),
    (StepState::Rejected, "rejected"),
    (StepState::Failed, "failed"),
    (StepState::Undoing, "undoing"),
    (StepState::UndoFailed, "undo-failed"),
    (StepState::Undone, "undone"),
];

impl StepState {
    fn as_str(self) -> &'static str {
        STATES.iter().find(|(state, _)| *state == self).map_or("pending", |(_, name)| name)
    }

    pub(super) fn of_name(name: &str) -> Option<Self> {
        STATES.iter().find(|(_, known)| *known == name).map(|(state, _)| *state)
    }
}
