//! `/db/NAME/act`: an action is first shown, with how many it would change; only then done.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::Request,
    http::{
        StatusCode,
        header::{CONTENT_TYPE, LOCATION},
    },
    response::{IntoResponse, Response},
};
use maud::{Markup, html};
use oncebox_connect::error::{RelayError, error_chain};
use oncebox_operator::{Counted, EditPreview, Order, UndoRow};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    ask::Ask,
    fields::Fields,
    form,
    html::{layout::token, words},
    jobs::Job,
    order::{self, CANARY, counted, unfolded},
    pages::list::ROWS_MAX,
    problem::Problem,
    view::{View, document, problem_page},
};

/// The longest time that counting takes.
const COUNT_MAX: Duration = Duration::from_secs(8);

/// An order, and the number of things that it would change.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Plan {
    database: String,
    order: Order,
    /// `None` where that is one, or more than could be counted in time.
    count: Option<u64>,
    /// The rows that are shown, for the field of this name: only these are changed then.
    shown: Option<String>,
    consequence: &'static str,
    /// Of losses: which messages the count is of.
    about: Option<String>,
    /// Warnings to read before it is done.
    warnings: Vec<String>,
    /// The rows of a discard that would come back, each with the reason why it cannot.
    rows: Vec<UndoRow>,
    /// Old and new of an edit.
    edit: Option<EditPreview>,
    /// `None` when time ran out.
    #[serde(skip)]
    counted: Option<Counted>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Plan, Problem> {
    let order = order::parse(&ask.query)?;
    plan(&ask, order).await
}

pub(crate) async fn plan(ask: &Ask, order: Order) -> Result<Plan, Problem> {
    let database = ask.database()?;
    let mut turn = database.turn().await?;
    let looking = async {
        let rows = order::undo_rows(&order, turn.operator()).await?;
        let edit = match order.edit().map_err(RelayError::Refused)? {
            Some((of, edit)) => {
                let shown = ask.console.settings.shows_payloads;
                Some(turn.operator().preview_edit(&of, &edit, shown).await?)
            }
            None => None,
        };
        Ok((order.count(turn.operator()).await?, rows, edit))
    };
    let counted = timeout(COUNT_MAX, looking).await;
    let (counted, rows, edit) = match counted {
        Ok(counted) => {
            turn.keep().await;
            let (counted, rows, edit) =
                counted.map_err(|error: RelayError| Problem::told(&error, error_chain(&error)))?;
            (Some(counted), rows, edit)
        }
        Err(_) => (None, Vec::new(), None),
    };
    let consequence = order.verb.consequence;
    let count = counted.as_ref().and_then(Counted::expected);
    let shown =
        counted.as_ref().and_then(|counted| counted.rows.as_ref()).map(|rows| rows.shown().to_string());
    let about = counted.as_ref().and_then(|counted| counted.done.about_losses());
    let warnings = counted.as_ref().map(|counted| counted.done.warnings.clone()).unwrap_or_default();
    let database = database.name().to_owned();
    Ok(Plan { database, order, count, shown, consequence, about, warnings, rows, edit, counted })
}

