//! Steps as their rows have them.

use oncebox_claims::database::Parameter;
use tokio_postgres::types::Type;

use super::column;
use crate::{
    instance::{Instance, Sent},
    progress::StepState,
};

/// Rows of steps, column by column, as a statement takes them.
pub(super) struct StepColumns<'a> {
    /// The sagas' ids.
    pub(super) owners: Vec<i64>,
    names: Vec<&'a str>,
    states: Vec<&'static str>,
    attempts: Vec<i32>,
    undo_attempts: Vec<i32>,
    in_doubt: Vec<bool>,
    subjects: Vec<&'a str>,
    payloads: Vec<&'a [u8]>,
    undo_subjects: Vec<Option<&'a str>>,
    undo_payloads: Vec<Option<&'a [u8]>>,
    reasons: Vec<Option<&'a str>>,
    late_in: Vec<Option<f64>>,
}

impl<'a> StepColumns<'a> {
    /// The rows of instances that are to be written.
    pub(super) fn changed(instances: impl IntoIterator<Item = &'a Instance>) -> Self {
        let row = |instance: &'a Instance| instance.changed.iter().map(move |at| StepRow::new(instance, at));
        let rows: Vec<StepRow<'a>> = instances.into_iter().flat_map(row).collect();
        Self {
            owners: column(&rows, |row| row.owner),
            names: column(&rows, |row| row.name),
            states: column(&rows, |row| row.state),
            attempts: column(&rows, |row| row.attempt),
            undo_attempts: column(&rows, |row| row.undo_attempt),
            in_doubt: column(&rows, |row| row.in_doubt),
            subjects: column(&rows, |row| row.subject),
            payloads: column(&rows, |row| row.payload),
            undo_subjects: column(&rows, |row| row.undo_subject),
            undo_payloads: column(&rows, |row| row.undo_payload),
            reasons: column(&rows, |row| row.reason),
            late_in: column(&rows, |row| row.late_in),
        }
    }

    /// In the order in which the statements take them.
    pub(super) fn parameters(&self) -> [Parameter<'_>; 11] {
        [
            (&self.names, Type::TEXT_ARRAY),
            (&self.states, Type::TEXT_ARRAY),
            (&self.attempts, Type::INT4_ARRAY),
            (&self.undo_attempts, Type::INT4_ARRAY),
            (&self.in_doubt, Type::BOOL_ARRAY),
            (&self.subjects, Type::TEXT_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
            (&self.undo_subjects, Type::TEXT_ARRAY),
            (&self.undo_payloads, Type::BYTEA_ARRAY),
            (&self.reasons, Type::TEXT_ARRAY),
            (&self.late_in, Type::FLOAT8_ARRAY),
        ]
    }
}

/// The row of a step that was sent.
struct StepRow<'a> {
    owner: i64,
    name: &'a str,
    state: &'static str,
    attempt: i32,
    undo_attempt: i32,
    in_doubt: bool,
    subject: &'a str,
    payload: &'a [u8],
    undo_subject: Option<&'a str>,
    undo_payload: Option<&'a [u8]>,
    reason: Option<&'a str>,
    late_in: Option<f64>,
}

impl<'a> StepRow<'a> {
    fn new(instance: &'a Instance, at: usize) -> Self {
        let (step, commands) = (&instance.progress.steps[at], &instance.commands[at]);
        let action = commands.action.as_ref().expect("what changes was sent");
        let undo = commands.undo.as_ref();
        let number = |attempt: u32| i32::try_from(attempt).unwrap_or(i32::MAX);
        Self {
            owner: instance.id,
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
