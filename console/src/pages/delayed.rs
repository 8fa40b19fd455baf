//! `/db/NAME/delayed`: messages that wait for their time.

use std::{cmp::Ordering, sync::Arc};

use maud::{Markup, html};
use oncebox_operator::{DelayedMessage, Kind};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    list::{action, filter, more, why_no_actions},
    sort::{self, Sort, head},
};
use crate::{
    ask::Ask,
    fields::Fields,
    html::{
        layout::key_link,
        words::{self, bytes, empty, time},
    },
    problem::Problem,
    view::View,
};

const FIELDS: [(&str, &str); 3] =
    [("key", "Key"), ("subject", "Subject, also a.*"), ("ordering-key", "Ordering key")];

/// The columns that sort them.
const COLUMNS: [&str; 6] = ["due", "key", "subject", "ordering-key", "enqueued", "payload"];

#[derive(Serialize, JsonSchema)]
pub(crate) struct Delayed {
    database: String,
    messages: Vec<DelayedMessage>,
    /// Where the next page begins.
    after: Option<String>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Delayed, Problem> {
    let database = ask.database()?;
    let sort = Sort::of(&ask.query, &COLUMNS)?;
    let selection = ask.query.selection(Kind::Delayed, sort.is_none())?;
    let mut messages =
        database.look(async |operator| operator.delayed(&selection, sort::limit(sort)).await).await?;
    let place = |last: &DelayedMessage| last.place().to_string();
    let after = sort::page(sort, &ask.query, &mut messages, place, compare)?;
    Ok(Delayed { database: database.name().to_owned(), messages, after })
}

fn compare(by: &str, one: &DelayedMessage, other: &DelayedMessage) -> Ordering {
    match by {
        "key" => one.key.cmp(&other.key),
        "subject" => one.subject.cmp(&other.subject),
        "ordering-key" => one.ordering_key.cmp(&other.ordering_key),
        "enqueued" => one.created_at.cmp(&other.created_at),
        "payload" => one.payload_bytes.cmp(&other.payload_bytes),
        _ => one.not_before.cmp(&other.not_before),
    }
}

impl View for Delayed {
    fn title(&self) -> String {
        format!("Delayed in {}", self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        let given = FIELDS.iter().filter_map(|(name, _)| ask.query.get(name).map(|value| (*name, value)));
        let given: Vec<(&str, &str)> = given.collect();
        let all = [&[("kind", "delayed"), ("action", "cancel")][..], &given[..]].concat();
        let all = if given.is_empty() { [&all[..], &[("all", "1")]].concat() } else { all };
        html! {
            (filter(ask, &[], &FIELDS))
            (why_no_actions(ask))
            @if self.messages.is_empty() { (empty("Messages that were enqueued for later stand here until their time has come.")) }
            @else {
                p { (action(ask, &self.database, if given.is_empty() { "cancel all" } else { "cancel all that match" }, &all)) }
                (sort::note(ask))
                div.scroll tabindex="0" { table {
                    thead { tr { @for (by, label) in COLUMNS.into_iter().zip(["Due", "Key", "Subject", "Ordering key", "Enqueued", "Payload"]) { (head(ask, by, label)) } th { span.hidden { "Actions" } } } }
                    tbody { @for message in &self.messages { tr {
                        td { (time(message.not_before)) }
                        td.long { (key_link(&message.key)) }
                        td.long { (message.subject) }
                        td.long { (message.ordering_key.as_deref().unwrap_or_default()) }
                        td { (time(message.created_at)) }
                        td.number { a href=(Fields::link(&format!("/db/{}/message", self.database), &[("key", &message.key)])) { (bytes(message.payload_bytes)) } }
                        td { (action(ask, &self.database, "cancel", &[("kind", "delayed"), ("action", "cancel"), ("key", &message.key)])) }
                    } } }
                } }
                (more(ask, self.after.as_deref()))
            }
            (words::command(&["oncebox", "outbox", "delayed", "list", "--database", &self.database]))
        }
    }
}