impl View for Plan {
    fn title(&self) -> String {
        format!("{} in {}?", self.order.verb.title(), self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        let action = self.order.verb.word();
        let is_idle = self.counted.as_ref().is_some_and(Counted::is_nothing);
        html! {
            p.told {
                @match self.count {
                    Some(count) => { "This would " (action) " " strong { (counted(self.order.verb, count)) } "." },
                    None if self.is_uncounted() => { (uncounted()) " " },
                    None => {}
                }
                " " (self.consequence)
            }
            @if let Some(about) = &self.about { p { "These are " (about) "." } }
            @for warning in &self.warnings { p.problem { "Note: " (warning) "." } }
            dl {
                dt { "Database" } dd { (self.database) }
                @for (name, value) in &self.order.fields { dt { (name) } dd { (value) } }
            }
            (self.table())
            @if let Some(preview) = &self.edit { (super::difference::show(preview)) }
            @if !ask.may_act() { p.problem { (why_not(ask)) } }
            @else if self.is_uncounted() {}
            @else if self.is_blocked() { p.problem { "A row cannot come back, so none would." } }
            @else if is_idle { p.quiet { "Nothing is selected that can be changed so." } }
            @else {
                form.stack action=(format!("/db/{}/act", self.database)) method="post" {
                    (token(ask))
                    @for (name, value) in order::hidden(&self.order).iter().filter(|(name, _)| name != CANARY) { input type="hidden" name=(name) value=(value); }
                    @if let Some(payload) = &self.order.payload { textarea name="payload" hidden { "\n" (String::from_utf8_lossy(&payload.0)) } }
                    label for="note" { "Why, for the audit" }
                    input #note type="text" name="note" maxlength="1000" placeholder="INC-7" required[self.order.verb.is_edit()];
                    @if let Some(shown) = &self.shown { input type="hidden" name="shown" value=(shown); }
                    @if self.order.verb.has_rate() {
                        label for="rate" { "Limit a second" }
                        input #rate type="number" name="rate" min="0.001" step="any" placeholder="as fast as it goes"
                            value=(self.order.rate.map(|rate| rate.to_string()).unwrap_or_default());
                    }
                    @if self.order.verb.takes(CANARY) {
                        label { input type="checkbox" name=(CANARY) value="1" checked[self.order.canary.is_some()]; " Canary: retry one, then 10, 100 and the rest, \
                                 and stop at the first that fails again" }
                    }
                    @if self.order.verb.is_grave() {
                        label for="word" { "Type " strong { (action) } " to go on" }
                        input #word type="text" name="word" required pattern=(action) autocomplete="off" autocapitalize="off";
                    }
                    button.main[!self.order.verb.is_grave()].grave[self.order.verb.is_grave()] { (action) " as " (ask.user.name) }
                }
            }
            p { a href=(format!("/db/{}", self.database)) { "Do nothing" } }
            @for line in order::commands(&self.order, &ask.user.name, &self.database, self.shown.as_deref()) {
                (words::command(&line.iter().map(String::as_str).collect::<Vec<_>>()))
            }
        }
    }
}

impl Plan {
    fn is_blocked(&self) -> bool {
        self.rows.iter().any(|row| row.obstacle.is_some())
    }

    /// The first rows that would come back, those that cannot before all others.
    fn table(&self) -> Markup {
        let (blocked, free): (Vec<_>, Vec<_>) = self.rows.iter().partition(|row| row.obstacle.is_some());
        html! { @if !self.rows.is_empty() { div.scroll tabindex="0" { table {
            thead { tr { th { "Key" } th { "Where" } th { "Subject" } th { "Reason" } th { "Cannot come back" } } }
            tbody { @for row in blocked.into_iter().chain(free).take(ROWS_MAX) { tr {
                td.long { (row.key.as_deref().unwrap_or("none")) }
                td { (row.scope.as_deref().unwrap_or("outbox")) }
                td.long { (row.subject.as_deref().unwrap_or_default()) }
                td.long { (row.reason.as_deref().unwrap_or_default()) }
                td.long { (row.obstacle.as_deref().unwrap_or_default()) }
            } } }
        } } } }
    }

    /// Whether rows could not be counted in time: they cannot be confirmed then.
    fn is_uncounted(&self) -> bool {
        self.counted.is_none() && self.order.verb.has_rows()
    }
}

fn uncounted() -> String {
    format!(
        "More is selected than could be counted in {} seconds: select less, or use the command line.",
        COUNT_MAX.as_secs()
    )
}

fn why_not(ask: &Ask) -> &'static str {
    match ask.console.settings.allows_actions {
        true => "Your role is reader: only an operator may act.",
        false => "This console only looks: start it with --allow-actions to act.",
    }
}

/// The confirmed form.
pub(crate) async fn confirm(ask: Ask, request: Request) -> Response {
    let doing = async {
        let mut fields = form_fields(&ask, request).await?;
        let payloads = fields.0.iter_mut().filter(|(name, _)| name == "payload");
        payloads.for_each(|(_, text)| *text = unfolded(text));
        begin(&ask, &fields, true).await
    };
    match doing.await {
        Ok(job) => (StatusCode::SEE_OTHER, [(LOCATION, format!("/jobs/{}", job.id))]).into_response(),
        Err(problem) => problem_page(&ask, &problem),
    }
}

