//! `/db/NAME/sagas`: sagas by type and state.

use std::sync::Arc;

use maud::{Markup, html};
use oncebox_operator::{SAGA_STATES, Saga, SagasWaiting};
use schemars::JsonSchema;
use serde::Serialize;

use super::list::{ROWS_MAX, action, filter, more, why_no_actions};
use crate::{
    ask::Ask,
    fields::Fields,
    html::words::{self, count, empty, state, time},
    order,
    problem::Problem,
    view::View,
};

#[derive(Serialize, JsonSchema)]
pub(crate) struct Sagas {
    database: String,
    /// Those that wait for an operator, by type.
    waiting: Vec<SagasWaiting>,
    sagas: Vec<Saga>,
    after: Option<i64>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Sagas, Problem> {
    let database = ask.database()?;
    let mut selection = order::sagas(&ask.query);
    if selection.state.as_ref().is_some_and(|state| !SAGA_STATES.contains(&state.as_str())) {
        return Err(Problem::Bad(format!("state: none of {}", SAGA_STATES.join(", "))));
    }
    selection.after = ask.query.parsed("after")?.unwrap_or_default();
    let mut turn = database.turn().await?;
    let operator = turn.look().await?;
    let mut sagas = database.answer(operator.sagas(&selection, ROWS_MAX + 1)).await?;
    turn.keep().await;
    let is_more = sagas.len() > ROWS_MAX;
    sagas.truncate(ROWS_MAX);
    let waiting = database.sample().status.as_ref().map(|status| status.sagas_waiting.clone());
    Ok(Sagas {
        database: database.name().to_owned(),
        waiting: waiting.unwrap_or_default(),
        after: sagas.last().filter(|_| is_more).map(|saga| saga.id),
        sagas,
    })
}

impl View for Sagas {
    fn title(&self) -> String {
        format!("Sagas in {}", self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        let path = format!("/db/{}/sagas", self.database);
        let wanted = ask.query.get("state");
        html! {
            nav aria-label="States" {
                a href=(path) aria-current=[wanted.is_none().then_some("page")] { "not finished" }
                @for state in SAGA_STATES {
                    a href=(Fields::link(&path, &[("state", state)])) aria-current=[(wanted == Some(state)).then_some("page")] { (state) }
                }
            }
            @if !self.waiting.is_empty() {
                h2 { "Waiting for an operator" }
                div.scroll tabindex="0" { table {
                    thead { tr { th { "Type" } th { "State" } th.number { "How many" } th { "Actions" } } }
                    tbody { @for waiting in &self.waiting {
                        @let fields = [("kind", "sagas"), ("type", &*waiting.saga_type), ("state", &*waiting.state)];
                        tr {
                            td { (waiting.saga_type) }
                            td { a href=(Fields::link(&path, &fields[1..])) { (state(&waiting.state)) } }
                            td.number { (count(waiting.sagas, "bad")) }
                            td {
                                @for word in ["retry", "abandon"] {
                                    (action(ask, &self.database, word, &[&fields[..], &[("action", word)]].concat()))
                                }
                            }
                        }
                    } }
                } }
            }
            (filter(ask, &[("state", wanted.unwrap_or_default())], &[("type", "Type"), ("key", "Key")]))
            (why_no_actions(ask))
            @if self.sagas.is_empty() {
                (empty("Sagas stand here from their beginning on: business processes over several services, each with its steps."))
            } @else {
                div.scroll tabindex="0" { table {
                    thead { tr {
                        th { "Key" } th { "Type" } th { "State" } th { "Waiting steps" } th { "Began" } th { "Changed" } th { "Reason" }
                    } }
                    tbody { @for saga in &self.sagas { tr {
                        td.long { a.key href=(Fields::link(&format!("/db/{}/saga", self.database), &[("key", &saga.key)])) { (saga.key) } }
                        td { (saga.saga_type) " v" (saga.version) }
                        td { (state(&saga.state)) }
                        td.long { (saga.waiting.join(", ")) }
                        td { (time(saga.created_at)) }
                        td { (time(saga.changed_at)) }
                        td.long { (saga.reason.as_deref().unwrap_or_default()) }
                    } } }
                } }
                (more(ask, self.after.map(|after| after.to_string()).as_deref()))
            }
            (words::command(&["oncebox", "saga", "list", "--database", &self.database]))
        }
    }
}
