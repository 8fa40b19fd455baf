//! `/db/NAME/saga`: one saga, with its graph, its steps and its history.

mod bars;
mod graph;

use std::sync::Arc;

use maud::{Markup, html};
use oncebox_operator::{Json, SagaDetails, SagaDrawing, SagaStep};
use schemars::JsonSchema;
use serde::Serialize;

use super::list::{action, why_no_actions};
use crate::{
    ask::Ask,
    fields::Fields,
    html::{
        layout::key_link,
        words::{self, state, time, time_or},
    },
    problem::Problem,
    view::View,
};

/// Characters of a text of JSON at most: a browser is slow with megabytes.
const TEXT_MAX: usize = 100_000;

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SagaOfDatabase")]
pub(crate) struct One {
    database: String,
    #[serde(flatten)]
    details: SagaDetails,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<One, Problem> {
    let (database, key) = (ask.database()?, ask.query.text("key").unwrap_or_default());
    let with_data = ask.console.settings.shows_payloads;
    let found = database.look(async |operator| operator.saga(&key, with_data).await).await?;
    let missing = || Problem::NotFound(format!("{} has no saga with the key {key:?}", database.name()));
    Ok(One { database: database.name().to_owned(), details: found.ok_or_else(missing)? })
}

impl View for One {
    fn title(&self) -> String {
        format!("Saga {}", self.details.progress.saga.key)
    }

    fn body(&self, ask: &Ask) -> Markup {
        let (details, saga) = (&self.details, &self.details.progress.saga);
        html! {
            p {
                (state(&saga.state)) " " (saga.saga_type) " v" (saga.version) ", " (saga.direction)
                @if let Some(reason) = &saga.reason { ": " (reason) }
            }
            (self.actions(ask))
            (graph::draw(&SagaDrawing::of_instance(details)))
            @if details.graph.is_none() {
                p.quiet { "Its definition is not known here, so only the steps that were sent are shown." }
            }
            dl {
                dt { "About" } dd { (saga.business_id) }
                dt { "Its key" } dd { (key_link(&saga.key)) }
                dt { "Began" } dd { (time(saga.created_at)) }
                dt { "Changed" } dd { (time(saga.changed_at)) }
                dt { "Deadline" } dd { (time_or(saga.deadline_at, "none")) }
                dt { "Finished" } dd { (time_or(saga.finished_at, "not yet")) }
            }
            h2 { "Times" }
            (bars::draw(&details.progress))
            h2 { "Steps" }
            (self.steps(ask))
            @if !details.events.is_empty() {
                h2 { "Answers to be applied" }
                ul { @for event in &details.events {
                    li { (event.kind) " to " (event.step) @if event.is_undo { " (compensation)" } ", " (time(event.created_at)) }
                } }
            }
            @if !details.refused.is_empty() {
                h2 { "Answers that were refused" }
                ul { @for one in &details.refused { li {
                    (time(one.refused_at)) " "
                    a.key href=(Fields::link(&format!("/db/{}/letter", self.database), &[("id", &one.id.to_string())])) {
                        (one.key.as_deref().unwrap_or("no key"))
                    }
                    " to " (one.command.as_deref().unwrap_or("no command")) ": " (one.reason)
                } } }
            }
            @match &details.data {
                Some(data) => {
                    h2 { "Data" }
                    (json("Data", data))
                    @for reply in &details.replies {
                        @let (step, outcome) = (&reply.step, &reply.outcome);
                        h3 { "Reply of " (step) " " (state(outcome)) }
                        (json(&format!("Reply of {step}"), &reply.payload))
                    }
                },
                None => p.quiet { "Its data and replies are hidden: --show-payloads shows them." },
            }
            @if !details.audit.is_empty() {
                h2 { "Actions of operators" }
                ul { @for row in &details.audit { li {
                    (time(row.happened_at)) " " strong { (row.operator.as_deref().unwrap_or(&row.database_user)) } " "
                    (row.action) " " (row.reason.as_deref().unwrap_or_default()) " " (row.note.as_deref().unwrap_or_default())
                } } }
            }
            (words::command(&["oncebox", "saga", "show", &saga.key, "--database", &self.database]))
        }
    }
}

/// JSON with a line for each field; its beginning, when it is long.
fn json(label: &str, value: &Json) -> Markup {
    let text = value.pretty();
    let end = text.char_indices().nth(TEXT_MAX).map(|(end, _)| end);
    html! {
        pre tabindex="0" role="region" aria-label=(label) { (&text[..end.unwrap_or(text.len())]) }
        @if end.is_some() {
            p.quiet { "Only its beginning is shown; the command below with --data --json has all of it." }
        }
    }
}

impl One {
    fn actions(&self, ask: &Ask) -> Markup {
        let saga = &self.details.progress.saga;
        let with = |word: &'static str| [("kind", "sagas"), ("action", word), ("key", saga.key.as_str())];
        html! {
            (why_no_actions(ask))
            @if saga.finished_at.is_none() {
                p {
                    @if saga.state == "quarantined" || !saga.waiting.is_empty() {
                        (action(ask, &self.database, "retry all that waits", &with("retry")))
                    }
                    @for step in &saga.waiting {
                        (action(ask, &self.database, &format!("retry {step}"), &[&with("retry")[..], &[("step", step)]].concat()))
                        (action(ask, &self.database, &format!("skip {step}"), &[&with("skip")[..], &[("step", step)]].concat()))
                    }
                    (action(ask, &self.database, "abandon", &with("abandon")))
                }
            }
        }
    }

    fn steps(&self, ask: &Ask) -> Markup {
        let saga = &self.details.progress.saga;
        let may_skip = |step: &SagaStep| {
            saga.state == "quarantined" && ["sent", "undoing"].contains(&step.state.as_str())
        };
        html! {
            div.scroll tabindex="0" { table {
                thead { tr {
                    th { "Step" } th { "State" } th.number { "Attempt" } th { "Sent" } th { "Answered" } th { "Deadline" }
                    th { "Undo sent" } th { "Undone" } th { "Reason" }
                } }
                tbody { @for step in &self.details.progress.steps { tr {
                    th scope="row" { (step.step) }
                    td { (state(&step.state)) }
                    td.number { (step.attempt) @if step.undo_attempt > 0 { ", undo " (step.undo_attempt) } }
                    td { (time(step.sent_at)) }
                    td { (time_or(step.answered_at, "")) }
                    td { (time_or(step.deadline_at, "")) }
                    td { (time_or(step.undo_sent_at, "")) }
                    td { (time_or(step.undone_at, "")) }
                    td.long {
                        (step.reason.as_deref().unwrap_or_default())
                        @if may_skip(step) {
                            " " (action(ask, &self.database, "skip", &[
                                ("kind", "sagas"), ("action", "skip"), ("key", &saga.key), ("step", &step.step),
                            ]))
                        }
                    }
                } } }
            } }
        }
    }
}
