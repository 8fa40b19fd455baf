//! Sagas for people.

use std::time::Duration;

use oncebox_operator::{AuditRow, RefusedAnswer, SagaDetails, SagaReply, SagaStep, Time};

use crate::command::output::{self, time};

pub(super) fn details(details: &SagaDetails) -> String {
    let saga = &details.progress.saga;
    let line = |name: &str, value: String| [name.to_owned(), value];
    let mut rows = vec![
        line("type", format!("{} v{}", saga.saga_type, saga.version)),
        line("about", saga.business_id.clone()),
        line("state", saga.state.clone()),
        line("direction", saga.direction.clone()),
        line("reason", saga.reason.clone().unwrap_or_default()),
        line("waiting", saga.waiting.join(", ")),
        line("began", time(saga.created_at)),
        line("changed", time(saga.changed_at)),
        line("deadline", saga.deadline_at.map(time).unwrap_or_default()),
        line("finished", saga.finished_at.map(time).unwrap_or_default()),
    ];
    rows.extend(details.data.as_ref().map(|data| line("data", data.text().to_owned())));
    let mut text = output::table(["KEY", &saga.key], &rows) + "\n" + &steps(&details.progress.steps);
    if !details.replies.is_empty() {
        let reply =
            |reply: &SagaReply| [reply.step.clone(), reply.outcome.clone(), reply.payload.text().to_owned()];
        let rows: Vec<[String; 3]> = details.replies.iter().map(reply).collect();
        text += "\n";
        text += &output::table(["REPLY OF", "ANSWER", "REPLY"], &rows);
    }
    if !details.events.is_empty() {
        let rows: Vec<[String; 3]> = details
            .events
            .iter()
            .map(|event| {
                let step = if event.is_undo { format!("{}:undo", event.step) } else { event.step.clone() };
                [event.kind.clone(), step, time(event.created_at)]
            })
            .collect();
        text += "\n";
        text += &output::table(["TO BE APPLIED", "STEP", "CAME"], &rows);
    }
    if !details.refused.is_empty() {
        let refused = |one: &RefusedAnswer| {
            let [key, command] = [&one.key, &one.command].map(|text| text.clone().unwrap_or_default());
            [time(one.refused_at), key, command, one.reason.clone()]
        };
        let rows: Vec<[String; 4]> = details.refused.iter().map(refused).collect();
        text += "\n";
        text += &output::table(["REFUSED", "ANSWER", "IN REPLY TO", "REASON"], &rows);
    }
    if !details.audit.is_empty() {
        let rows: Vec<[String; 5]> = details.audit.iter().map(done).collect();
        text += "\n";
        text += &output::table(["DONE", "BY", "ACTION", "STEP", "NOTE"], &rows);
    }
    text
}

fn done(row: &AuditRow) -> [String; 5] {
    let who = row.operator.as_deref().unwrap_or(&row.database_user);
    let [step, note] = [&row.reason, &row.note].map(|text| text.clone().unwrap_or_default());
    [time(row.happened_at), who.to_owned(), row.action.clone(), step, note]
}

/// A table of steps, each with its compensation.
pub(in crate::command) fn steps(steps: &[SagaStep]) -> String {
    let rows: Vec<[String; 9]> = steps
        .iter()
        .map(|step| {
            let action = took(Some(step.sent_at), step.answered_at);
            let undo = took(step.undo_sent_at, step.undone_at).map(|took| format!("undo {took}"));
            let took = action.into_iter().chain(undo).collect::<Vec<_>>().join(", ");
            let [answered, undo_sent, undone] = [step.answered_at, step.undo_sent_at, step.undone_at]
                .map(|at| at.map(time).unwrap_or_default());
            [
                step.step.clone(),
                step.state.clone(),
                attempts(step),
                time(step.sent_at),
                answered,
                undo_sent,
                undone,
                took,
                step.reason.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let heads = ["STEP", "STATE", "ATTEMPT", "SENT", "ANSWERED", "UNDO SENT", "UNDONE", "TOOK", "REASON"];
    output::table(heads, &rows)
}

/// From the newest attempt to its answer.
fn took(sent: Option<Time>, answered: Option<Time>) -> Option<String> {
    let took = answered?.duration_since(*sent?).unwrap_or_default();
    Some(humantime::format_duration(Duration::from_millis(took.as_millis().try_into().ok()?)).to_string())
}

/// The newest attempt at the step, and at its compensation.
fn attempts(step: &SagaStep) -> String {
    match step.undo_attempt {
        0 => step.attempt.to_string(),
        undo => format!("{}, undo {undo}", step.attempt),
    }
}
