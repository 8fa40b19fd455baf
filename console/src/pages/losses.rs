//! `/db/NAME/losses`: messages that a stream had acknowledged and then lost.

use std::sync::Arc;

use maud::{Markup, html};
use oncebox_operator::LossStatus;
use schemars::JsonSchema;
use serde::Serialize;

use super::list::{action, why_no_actions};
use crate::{
    ask::Ask,
    html::words::{self, empty, number, state, time},
    problem::Problem,
    view::View,
};

#[derive(Serialize, JsonSchema)]
pub(crate) struct Losses {
    database: String,
    losses: Vec<LossStatus>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Losses, Problem> {
    let database = ask.database()?;
    let losses = database.sample().status.as_ref().map(|status| status.losses.clone());
    Ok(Losses { database: database.name().to_owned(), losses: losses.unwrap_or_default() })
}

impl View for Losses {
    fn title(&self) -> String {
        format!("Losses of {}", self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        html! {
            (why_no_actions(ask))
            @if self.losses.is_empty() {
                (empty("Losses stand here: messages that a stream had acknowledged and no longer has. None is known."))
            } @else {
                div.scroll tabindex="0" { table {
                    thead { tr { th { "Stream" } th { "State" } th { "Kind" } th.number { "Lanes" } th.number { "Whole up to" } th.number { "Lost up to" } th { "Found" } th { span.hidden { "Actions" } } } }
                    tbody { @for loss in &self.losses { tr {
                        th scope="row" { (loss.stream) }
                        td { (state(&loss.state)) }
                        td { (loss.kind) }
                        td.number { (loss.lanes) }
                        td.number { (number(loss.sequence)) }
                        td.number { (number(loss.lost_sequence)) }
                        td { (time(loss.found_at)) }
                        td { @if loss.state == "reported" {
                            (action(ask, &self.database, "resend", &[("kind", "losses"), ("action", "resend"), ("stream", &loss.stream)]))
                        } }
                    } } }
                } }
            }
            @for loss in self.losses.iter().filter(|loss| loss.state == "reported") {
                (words::command(&["oncebox", "outbox", "resend", "--stream", &loss.stream, "--dry-run", "--database", &self.database]))
            }
        }
    }
}
