//! `/db/NAME/edit`: the form in which a dead message, or a dead letter, is edited. Before anything
//! is done, the page shows the old and the new message beside each other.

use std::sync::Arc;

use axum::{extract::Request, http::StatusCode, response::Response};
use maud::{Markup, html};
use oncebox_operator::{EDITABLE_BYTES_MAX, Editable};
use schemars::JsonSchema;
use serde::Serialize;

use super::act;
use crate::{
    ask::Ask,
    fields::Fields,
    html::{
        layout::{self, token},
        words::bytes,
    },
    order::{edit_of, parse, unfolded},
    problem::Problem,
    view::{View, html as page, problem_page},
};

/// A message that can be edited.
#[derive(Serialize, JsonSchema)]
pub(crate) struct EditForm {
    database: String,
    /// Which one: `kind`, and `id` or `key`.
    of: Vec<(String, String)>,
    #[serde(flatten)]
    content: Editable,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<EditForm, Problem> {
    let (database, of) = (ask.database()?, edit_of(&ask.query)?);
    let mut turn = database.turn().await?;
    let operator = turn.look().await?;
    let content = database.answer(operator.editable(&of, ask.console.settings.shows_payloads)).await;
    turn.keep().await;
    let content = content.map_err(|problem| match problem {
        Problem::Conflict(text) => Problem::NotFound(text),
        other => other,
    })?;
    let of = ask.query.0.iter().filter(|(name, _)| ["kind", "id", "key"].contains(&name.as_str()));
    Ok(EditForm { database: database.name().to_owned(), of: of.cloned().collect(), content })
}

/// The filled form: a page with old and new, and the form that confirms it.
pub(crate) async fn preview(ask: Ask, request: Request) -> Response {
    let looking = async {
        let fields = act::form_fields(&ask, request).await?;
        act::plan(&ask, parse(&order(&ask, &fields).await?)?).await
    };
    match looking.await {
        Ok(plan) => page(StatusCode::OK, &layout::page(&ask, &plan.title(), &plan.body(&ask))),
        Err(problem) => problem_page(&ask, &problem),
    }
}

/// The form's fields as those of an action: only those that differ from the message.
async fn order(ask: &Ask, form: &Fields) -> Result<Fields, Problem> {
    let database = ask.database()?;
    let (of, shown) = (edit_of(form)?, ask.console.settings.shows_payloads);
    let content = database.look(async |operator| operator.editable(&of, shown).await).await?;
    let mut fields: Vec<(String, String)> = vec![("action".to_owned(), "edit".to_owned())];
    let of = form.0.iter().filter(|(name, _)| ["kind", "id", "key"].contains(&name.as_str()));
    fields.extend(of.cloned());
    let lines = form.exact("headers").unwrap_or_default();
    let mut named = Vec::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let wrong = || Problem::Bad(format!("headers: {line:?} is not NAME: VALUE"));
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let (name, value) = (name.trim(), value.trim());
        named.push(name.to_ascii_lowercase());
        if content.headers.get(name).map(String::as_str) != Some(value) {
            fields.push(("header".to_owned(), format!("{name}={value}")));
        }
    }
    let gone = content.headers.keys().filter(|name| !named.contains(&name.to_ascii_lowercase()));
    fields.extend(gone.map(|name| ("remove-header".to_owned(), name.clone())));
    let payload = form.exact("payload").map(|text| unfolded(&text)).filter(|_| content.payload.is_some());
    fields.extend(
        payload
            .filter(|text| content.payload.as_ref() != Some(text))
            .map(|text| ("payload".to_owned(), text)),
    );
    Ok(Fields(fields))
}

impl View for EditForm {
    fn title(&self) -> String {
        let which = self.of.iter().find(|(name, _)| name != "kind").map_or("", |(_, value)| value);
        format!("Edit {which}")
    }

    fn body(&self, ask: &Ask) -> Markup {
        let headers: String =
            self.content.headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        html! {
            p.told { "The changed message is tried again as a new one, with a key of its own. First you see old and new." }
            (super::list::why_no_actions(ask))
            @if ask.may_act() { form.stack action=(format!("/db/{}/edit", self.database)) method="post" {
                (token(ask))
                @for (name, value) in &self.of { input type="hidden" name=(name) value=(value); }
                label for="headers" { "Headers, one a line" }
                textarea #headers name="headers" rows="6" spellcheck="false" { "\n" (headers) }
                @match &self.content.payload {
                    Some(payload) => {
                        label for="payload" { "Payload, " (bytes(self.content.payload_bytes)) }
                        textarea #payload name="payload" rows="20" spellcheck="false" { "\n" (payload) }
                    }
                    None => p.quiet { (self.why_no_payload(ask)) },
                }
                button.main { "Show old and new" }
            } }
        }
    }
}

impl EditForm {
    fn why_no_payload(&self, ask: &Ask) -> String {
        match ask.console.settings.shows_payloads {
            false => {
                "The payload is hidden: --show-payloads shows payloads. The command edits it with a file."
                    .to_owned()
            }
            true => format!(
                "The payload, {}, is edited with the command and a file: a form holds text of {} KiB with plain line ends.",
                bytes(self.content.payload_bytes),
                EDITABLE_BYTES_MAX / 1024
            ),
        }
    }
}
