//! `/db/NAME/audit`: the actions of operators, the newest first.

use std::{cmp::Ordering, sync::Arc};

use maud::{Markup, html};
use oncebox_operator::AuditRow;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    list::more,
    sort::{self, Sort, head},
};
use crate::{
    ask::Ask,
    fields::Fields,
    html::{
        layout::key_link,
        words::{empty, time},
    },
    problem::Problem,
    view::View,
};

/// The columns that sort them.
const COLUMNS: [&str; 6] = ["when", "who", "action", "key", "reason", "note"];

#[derive(Serialize, JsonSchema)]
pub(crate) struct Audit {
    database: String,
    rows: Vec<AuditRow>,
    /// Where the next page begins.
    after: Option<String>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Audit, Problem> {
    let database = ask.database()?;
    let sort = Sort::of(&ask.query, &COLUMNS)?;
    let before = if sort.is_none() { ask.query.parsed("after")? } else { None }.unwrap_or(i64::MAX);
    let limit = u32::try_from(sort::limit(sort)).unwrap_or(u32::MAX);
    let mut rows = database.look(async |operator| operator.audit(before, limit).await).await?;
    let after = sort::page(sort, &ask.query, &mut rows, |last| last.id.to_string(), compare)?;
    Ok(Audit { database: database.name().to_owned(), rows, after })
}

fn compare(by: &str, one: &AuditRow, other: &AuditRow) -> Ordering {
    match by {
        "who" => (&one.operator, &one.database_user).cmp(&(&other.operator, &other.database_user)),
        "action" => one.action.cmp(&other.action),
        "key" => one.key.cmp(&other.key),
        "reason" => one.reason.cmp(&other.reason),
        "note" => one.note.cmp(&other.note),
        _ => one.happened_at.cmp(&other.happened_at),
    }
}

impl View for Audit {
    fn title(&self) -> String {
        format!("Audit of {}", self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        html! {
            @if self.rows.is_empty() { (empty("Who has retried, discarded, replayed or paused something stands here, with when and why.")) }
            @else {
                (sort::note(ask))
                div.scroll tabindex="0" { table {
                    thead { tr { @for (by, label) in COLUMNS.into_iter().zip(["When", "Who", "Action", "Key", "Reason", "Note"]) { (head(ask, by, label)) } } }
                    tbody { @for row in &self.rows { tr {
                        td { (time(row.happened_at)) }
                        td { (row.operator.as_deref().unwrap_or("-")) " " span.quiet { "as " (row.database_user) } }
                        td { (row.action) @if row.can_undo && ask.may_act() {
                            " " a href=(Fields::link(&format!("/db/{}/act", self.database), &[("kind", "audit"), ("action", "undo"), ("id", &row.id.to_string())])) { "undo" }
                        } }
                        td.long { @if let Some(key) = &row.key { (key_link(key)) } }
                        td.long { (row.reason.as_deref().unwrap_or_default()) }
                        td.long { (row.note.as_deref().unwrap_or_default()) }
                    } } }
                } }
                (more(ask, self.after.as_deref()))
            }
        }
    }
}