/// The fields of a form that was on a page of this console.
pub(crate) async fn form_fields(ask: &Ask, request: Request) -> Result<Fields, Problem> {
    let fields = form::fields(request, form::BYTES_MAX).await?;
    match ask.console.key.equal(&ask.form_token(), fields.get("token").unwrap_or_default()) {
        true => Ok(fields),
        false => {
            let problem = "the form is not one of this console, or is older than it: load its page again";
            Err(Problem::Forbidden(problem.to_owned()))
        }
    }
}

/// The same of a program. A page of another site cannot send JSON without asking first, and is
/// not answered.
pub(crate) async fn post(ask: Ask, request: Request) -> Response {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = kind.split(';').next().is_some_and(|kind| kind.trim() == "application/json");
    let doing = async {
        if !is_json {
            return Err(Problem::Bad("the body has to be application/json".to_owned()));
        }
        let text = form::text(request, form::BYTES_MAX).await?;
        begin(&ask, &document_fields(&text)?, false).await
    };
    match doing.await {
        Ok(job) => document(Ok(&*job)),
        Err(problem) => document::<Job>(Err(problem)),
    }
}

/// `was_shown`: a person has seen the rows, which the form names.
async fn begin(ask: &Ask, fields: &Fields, was_shown: bool) -> Result<Arc<Job>, Problem> {
    if !ask.may_act() {
        return Err(Problem::Forbidden(why_not(ask).to_owned()));
    }
    let order = order::parse(fields)?;
    if was_shown && order.verb.has_rows() && order.shown.is_none() {
        return Err(Problem::Bad("shown: the rows are not those of a page; load its page again".to_owned()));
    }
    if order.verb.is_edit() && order.note.is_none() {
        return Err(Problem::Bad("note: an edit needs a reason, for the audit".to_owned()));
    }
    let word = order.verb.word();
    if was_shown && order.verb.is_grave() && fields.get("word") != Some(word) {
        return Err(Problem::Bad(format!("word: {word} was not typed; nothing was done")));
    }
    let Plan { order, counted, .. } = plan(ask, order).await?;
    if counted.as_ref().is_some_and(Counted::is_nothing) {
        let gone = "none of the shown rows is there any more; nothing was done; look at the list again";
        let problem = if order.shown.is_some() { gone } else { "nothing is selected; nothing was done" };
        return Err(Problem::Conflict(problem.to_owned()));
    }
    if let Some(rows) = counted.as_ref().and_then(|counted| counted.rows.as_ref()) {
        order.check(rows).map_err(|changed| Problem::Conflict(changed.to_string()))?;
    }
    let counted = match counted {
        None if order.verb.has_rows() => return Err(Problem::Conflict(uncounted())),
        counted => counted.unwrap_or_default(),
    };
    let member = &ask.database()?.member;
    ask.console.jobs.begin(member, &ask.user.name, order, counted)
}

/// An object of texts, numbers, booleans and lists of texts as the fields of a form.
fn document_fields(text: &str) -> Result<Fields, Problem> {
    let wrong = || Problem::Bad("the body is no object of texts, numbers and lists of texts".to_owned());
    let Ok(Value::Object(object)) = serde_json::from_str(text) else { return Err(wrong()) };
    let mut fields = Vec::new();
    for (name, value) in object {
        match value {
            Value::Null | Value::Bool(false) => {}
            Value::Bool(true) => fields.push((name, "1".to_owned())),
            Value::String(text) => fields.push((name, text)),
            Value::Number(number) => fields.push((name, number.to_string())),
            Value::Array(all) => {
                for one in all {
                    fields.push((name.clone(), one.as_str().ok_or_else(wrong)?.to_owned()));
                }
            }
            Value::Object(_) => return Err(wrong()),
        }
    }
    Ok(Fields(fields))
}
