//! `/db/NAME/replays`: settled messages that are to be sent again.

use std::{cmp::Ordering, sync::Arc};

use maud::{Markup, html};
use oncebox_operator::{Kind, ParkedMessage};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    list::{action, more, why_no_actions},
    sort::{self, Sort, head},
};
use crate::{
    ask::Ask,
    html::{
        layout::key_link,
        words::{self, empty, state, time_or},
    },
    problem::Problem,
    view::View,
};

/// The columns that sort them.
const COLUMNS: [&str; 7] = ["key", "state", "replay", "subject", "ordering-key", "next", "reason"];

#[derive(Serialize, JsonSchema)]
pub(crate) struct Replays {
    database: String,
    replays: Vec<ParkedMessage>,
    after: Option<String>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Replays, Problem> {
    let database = ask.database()?;
    let sort = Sort::of(&ask.query, &COLUMNS)?;
    let selection = ask.query.selection(Kind::Replays, sort.is_none())?;
    let mut replays =
        database.look(async |operator| operator.parked(&selection, sort::limit(sort)).await).await?;
    let after = sort::page(sort, &ask.query, &mut replays, |last| last.id.to_string(), compare)?;
    Ok(Replays { database: database.name().to_owned(), replays, after })
}

fn compare(by: &str, one: &ParkedMessage, other: &ParkedMessage) -> Ordering {
    match by {
        "key" => one.key.cmp(&other.key),
        "state" => one.state.cmp(other.state),
        "replay" => one.replay.cmp(&other.replay),
        "subject" => one.subject.cmp(&other.subject),
        "ordering-key" => one.ordering_key.cmp(&other.ordering_key),
        "next" => one.next_attempt_at.cmp(&other.next_attempt_at),
        _ => one.reason.cmp(&other.reason),
    }
}

impl View for Replays {
    fn title(&self) -> String {
        format!("Replays in {}", self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        html! {
            (why_no_actions(ask))
            @if self.replays.is_empty() { (empty("Replays that are still to be sent stand here. None is.")) }
            @else {
                p { (action(ask, &self.database, "cancel all", &[("kind", "replays"), ("action", "cancel"), ("all", "1")])) }
                (sort::note(ask))
                div.scroll tabindex="0" { table {
                    thead { tr { @for (by, label) in COLUMNS.into_iter().zip(["Key", "State", "Replay", "Subject", "Ordering key", "Next attempt", "Reason"]) { (head(ask, by, label)) } th { span.hidden { "Actions" } } } }
                    tbody { @for message in &self.replays { tr {
                        td.long { (key_link(&message.key)) }
                        td { (state(message.state)) }
                        td.number { (message.replay) }
                        td.long { (message.subject) }
                        td.long { (message.ordering_key.as_deref().unwrap_or_default()) }
                        td { (time_or(message.next_attempt_at, "")) }
                        td.long { (message.reason) }
                        td { (action(ask, &self.database, "cancel", &[("kind", "replays"), ("action", "cancel"), ("id", &message.id.to_string())])) }
                    } } }
                } }
                (more(ask, self.after.as_deref()))
            }
            @if ask.may_act() {
                h2 { "Send settled messages again" }
                form.row action=(format!("/db/{}/act", self.database)) method="get" {
                    input type="hidden" name="kind" value="replays";
                    label { "Key" input type="text" name="key"; }
                    label { "or subject, also a.*" input type="text" name="subject"; }
                    label { "Enqueued since" input type="text" name="since" placeholder="24h, or 2030-01-31T08:00:00Z"; }
                    label { "and before" input type="text" name="until" placeholder="1h, or a time in UTC"; }
                    label { "Name of the request" input type="text" name="request"; }
                    button name="action" value="replay" { "replay" }
                }
            }
            (words::command(&["oncebox", "outbox", "replay", "list", "--database", &self.database]))
        }
    }
}
