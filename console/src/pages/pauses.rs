//! `/db/NAME/pauses`: pauses and throttles of operators.

use std::{cmp::Ordering, sync::Arc};

use maud::{Markup, html};
use oncebox_operator::PauseRow;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    list::{action, why_no_actions},
    sort::{Sort, head},
};
use crate::{
    ask::Ask,
    html::words::{self, empty, time, time_or},
    problem::Problem,
    view::View,
};

/// The columns that sort them.
const COLUMNS: [&str; 7] = ["of", "value", "rate", "since", "until", "by", "note"];

#[derive(Serialize, JsonSchema)]
pub(crate) struct Pauses {
    database: String,
    pauses: Vec<PauseRow>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Pauses, Problem> {
    let database = ask.database()?;
    let sort = Sort::of(&ask.query, &COLUMNS)?;
    let mut pauses = database.look(async |operator| operator.pauses().await).await?;
    if let Some(sort) = sort {
        sort.apply(&mut pauses, compare);
    }
    Ok(Pauses { database: database.name().to_owned(), pauses })
}

fn compare(by: &str, one: &PauseRow, other: &PauseRow) -> Ordering {
    match by {
        "of" => one.kind.cmp(&other.kind),
        "value" => one.value.cmp(&other.value),
        "rate" => one.rate.unwrap_or(0.0).total_cmp(&other.rate.unwrap_or(0.0)),
        "until" => one.ends_at.cmp(&other.ends_at),
        "by" => who(one).cmp(who(other)),
        "note" => one.reason.cmp(&other.reason),
        _ => one.paused_at.cmp(&other.paused_at),
    }
}

fn who(pause: &PauseRow) -> &str {
    pause.paused_by.as_deref().unwrap_or(&pause.database_user)
}

impl View for Pauses {
    fn title(&self) -> String {
        format!("Pauses in {}", self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        html! {
            (why_no_actions(ask))
            @if self.pauses.is_empty() { (empty("Pauses and throttles stand here, with who made them and until when. Nothing is held back now.")) }
            @else {
                div.scroll tabindex="0" { table {
                    thead { tr { @for (by, label) in COLUMNS.into_iter().zip(["Of", "Value", "Messages a second", "Since", "Until", "By", "Note"]) { (head(ask, by, label)) } th { span.hidden { "Actions" } } } }
                    tbody { @for pause in &self.pauses { tr {
                        td { (pause.kind) }
                        td.long { (pause.value) }
                        td.number { @match pause.rate { Some(rate) => { (rate) }, None => "none" } }
                        td { (time(pause.paused_at)) }
                        td { (time_or(pause.ends_at, "until resumed")) }
                        td { (who(pause)) }
                        td.long { (pause.reason.as_deref().unwrap_or_default()) }
                        td { (action(ask, &self.database, "resume", &resume(pause))) }
                    } } }
                } }
            }
            @if ask.may_act() { h2 { "Hold messages back" } (form(&self.database)) }
            (words::command(&["oncebox", "outbox", "pauses", "--database", &self.database]))
        }
    }
}

fn resume(pause: &PauseRow) -> [(&str, &str); 3] {
    let of = match pause.kind.as_str() {
        "all" => ("all", "1"),
        "ordering key" => ("ordering-key", pause.value.as_str()),
        "stream" => ("stream", pause.value.as_str()),
        _ => ("subject", pause.value.as_str()),
    };
    [("kind", "pauses"), ("action", "resume"), of]
}

fn form(database: &str) -> Markup {
    let fields = [
        ("subject", "Subject, also a.> (> is all)"),
        ("stream", "or stream"),
        ("ordering-key", "or ordering key"),
        ("for", "For, such as 2h"),
        ("rate", "Messages a second, to throttle"),
    ];
    html! {
        form.row action=(format!("/db/{database}/act")) method="get" {
            input type="hidden" name="kind" value="pauses";
            @for (name, label) in fields { label { (label) input type="text" name=(name); } }
            label { input type="checkbox" name="unseen" value="1"; "also a subject that no recent message has" }
            button name="action" value="pause" { "pause" }
            button name="action" value="throttle" { "throttle" }
        }
    }
}
