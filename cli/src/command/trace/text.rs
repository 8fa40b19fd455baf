//! Traces for people.

use oncebox_connect::words::counted;
use oncebox_operator::{PlacedTrace, Saga, Trace, TracedFailure, TracedInbox, TracedKey, TracedMessage};

use crate::command::{
    output::{self, time},
    saga,
};

/// The messages of several databases in the order of time, then the rest of each database.
pub(super) fn timeline(all: &[PlacedTrace]) -> String {
    let messages =
        all.iter().flat_map(|found| found.trace.messages.iter().map(move |message| (found, message)));
    let mut messages: Vec<(&PlacedTrace, &TracedMessage)> = messages.collect();
    messages.sort_by_key(|(_, message)| message.created_at);
    let rows = messages.into_iter().map(|(found, message)| {
        let (key, subject) = (message.key.clone(), message.subject.clone());
        [
            time(message.created_at),
            found.database.clone(),
            key,
            message.state.to_owned(),
            subject,
            more(message),
        ]
    });
    let heads = ["ENQUEUED", "DATABASE", "KEY", "STATE", "SUBJECT", "MORE"];
    let mut text = output::table(heads, &rows.collect::<Vec<_>>());
    let is_shown = |key: &str| all.iter().any(|found| found.trace.messages.iter().any(|one| one.key == key));
    for found in all {
        let lone = found.trace.inboxes.iter().filter(|traced| !is_shown(&traced.key));
        let rest = elsewhere(lone) + &rest(&found.trace);
        if !rest.is_empty() {
            text += &format!("\ndatabase {}\n{}", found.database, rest.trim_start_matches('\n'));
        }
    }
    text
}

pub(super) fn text(trace: &Trace) -> String {
    let rows: Vec<[String; 8]> = trace.messages.iter().map(row).collect();
    let heads = ["KEY", "STATE", "ID", "LANE", "SUBJECT", "ORDERING KEY", "ENQUEUED", "MORE"];
    let mut text = if rows.is_empty() { String::new() } else { output::table(heads, &rows) };
    let elsewhere = elsewhere(trace.inboxes.iter());
    if !elsewhere.is_empty() {
        text += if text.is_empty() { "" } else { "\n" };
        text += &elsewhere;
    } else if trace.messages.is_empty() {
        text += "no message has the key: none was enqueued, or it was deleted after the retention time\n";
    }
    text + &rest(trace)
}

/// Inboxes that have keys of messages of other databases, or of requests.
fn elsewhere<'a>(inboxes: impl Iterator<Item = &'a TracedKey>) -> String {
    let rows: Vec<[String; 2]> = inboxes.map(|traced| [traced.key.clone(), stand(&traced.inbox)]).collect();
    match rows.is_empty() {
        true => String::new(),
        false => output::table(["KEY WITHOUT A MESSAGE HERE", "IN AN INBOX"], &rows),
    }
}

/// Sagas, and the actions of operators.
fn rest(trace: &Trace) -> String {
    let mut text = String::new();
    for progress in &trace.sagas {
        let Saga { key, saga_type, state, reason, .. } = &progress.saga;
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        text += &output::clean(&format!("\nsaga {key}, {saga_type}, is {state}{reason}\n"));
        text += &saga::steps(&progress.steps);
    }
    let rows: Option<Vec<[String; 6]>> = trace.audit.as_ref().map(|rows| {
        let cells = |row: &oncebox_operator::AuditRow| {
            let who = row.operator.as_deref().unwrap_or(&row.database_user);
            let texts = [&row.key, &row.reason, &row.note].map(|text| text.clone().unwrap_or_default());
            let [key, reason, note] = texts;
            [time(row.happened_at), who.to_owned(), row.action.clone(), key, reason, note]
        };
        rows.iter().map(cells).collect()
    });
    match rows {
        None => text += "\nwhat operators did is not shown: this role may not read the audit table\n",
        Some(rows) if rows.is_empty() => {}
        Some(rows) => {
            text += "\n";
            text += &output::table(["DONE", "BY", "ACTION", "KEY", "REASON", "NOTE"], &rows);
        }
    }
    text
}

fn row(message: &TracedMessage) -> [String; 8] {
    [
        message.key.clone(),
        message.state.to_owned(),
        message.id.to_string(),
        message.lane.to_string(),
        message.subject.clone(),
        message.ordering_key.clone().unwrap_or_default(),
        time(message.created_at),
        more(message),
    ]
}

/// The remaining facts in one line.
fn more(message: &TracedMessage) -> String {
    let mut parts = Vec::new();
    parts.extend(message.not_before.map(|at| format!("not before {}", time(at))));
    if let Some(replay) = &message.replay {
        parts.push(format!("replay {} of request {} {}", replay.number, replay.request, replay.state));
    }
    if let Some(parked) = &message.parked {
        match &parked.behind {
            Some(key) => parts.push(format!("behind {key}")),
            None => parts.push(parked.reason.clone()),
        }
        if parked.attempts > 0 {
            parts.push(format!("attempts: {}", parked.attempts));
        }
        parts.extend(parked.next_attempt_at.map(|at| format!("next attempt {}", time(at))));
        parts.extend(parked.died_at.map(|at| format!("died {}", time(at))));
    }
    parts.extend(message.inboxes.iter().map(stand));
    parts.join("; ")
}

/// How a key stands in an inbox.
fn stand(inbox: &TracedInbox) -> String {
    let status = if inbox.status == "dead" { "dead letter" } else { &inbox.status };
    let tenant = if inbox.tenant.is_empty() { String::new() } else { format!(" of {}", inbox.tenant) };
    let database = inbox.database.as_ref().map(|database| format!(", {database}")).unwrap_or_default();
    let failure = inbox.failure.as_ref().map(|TracedFailure { failures, reason, next_at, .. }| {
        let next = next_at.map(|at| format!(", next at {}", time(at))).unwrap_or_default();
        format!(": {}{next}, {reason}", counted(failures, "failure"))
    });
    let mut text = format!("{status} in {}{tenant}{database}{}", inbox.scope, failure.unwrap_or_default());
    if let Some(request) = &inbox.request {
        text += &match request.status {
            Some(status) => format!(", an HTTP request, answered with {status}"),
            None => ", an HTTP request without a response: a part of it may be done".to_owned(),
        };
    }
    if let Some(line) = &inbox.line {
        text += &format!(", {}", line.what());
    }
    if let Some(snooze) = &inbox.snooze {
        let until = snooze.until.map(time).unwrap_or_default();
        text += &format!(" until {until}, {}: {}", counted(snooze.times, "time"), snooze.reason);
    }
    if let Some(lease) = &inbox.lease {
        let until = lease.until.map(time).unwrap_or_default();
        let owner = lease.owner.as_deref().unwrap_or("?");
        let over = if lease.is_over { ", which is over" } else { "" };
        text += &format!(" by {owner} until {until}{over}, attempt {}", lease.attempts);
        text += &lease.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    }
    for effect in &inbox.effects {
        text += &format!(", effect {} {} at {}", effect.step, effect.state, time(effect.started_at));
    }
    text
}
