//! `/key`: a key's way over all databases.

mod timeline;
mod why;

use std::{sync::Arc, time::Duration};

use maud::{Markup, html};
use oncebox_connect::error::{RelayError, error_chain};
use oncebox_operator::{
    Explained, Looked, PlacedTrace, TracedMessage, WhySource, explain, look_elsewhere, together,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    ask::Ask,
    fields::Fields,
    fleet::{ANSWER_MAX, Database, Fleet, Turn},
    html::{
        layout::key_link,
        words::{self, empty, state, time_or},
    },
    problem::Problem,
    sampler::Sample,
    view::View,
};

/// Messages below a key, at most.
const STEPS_MAX: u32 = 100;

/// The longest time for each question that says why a message is not there.
const WHY_MAX: Duration = Duration::from_secs(2);

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
    /// Why its messages are not there yet: an answer for each.
    why: Vec<Explained>,
    databases: Vec<PlacedTrace>,
    meant: Option<String>,
    unasked: Vec<String>,
}

/// Databases that have answered, to be asked again.
struct Gathered<'a> {
    fleet: &'a Fleet,
    opened: Vec<(Turn<'a>, PlacedTrace)>,
    meant: Option<String>,
    unasked: Vec<String>,
    /// A connection that was cut off may still be at work.
    cut_off: Vec<String>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Way, Problem> {
    let key = ask.query.text("key").ok_or_else(|| Problem::Bad("key: which one?".to_owned()))?;
    let mut gathered = gather(&ask.console.fleet, &key, STEPS_MAX).await;
    let mut why = gathered.explain(&key).await;
    let Asked { found, meant, unasked } = gathered.finish().await;
    if let (Some(meant), Some(answer)) = (&meant, why.first_mut()) {
        answer.mean(meant);
    }
    Ok(Way { key, why, databases: found, meant, unasked })
}

/// Asks all databases at once.
pub(crate) async fn traces(fleet: &Fleet, key: &str, steps_max: u32) -> Asked {
    gather(fleet, key, steps_max).await.finish().await
}

async fn gather<'a>(fleet: &'a Fleet, key: &str, steps_max: u32) -> Gathered<'a> {
    let traces: Vec<_> = fleet.databases.iter().map(|database| trace(database, key, steps_max)).collect();
    let (mut opened, mut unasked) = (Vec::new(), Vec::new());
    for traced in together(traces).await {
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
    let silent = look_elsewhere(&mut opened, ANSWER_MAX).await;
    let mut gathered = Gathered { fleet, opened, meant, unasked, cut_off };
    gathered.note_silent(silent);
    gathered
}

impl Gathered<'_> {
    fn note_silent(&mut self, silent: Vec<(String, RelayError)>) {
        for (name, error) in silent {
            self.unasked.push(format!("{name}: {}", error_chain(&error)));
            self.cut_off.push(name);
        }
    }

    async fn explain(&mut self, key: &str) -> Vec<Explained> {
        let databases = self.opened.iter().map(|(_, placed)| self.fleet.find(&placed.database).ok());
        let asked: Vec<_> = databases.map(|database| (database, database.map(Database::sample))).collect();
        let sources = asked.iter().map(|(database, sample)| WhySource {
            config: database.and_then(|database| database.member.config.as_ref()),
            status: sample.as_deref().and_then(Sample::recent_status),
            is_named: true,
        });
        let sources: Vec<WhySource<'_>> = sources.collect();
        let Looked { why, silent, .. } =
            explain(key, &mut self.opened, &sources, !self.unasked.is_empty(), WHY_MAX).await;
        self.note_silent(silent);
        why.answers
    }

    async fn finish(self) -> Asked {
        let mut found = Vec::new();
        for (turn, placed) in self.opened {
            if !self.cut_off.contains(&placed.database) {
                turn.keep().await;
            }
            found.extend(placed.trace.is_known().then_some(placed));
        }
        Asked { found, meant: self.meant, unasked: self.unasked }
    }
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
            h2 { (why::title(&self.why)) }
            (why::show(ask, &self.why))
            @if self.databases.is_empty() {
                (empty("No database that answered knows this key."))
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
            (words::command(&["oncebox", "why", &self.key]))
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
                        @if let Some(line) = &inbox.line { " " (line.what()) }
                        @if let Some(snooze) = &inbox.snooze { " until " (time_or(snooze.until, "?")) ": " (snooze.reason) }
                        @if let Some(lease) = &inbox.lease { " until " (time_or(lease.until, "?")) }
                        @for effect in &inbox.effects { ", effect " (effect.step) " " (effect.state) }
                    }
                }
            }
            td { a href=(more) { @if ask.console.settings.shows_payloads { "headers and payload" } @else { "headers" } } }
        }
    }
}
