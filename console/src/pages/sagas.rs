//! `/db/NAME/sagas`: sagas by type and state.

use std::{cmp::Ordering, sync::Arc, time::Duration};

use maud::{Markup, html};
use oncebox_operator::{Kind, SAGA_STATES, Saga, SagasWaiting};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    list::{ROWS_MAX, action, filter, more, why_no_actions},
    sort::{Sort, head},
};
use crate::{
    ask::Ask,
    fields::Fields,
    html::words::{self, count, empty, number, span, state, time},
    problem::Problem,
    view::View,
};

/// Sagas that are put in another order than that of their beginning, at most.
const SORTED_MAX: usize = 10_000;
pub(crate) const SORT: &str = "business-id, state, age or step; behind a minus from the other end. The newest 10000 \
                               that match are sorted, for age the oldest, and after is how many to leave out";

#[derive(Serialize, JsonSchema)]
pub(crate) struct Sagas {
    database: String,
    /// Those that wait for an operator, by type.
    waiting: Vec<SagasWaiting>,
    sagas: Vec<Saga>,
    after: Option<i64>,
    /// Whether more match than were sorted.
    is_capped: bool,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Sagas, Problem> {
    let database = ask.database()?;
    let after = ask.query.parsed::<i64>("after")?.unwrap_or_default();
    let sort = Sort::of(&ask.query, &COLUMNS)?;
    let mut selection = ask.query.selection(Kind::Sagas, sort.is_none())?;
    let limit = match sort {
        None => ROWS_MAX + 1,
        Some(sort) => {
            selection.newest_first = !takes_oldest(sort);
            SORTED_MAX + 1
        }
    };
    let mut sagas = database.look(async |operator| operator.sagas(&selection, limit).await).await?;
    let is_capped = sort.is_some() && sagas.len() > SORTED_MAX;
    if let Some(sort) = sort {
        sagas.truncate(SORTED_MAX);
        // Those that are equal stand in the order of their beginning: the ids grow with that.
        sagas.sort_by_key(|saga| saga.id);
        sort.apply(&mut sagas, compare);
        sagas.drain(..usize::try_from(after).unwrap_or(0).min(sagas.len()));
    }
    let is_more = sagas.len() > ROWS_MAX;
    sagas.truncate(ROWS_MAX);
    let waiting = database.sample().status.as_ref().map(|status| status.sagas_waiting.clone());
    let next = match &sort {
        None => sagas.last().map(|saga| saga.id),
        Some(_) => i64::try_from(ROWS_MAX).ok().map(|rows| after.max(0) + rows),
    };
    Ok(Sagas {
        database: database.name().to_owned(),
        waiting: waiting.unwrap_or_default(),
        after: next.filter(|_| is_more),
        is_capped,
        sagas,
    })
}

/// The columns that sort them.
const COLUMNS: [&str; 4] = ["business-id", "state", "age", "step"];

/// The age grows from the newest to the oldest, which come first when it is reversed.
fn takes_oldest(sort: Sort) -> bool {
    sort.by == "age" && sort.is_reversed
}

fn compare(by: &str, one: &Saga, other: &Saga) -> Ordering {
    let place = |saga: &Saga| SAGA_STATES.iter().position(|state| *state == saga.state);
    match by {
        "business-id" => one.business_id.cmp(&other.business_id),
        "state" => place(one).cmp(&place(other)),
        "age" => other.created_at.cmp(&one.created_at),
        _ => one.current.cmp(&other.current),
    }
}

impl View for Sagas {
    fn title(&self) -> String {
        format!("Sagas in {}", self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        let path = format!("/db/{}/sagas", self.database);
        let (wanted, sort) = (ask.query.get("state"), ask.query.get("sort").unwrap_or_default());
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
                @if self.is_capped {
                    p.quiet {
                        @if sort == "-age" { "The oldest " } @else { "The newest " }
                        (number(i64::try_from(SORTED_MAX).unwrap_or(i64::MAX))) " of these are sorted, and the others are not shown here."
                    }
                }
                div.scroll tabindex="0" { table {
                    thead { tr {
                        th { "Key" } (head(ask, "business-id", "Business id")) th { "Type" } (head(ask, "state", "State"))
                        (head(ask, "step", "Current step")) (head(ask, "age", "Age")) th { "Began" } th { "Changed" } th { "Reason" }
                    } }
                    tbody { @for saga in &self.sagas { tr {
                        td.long { a.key href=(Fields::link(&format!("/db/{}/saga", self.database), &[("key", &saga.key)])) { (saga.key) } }
                        td.long { (saga.business_id) }
                        td { (saga.saga_type) " v" (saga.version) }
                        td { (state(&saga.state)) }
                        td.long { (saga.current.join(", ")) }
                        td.number { (age(saga)) }
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

/// How long ago it began.
fn age(saga: &Saga) -> String {
    span(Duration::from_millis(saga.age_ms.try_into().unwrap_or(0)).as_secs_f64())
}
