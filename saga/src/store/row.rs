//! A step as its row has it.

use crate::{
    instance::{Instance, Sent},
    progress::StepState,
};

/// The row of a step that was sent.
pub(super) struct StepRow<'a> {
    pub(super) saga_id: i64,
    pub(super) name: &'a str,
    pub(super) state: &'static str,
    pub(super) attempt: i32,
    pub(super) undo_attempt: i32,
    pub(super) in_doubt: bool,
    pub(super) subject: &'a str,
    pub(super) payload: &'a [u8],
    pub(super) undo_subject: Option<&'a str>,
    pub(super) undo_payload: Option<&'a [u8]>,
    pub(super) reason: Option<&'a str>,
    pub(super) late_in: Option<f64>,
}

impl<'a> StepRow<'a> {
    /// The rows of an instance that are to be written.
    pub(super) fn changed(instance: &'a Instance) -> impl Iterator<Item = Self> {
        instance.changed.iter().map(|at| Self::new(instance, at))
    }

    fn new(instance: &'a Instance, at: usize) -> Self {
        let (step, commands) = (&instance.progress.steps[at], &instance.commands[at]);
        let action = commands.action.as_ref().expect("what changes was sent");
        let undo = commands.undo.as_ref();
        let number = |attempt: u32| i32::try_from(attempt).unwrap_or(i32::MAX);
        Self {
            saga_id: instance.id,
            name: &instance.process.graph().nodes[at].name,
            state: step.state.as_str(),
            attempt: number(step.attempt),
            undo_attempt: number(step.undo_attempt),
            in_doubt: step.in_doubt,
            subject: action.subject.as_str(),
            payload: &action.payload,
            undo_subject: undo.map(|sent| sent.subject.as_str()),
            undo_payload: undo.map(|sent: &Sent| sent.payload.as_slice()),
            reason: step.reason.as_deref(),
            late_in: commands.late_in,
        }
    }
}

/// The states of steps that have rows, and what they are called there.
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
