//! `/find`: one box for a key, ordering key, saga, subject or trace.

use std::sync::Arc;

use maud::{Markup, html};
use oncebox_operator::{Found, together};
use schemars::JsonSchema;
use serde::Serialize;

use super::key::{Asked, traces};
use crate::{
    ask::Ask,
    fields::Fields,
    html::{
        layout::key_link,
        words::{self, empty, time},
    },
    problem::Problem,
    view::View,
};

/// A database that has something.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FoundInDatabase")]
struct FoundThere {
    database: String,
    #[serde(flatten)]
    found: Found,
}

/// All that was found.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Finds {
    q: String,
    /// Whether it is a key, or stands above keys.
    is_key: bool,
    /// The key that was meant, where a client's own key has a colon.
    meant: Option<String>,
    databases: Vec<FoundThere>,
    /// Databases that did not answer, and why.
    unasked: Vec<String>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Finds, Problem> {
    let q = ask.query.text("q").unwrap_or_default();
    let mut finds = Finds { q, is_key: false, meant: None, databases: Vec::new(), unasked: Vec::new() };
    if finds.q.is_empty() {
        return Ok(finds);
    }
    let Asked { found, meant, mut unasked } = traces(&ask.console.fleet, &finds.q, 1).await;
    finds.is_key = !found.is_empty();
    finds.meant = meant;
    let q = finds.q.as_str();
    let looks = ask.console.fleet.databases.iter();
    let looks = looks.map(|database| database.look(async move |operator| operator.find(q).await));
    let looks: Vec<_> = looks.collect();
    for (database, found) in ask.console.fleet.databases.iter().zip(together(looks).await) {
        match found {
            Ok(found) if found == Found::default() => {}
            Ok(found) => finds.databases.push(FoundThere { database: database.name().to_owned(), found }),
            Err(problem) => unasked.push(problem.text().to_owned()),
        }
    }
    unasked.sort_unstable();
    unasked.dedup();
    finds.unasked = unasked;
    Ok(finds)
}

impl View for Finds {
    fn title(&self) -> String {
        if self.q.is_empty() { "Find".to_owned() } else { format!("Find {}", self.q) }
    }

    fn body(&self, _: &Ask) -> Markup {
        let is_found = self.is_key || self.meant.is_some() || !self.databases.is_empty();
        html! {
            @for problem in &self.unasked { p.problem role="alert" { (problem) } }
            @if self.q.is_empty() {
                (empty("Type a key, ordering key, saga, subject or trace above; all databases are asked."))
            } @else if !is_found {
                (empty(
                    "Nothing was found. Keys are found wherever they are; ordering keys, subjects and traces among the \
                     newest 4,000 messages of each database, sagas by their key or business id."
                ))
            }
            @if self.is_key { p { "This is a key: " (key_link(&self.q)) } }
            @if let Some(meant) = &self.meant { p { "Did you mean the key " (key_link(meant)) "?" } }
            @for FoundThere { database, found } in &self.databases {
                h2 { (database) }
                @if found.has_more { p.quiet { "There are more than these: the first 50 of each kind are shown." } }
                @for saga in &found.sagas {
                    p { "saga " a.key href=(Fields::link(&format!("/db/{database}/saga"), &[("key", saga)])) { (saga) } }
                }
                @if !found.messages.is_empty() {
                    div.scroll tabindex="0" { table {
                        thead { tr { th { "Key" } th { "Subject" } th { "Ordering key" } th { "Enqueued" } } }
                        tbody { @for message in &found.messages { tr {
                            td.long { (key_link(&message.key)) }
                            td.long { (message.subject) }
                            td.long { (message.ordering_key.as_deref().unwrap_or_default()) }
                            td { (time(message.created_at)) }
                        } } }
                    } }
                }
            }
            @if self.is_key { (words::command(&["oncebox", "trace", &self.q])) }
        }
    }
}
