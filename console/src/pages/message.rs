//! `/db/NAME/message` and `/db/NAME/letter`: headers, and payloads where the console shows them.

use std::sync::Arc;

use maud::{Markup, html};
use oncebox_operator::{DeadLetterDetails, MessageContent, PAYLOAD_BYTES_MAX, ShownPayload, pretty_json};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::list::{action, edit_link};
use crate::{
    ask::Ask,
    html::{
        layout::key_link,
        words::{self, bytes, time, time_or},
    },
    problem::Problem,
    view::View,
};

/// The characters of a payload that a page shows.
const SHOWN_MAX: usize = 32 * 1024;

/// A message of the log.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "MessageOfDatabase")]
pub(crate) struct Message {
    database: String,
    #[serde(flatten)]
    content: MessageContent,
}

/// A dead letter.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeadLetterOfDatabase")]
pub(crate) struct Letter {
    database: String,
    #[serde(flatten)]
    details: DeadLetterDetails,
}

pub(crate) async fn message(ask: Arc<Ask>) -> Result<Message, Problem> {
    let (database, key) = (ask.database()?, ask.query.text("key").unwrap_or_default());
    let shows_payload = ask.console.settings.shows_payloads;
    let found = database.look(async |operator| operator.message(&key, shows_payload).await).await?;
    let missing = || {
        let name = database.name();
        Problem::NotFound(format!(
            "{name} has no message with the key {key:?}: it is elsewhere, or was deleted"
        ))
    };
    Ok(Message { database: database.name().to_owned(), content: found.ok_or_else(missing)? })
}

pub(crate) async fn letter(ask: Arc<Ask>) -> Result<Letter, Problem> {
    let (database, id) = (ask.database()?, ask.query.parsed::<i64>("id")?.unwrap_or_default());
    let most = ask.console.settings.shows_payloads.then_some(PAYLOAD_BYTES_MAX);
    let found = database.look(async |operator| operator.dead_letter(id, most).await).await?;
    let missing = || Problem::NotFound(format!("{} has no dead letter {id}", database.name()));
    Ok(Letter { database: database.name().to_owned(), details: found.ok_or_else(missing)? })
}

fn content(headers: &Value, payload_bytes: i64, payload: Option<&ShownPayload>) -> Markup {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    html! {
        h2 { "Headers" }
        @match headers.as_object().filter(|headers| !headers.is_empty()) {
            Some(headers) => dl { @for (name, value) in headers { dt { (name) } dd { code { (text(value)) } } } },
            None => p.quiet { "It has none of its own." },
        }
        h2 { "Payload, " (bytes(payload_bytes)) }
        @match payload {
            Some(shown) => {
                @let text = pretty_json(&shown.payload).unwrap_or_else(|| shown.payload.clone());
                @let end = text.char_indices().nth(SHOWN_MAX).map(|(end, _)| end);
                @if shown.payload_is_binary { p.quiet { "Binary: hexadecimal digits." } }
                @if shown.payload_is_cut || end.is_some() { p.quiet { "Cut: only its beginning." } }
                pre { (text[..end.unwrap_or(text.len())]) }
            },
            None => p.quiet { "Hidden: --show-payloads shows payloads, which may hold what others must not see." },
        }
    }
}

impl View for Message {
    fn title(&self) -> String {
        format!("Message {}", self.content.message.key)
    }

    fn body(&self, _: &Ask) -> Markup {
        let message = &self.content.message;
        html! {
            dl {
                dt { "Key" } dd { (key_link(&message.key)) }
                dt { "Subject" } dd { (message.subject) }
                dt { "Ordering key" } dd { (message.ordering_key.as_deref().unwrap_or("none")) }
                dt { "Enqueued" } dd { (time(message.created_at)) }
            }
            (content(&self.content.headers, self.content.payload_bytes, self.content.payload.as_ref()))
            (words::command(&["oncebox", "trace", &message.key, "--database", &self.database]))
        }
    }
}

impl View for Letter {
    fn title(&self) -> String {
        format!("Dead letter {}", self.details.letter.id)
    }

    fn body(&self, ask: &Ask) -> Markup {
        let (letter, id) = (&self.details.letter, self.details.letter.id.to_string());
        let origin = letter.stream.as_ref().zip(letter.stream_sequence);
        html! {
            p { @for word in ["retry", "discard"] {
                (action(ask, &self.database, word, &[("kind", "dead-letters"), ("action", word), ("id", &id)]))
            } (edit_link(ask, &self.database, &[("kind", "dead-letters"), ("id", &id)])) }
            dl {
                dt { "Key" } dd { @match &letter.key { Some(key) => (key_link(key)), None => "none" } }
                dt { "The key is now" } dd { (self.details.key_status.as_deref().unwrap_or("free")) }
                dt { "Inbox" } dd { (letter.scope) @if !letter.tenant.is_empty() { " of " (letter.tenant) } }
                dt { "Subject" } dd { (letter.subject) }
                dt { "Stream" } dd { @match origin { Some((stream, number)) => { (stream) " " (number) }, None => "none" } }
                dt { "Stored" } dd { (time_or(self.details.stored_at, "not known")) }
                dt { "Deliveries" } dd { (letter.deliveries) }
                dt { "Died" } dd { (time(letter.died_at)) }
                dt { "Reason" } dd { (letter.reason) }
                @if let Some(edit) = &letter.edit { dt { "Edit" } dd { (edit) ": a retry takes this letter out, and nobody handles it" } }
                @if let Some(name) = &letter.ordering_key {
                    dt { "Ordering key" } dd { (name) }
                    dt { "Behind it" } dd { (letter.behind.unwrap_or_default()) " wait" }
                }
            }
            (content(&self.details.headers, letter.payload_bytes, self.details.payload.as_ref()))
            (words::command(&["oncebox", "inbox", "dead", "show", &id, "--database", &self.database]))
        }
    }
}
