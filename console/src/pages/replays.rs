//! `/db/NAME/replays`: settled messages that are to be sent again.

use std::sync::Arc;

use maud::{Markup, html};
use oncebox_operator::{ParkedKind, ParkedMessage};
use schemars::JsonSchema;
use serde::Serialize;

use super::list::{ROWS_MAX, action, more, why_no_actions};
use crate::{
    ask::Ask,
    html::{
        layout::key_link,
        words::{self, empty, state, time_or},
    },
    order,
    problem::Problem,
    view::View,
};

#[derive(Serialize, JsonSchema)]
pub(crate) struct Replays {
    database: String,
    replays: Vec<ParkedMessage>,
    after: Option<i64>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Replays, Problem> {
    let database = ask.database()?;
    let mut selection = order::messages(&ask.query)?;
    selection.after = ask.query.parsed("after")?.unwrap_or_default();
    let mut turn = database.turn().await?;
    let operator = turn.look().await?;
    let mut replays = database.answer(operator.parked(ParkedKind::Replay, &selection, ROWS_MAX + 1)).await?;
    turn.keep().await;
    let is_more = replays.len() > ROWS_MAX;
    replays.truncate(ROWS_MAX);
    let after = replays.last().filter(|_| is_more).map(|last| last.id);
    Ok(Replays { database: database.name().to_owned(), replays, after })
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
                div.scroll tabindex="0" { table {
                    thead { tr { th { "Key" } th { "State" } th.number { "Replay" } th { "Subject" } th { "Ordering key" } th { "Next attempt" } th { "Reason" } th { span.hidden { "Actions" } } } }
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
                (more(ask, self.after.map(|after| after.to_string()).as_deref()))
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
