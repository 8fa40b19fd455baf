//! `/db/NAME/audit`: the actions of operators, the newest first.

use std::sync::Arc;

use maud::{Markup, html};
use oncebox_operator::AuditRow;
use schemars::JsonSchema;
use serde::Serialize;

use super::list::{ROWS_MAX, more};
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

#[derive(Serialize, JsonSchema)]
pub(crate) struct Audit {
    database: String,
    rows: Vec<AuditRow>,
    /// Where the next page begins.
    after: Option<i64>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Audit, Problem> {
    let database = ask.database()?;
    let before = ask.query.parsed("after")?.unwrap_or(i64::MAX);
    let mut turn = database.turn().await?;
    let operator = turn.look().await?;
    let limit = u32::try_from(ROWS_MAX + 1).unwrap_or(u32::MAX);
    let mut rows = database.answer(operator.audit(before, limit)).await?;
    turn.keep().await;
    let is_more = rows.len() > ROWS_MAX;
    rows.truncate(ROWS_MAX);
    let after = rows.last().filter(|_| is_more).map(|row| row.id);
    Ok(Audit { database: database.name().to_owned(), rows, after })
}

impl View for Audit {
    fn title(&self) -> String {
        format!("Audit of {}", self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        html! {
            @if self.rows.is_empty() { (empty("Who has retried, discarded, replayed or paused something stands here, with when and why.")) }
            @else {
                div.scroll tabindex="0" { table {
                    thead { tr { th { "When" } th { "Who" } th { "Action" } th { "Key" } th { "Reason" } th { "Note" } } }
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
                (more(ask, self.after.map(|after| after.to_string()).as_deref()))
            }
        }
    }
}
