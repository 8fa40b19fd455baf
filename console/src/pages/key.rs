//! `/key`: a key's way over all databases.

mod timeline;

use std::sync::Arc;

use maud::{Markup, html};
use oncebox_connect::error::error_chain;
use oncebox_operator::{PlacedTrace, TracedMessage, look_elsewhere, together};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    ask::Ask,
    fields::Fields,
    fleet::{ANSWER_MAX, Database, Fleet, Turn},
    html::{
        layout::key_link,
        words::{self, empty, state},
    },
    problem::Problem,
    view::View,
};

/// Messages below a key, at most.
const STEPS_MAX: u32 = 100;

/// The answers of all databases.
pub(crate) struct Asked {
    /// Those that know the key.
    pub(crate) found: Vec<PlacedTrace>,
    /// The key that was meant, if none knows this one.
    pub(crate) meant: Option<String>,
    /// Databases that did not answer, and why.
    pub(crate) unasked: Vec<String>,
}

/// A key's page.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "KeyTrace")]
pub(crate) struct Way {
    key: String,
    databases: Vec<PlacedTrace>,
    meant: Option<String>,
    unasked: Vec<String>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Way, Problem> {
    let key = ask.query.text("key").ok_or_else(|| Problem::Bad("key: which one?".to_owned()))?;
    let Asked { found, meant, unasked } = traces(&ask.console.fleet, &key, STEPS_MAX).await;
    Ok(Way { key, databases: found, meant, unasked })
}

/// Asks all databases at once.
pub(crate) async fn traces(fleet: &Fleet, key: &str, steps_max: u32) -> Asked {
    let traces: Vec<_> = fleet.databases.iter().map(|database| trace(database, key, steps_max)).collect();
    let traced = together(traces).await;
    let (mut opened, mut unasked) = (Vec::new(), Vec::new());
    for traced in traced {
        match traced {
            Ok(one) => opened.push(one),
            Err(problem) => unasked.push(problem.text().to_owned()),
        }
    }
    let (mut meant, mut cut_off) = (None, Vec::new());
    if !opened.iter().any(|(_, placed)| placed.trace.is_known()) {
        for (turn, placed) in &mut opened {
            if let (None, Ok(database)) = (&meant, fleet.find(&placed.database)) {
                match database.answer(turn.operator().meant(key)).await {
                    Ok(found) => meant = found,
                    Err(_) => cut_off.push(placed.database.clone()),
                }
            }
        }
    }
    for (name, error) in look_elsewhere(&mut opened, ANSWER_MAX).await {
        unasked.push(format!("{name}: {}", error_chain(&error)));
        cut_off.push(name);
    }
    let mut found = Vec::new();
    for (turn, placed) in opened {
        // A connection that was cut off may still be at work.
        if !cut_off.contains(&placed.database) {
            turn.keep().await;
        }
        found.extend(placed.trace.is_known().then_some(placed));
    }
    Asked { found, meant, unasked }
}

async fn trace<'a>(
    database: &'a Database,
    key: &str,
    steps_max: u32,
) -> Result<(Turn<'a>, PlacedTrace), Problem> {
    let mut turn = database.turn().await?;
    let trace = database.answer(turn.operator().trace(key, steps_max)).await?;
    Ok((turn, PlacedTrace { database: database.name().to_owned(), trace }))
}

impl View for Way {
    fn title(&self) -> String {
        self.key.clone()
    }

    fn body(&self, ask: &Ask) -> Markup {
        let is_cut = self.databases.iter().any(|placed| placed.trace.is_cut);
        html! {
            @for problem in &self.unasked { p.problem role="alert" { (problem) } }
            @if let Some(meant) = &self.meant { p.told { "Did you mean the key " (key_link(meant)) "?" } }
            @if self.databases.is_empty() {
                (empty(
                    "No database that answered knows this key: the message was never enqueued, its transaction has not \
                     committed, or it was deleted after the retention time."
                ))
            } @else {
                h2 { "Messages" }
                (self.messages(ask))
                @if is_cut { p.told { "There are more than " (STEPS_MAX) " messages below this key." } }
                (self.sagas())
                h2 { "Its way" }
                (timeline::show(&self.databases))
                @if self.databases.iter().any(|placed| placed.trace.audit.is_none()) {
                    p.quiet { "This role may not read the audit table of every database." }
                }
            }
            (words::command(&["oncebox", "trace", &self.key]))
        }
    }
}

impl Way {
    fn messages(&self, ask: &Ask) -> Markup {
        let of = |placed: &PlacedTrace| placed.trace.messages.is_empty();
        if self.databases.iter().all(of) {
            return empty("No database has a message with this key, or one below it.");
        }
        html! {
            div.scroll tabindex="0" { table {
                thead { tr {
                    th { "Key" } th { "Database" } th { "State" } th { "Subject" } th { "Ordering key" } th { "In inboxes" } th { span.hidden { "More" } }
                } }
                tbody {
                    @for placed in &self.databases { @for message in &placed.trace.messages {
                        (row(ask, &placed.database, message))
                    } }
                }
            } }
        }
    }

    fn sagas(&self) -> Markup {
        let all = || {
            self.databases.iter().flat_map(|placed| placed.trace.sagas.iter().map(move |saga| (placed, saga)))
        };
        html! {
            @if all().next().is_some() {
                h2 { "Sagas" }
                @for (placed, progress) in all() {
                    @let saga = &progress.saga;
                    p {
                        a.key href=(Fields::link(&format!("/db/{}/saga", placed.database), &[("key", &saga.key)])) { (saga.key) }
                        " " (saga.saga_type) " in " (placed.database) " " (state(&saga.state))
                        @if let Some(reason) = &saga.reason { " " (reason) }
                    }
                }
            }
        }
    }
}

fn row(ask: &Ask, database: &str, message: &TracedMessage) -> Markup {
    let parked = message.parked.as_ref();
    let more = Fields::link(&format!("/db/{database}/message"), &[("key", &message.key)]);
    html! {
        tr {
            td.long { (key_link(&message.key)) }
            td { a href=(format!("/db/{database}")) { (database) } }
            td.long {
                (state(message.state))
                @if let Some(parked) = parked {
                    @match &parked.behind {
                        Some(behind) => { " behind " (key_link(behind)) },
                        None => { " " (parked.reason) },
                    }
                }
                @if let Some(replay) = &message.replay { " replay " (replay.number) " " (state(replay.state)) }
            }
            td.long { (message.subject) }
            td.long { (message.ordering_key.as_deref().unwrap_or_default()) }
            td.long {
                @for inbox in &message.inboxes {
                    div {
                        (state(&inbox.status)) " in " (inbox.scope)
                        @if !inbox.tenant.is_empty() { " of " (inbox.tenant) }
                        @if let Some(database) = &inbox.database { ", " (database) }
                        @if let Some(failure) = &inbox.failure { ": " (failure.failures) " failures, " (failure.reason) }
                    }
                }
            }
            td { a href=(more) { @if ask.console.settings.shows_payloads { "headers and payload" } @else { "headers" } } }
        }
    }
}
