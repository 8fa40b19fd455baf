//! The events of a key and of those below it, in the order of time, over all databases.

use oncebox_connect::words::counted;
use std::collections::HashSet;

use maud::{Markup, html};
use oncebox_operator::{AuditRow, PlacedTrace, SagaStep, Time, TracedInbox, TracedMessage};

use crate::html::{
    layout::key_link,
    words::{span, state, time},
};

struct Event<'a> {
    at: Time,
    /// The event, in the words of states.
    word: &'a str,
    key: &'a str,
    database: &'a str,
    more: String,
}

pub(super) fn show(all: &[PlacedTrace]) -> Markup {
    let mut events: Vec<Event<'_>> = all.iter().flat_map(of_database).collect();
    // An inbox stands beside the message, and by itself where the message is in another database.
    let mut seen = HashSet::new();
    events.retain(|event| seen.insert((event.at, event.word, event.key, event.database, event.more.clone())));
    events.sort_by_key(|event| event.at);
    let first = events.first().map(|event| event.at);
    let before = std::iter::once(None).chain(events.iter().map(|event| Some(event.at)));
    html! {
        ol.timeline {
            @for (event, before) in events.iter().zip(before) {
                li {
                    (time(event.at))
                    span.after title=[first.map(|first| format!("{} after the first", passed(first, event.at)))] {
                        @if let Some(before) = before { "+" (passed(before, event.at)) }
                    }
                    div {
                        (state(event.word)) " " (key_link(event.key)) " " span.quiet { "in " (event.database) }
                        @if !event.more.is_empty() { " " (event.more) }
                    }
                }
            }
        }
    }
}

fn passed(from: Time, to: Time) -> String {
    span(to.duration_since(*from).unwrap_or_default().as_secs_f64())
}

fn of_database(placed: &PlacedTrace) -> Vec<Event<'_>> {
    let (database, trace) = (placed.database.as_str(), &placed.trace);
    let mut events: Vec<Event<'_>> =
        trace.messages.iter().flat_map(|message| of_message(database, message)).collect();
    for traced in &trace.inboxes {
        events.extend(of_inbox(database, &traced.key, &traced.inbox));
    }
    for progress in &trace.sagas {
        let saga = &progress.saga;
        let event = |at, word, more: String| Event { at, word, key: &saga.key, database, more };
        events.push(event(saga.created_at, "began", format!("saga {}", saga.saga_type)));
        events.extend(saga.finished_at.map(|at| event(at, &saga.state, format!("saga {}", saga.saga_type))));
        for step in &progress.steps {
            events.extend(of_step(step).map(|(at, word, more)| event(at, word, more)));
        }
    }
    let acted = trace.audit.iter().flatten();
    events.extend(acted.filter_map(|row| of_audit(database, &trace.key, row)));
    events
}

fn of_message<'a>(database: &'a str, message: &'a TracedMessage) -> Vec<Event<'a>> {
    let key = message.key.as_str();
    let event = |at, word, more: String| Event { at, word, key, database, more };
    let place =
        if message.lane < 0 { String::new() } else { format!(", lane {}, id {}", message.lane, message.id) };
    let mut events = vec![event(message.created_at, "enqueued", format!("as {}{place}", message.subject))];
    events.extend(message.not_before.map(|at| event(at, "due", String::new())));
    if let Some(parked) = &message.parked {
        events.push(event(parked.parked_at, "parked", parked.reason.clone()));
        events.extend(
            parked
                .died_at
                .map(|at| event(at, "dead", format!("after {}", counted(parked.attempts, "attempt")))),
        );
        let next = |at| event(at, "next attempt", String::new());
        events.extend(parked.next_attempt_at.map(next));
    }
    if let Some(replay) = &message.replay {
        let more = format!("{} of request {}", replay.number, replay.request);
        events.push(event(replay.requested_at, "replay", more));
    }
    for inbox in &message.inboxes {
        events.extend(of_inbox(inbox.database.as_deref().unwrap_or(database), key, inbox));
    }
    events
}

fn of_inbox<'a>(database: &'a str, key: &'a str, inbox: &'a TracedInbox) -> Vec<Event<'a>> {
    let event = |at, word, more: String| Event { at, word, key, database, more };
    let mut events = Vec::new();
    let scope = format!("by {}", inbox.scope);
    events.extend(inbox.settled_at.map(|at| event(at, &inbox.status, scope.clone())));
    if let Some(failure) = &inbox.failure {
        let more = format!("{scope}, {}: {}", counted(failure.failures, "time"), failure.reason);
        events.push(event(failure.failed_at, "failing", more));
        events.extend(failure.next_at.map(|at| event(at, "next attempt", scope.clone())));
    }
    if let Some(snooze) = &inbox.snooze {
        let more = format!("{scope}, {}: {}", counted(snooze.times, "time"), snooze.reason);
        events.push(event(snooze.since, "snoozed", more));
        events.extend(snooze.until.map(|at| event(at, "next attempt", scope.clone())));
    }
    if let Some(line) = &inbox.line {
        events.push(event(line.since, "behind", format!("{scope}, {}", line.what())));
    }
    if let Some(lease) = &inbox.lease {
        let owner = lease.owner.as_deref().unwrap_or("?");
        events.push(event(lease.since, "claimed", format!("{scope}, by process {owner}")));
        events.extend(lease.until.map(|at| event(at, "end of the lease", scope.clone())));
    }
    for effect in &inbox.effects {
        events.push(event(
            effect.started_at,
            "effect",
            format!("{scope}, {}: {}", effect.step, effect.state),
        ));
    }
    events
}

fn of_step(step: &SagaStep) -> impl Iterator<Item = (Time, &str, String)> {
    let name = &step.step;
    let why = step.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let answered = match step.state.as_str() {
        state @ ("rejected" | "failed") => state,
        _ => "done",
    };
    let sent = (step.sent_at, "sent", format!("step {name}, attempt {}", step.attempt));
    [
        Some(sent),
        step.answered_at.map(|at| (at, answered, format!("step {name}{why}"))),
        step.undo_sent_at.map(|at| (at, "undoing", format!("step {name}, attempt {}", step.undo_attempt))),
        step.undone_at.map(|at| (at, "undone", format!("step {name}"))),
    ]
    .into_iter()
    .flatten()
}

fn of_audit<'a>(database: &'a str, above: &'a str, row: &'a AuditRow) -> Option<Event<'a>> {
    let who = row.operator.as_deref().unwrap_or(&row.database_user);
    let texts = [&row.reason, &row.note].map(|text| text.as_deref().unwrap_or_default());
    let more = format!("by {who} {} {}", texts[0], texts[1]).trim_end().to_owned();
    let key = row.key.as_deref().unwrap_or(above);
    Some(Event { at: row.happened_at, word: &row.action, key, database, more })
}
