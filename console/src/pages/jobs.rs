//! `/jobs`: actions under way, and the last ones that have ended.

use std::sync::{Arc, atomic::Ordering};

use axum::{
    extract::Request,
    http::{StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
};
use maud::{Markup, html};
use oncebox_operator::Canary;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    ask::Ask,
    fleet::Database,
    form,
    html::{
        layout::token,
        words::{empty, number, span, state},
    },
    jobs::{End, Job},
    problem::Problem,
    view::{View, problem_page},
};

#[derive(Serialize, JsonSchema)]
pub(crate) struct Jobs {
    #[serde(serialize_with = "all")]
    #[schemars(with = "Vec<Job>")]
    jobs: Vec<Arc<Job>>,
    /// Those of the databases, which outlive this console.
    canaries: Vec<OfDatabase>,
}

/// A canary of a database.
#[derive(Serialize, JsonSchema)]
struct OfDatabase {
    database: String,
    canary: Canary,
}

#[derive(Serialize, JsonSchema)]
#[schemars(with = "Job", inline)]
pub(crate) struct One {
    #[serde(flatten, serialize_with = "one")]
    job: Arc<Job>,
}

fn all<S: serde::Serializer>(jobs: &[Arc<Job>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(jobs.iter().map(|job| &**job))
}

fn one<S: serde::Serializer>(job: &Arc<Job>, serializer: S) -> Result<S::Ok, S::Error> {
    job.as_ref().serialize(serializer)
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Jobs, Problem> {
    let of = |database: &Database| {
        let status = database.sample().status.clone();
        let found = status.and_then(|status| status.canaries.clone()).unwrap_or_default();
        let name = database.name().to_owned();
        found.into_iter().map(move |canary| OfDatabase { database: name.clone(), canary })
    };
    let canaries = ask.console.fleet.databases.iter().flat_map(of).collect();
    Ok(Jobs { jobs: ask.console.jobs.all(), canaries })
}

pub(crate) async fn load_one(ask: Arc<Ask>) -> Result<One, Problem> {
    Ok(One { job: ask.console.jobs.find(ask.param("id"))? })
}

/// Stops a job.
pub(crate) async fn stop(ask: Ask, request: Request) -> Response {
    let console = &ask.console;
    let stopping = async {
        let fields = form::fields(request, form::BYTES_MAX).await?;
        if !console.key.equal(&ask.form_token(), fields.get("token").unwrap_or_default()) {
            return Err(Problem::Forbidden(
                "the form is not one of this console: load its page again".to_owned(),
            ));
        }
        if !ask.may_act() {
            return Err(Problem::Forbidden("only an operator may stop a job".to_owned()));
        }
        let job = console.jobs.find(ask.param("id"))?;
        job.stop();
        Ok(job.id)
    };
    match stopping.await {
        Ok(id) => (StatusCode::SEE_OTHER, [(LOCATION, format!("/jobs/{id}"))]).into_response(),
        Err(problem) => problem_page(&ask, &problem),
    }
}

fn ended(end: Option<&End>) -> Markup {
    html! { @match end {
        None => (state("running")),
        Some(End::Done(text)) => { (state("done")) " " (text) },
        Some(End::Stopped) => { (state("stopped")) " whole batches are done" },
        Some(End::Failed(problem)) => { (state("failed")) " " (problem.trim_end_matches('.')) ". What it did before stays done; the same action goes on with the rest." },
    } }
}

impl View for Jobs {
    fn title(&self) -> String {
        "Jobs".to_owned()
    }

    fn body(&self, ask: &Ask) -> Markup {
        html! { div #jobs data-live="*" {
            @if self.jobs.is_empty() {
                (empty("Actions of this console stand here while they run, and after they have ended, until it restarts."))
            } @else {
                div.scroll tabindex="0" { table {
                    thead { tr { th { "Job" } th { "Action" } th { "Database" } th { "By" } th.number { "Done" } th { "End" } } }
                    tbody { @for job in &self.jobs { tr {
                        th scope="row" { a href=(format!("/jobs/{}", job.id)) { (job.id) } }
                        td { (job.order.verb.command) }
                        td { (job.database) }
                        td { (job.by) }
                        td.number { (done(job)) }
                        td.long { (ended(job.end().as_ref())) }
                    } } }
                } }
            }
            (self.canaries(ask))
        } }
    }
}

impl Jobs {
    /// Each as it was a few seconds ago.
    fn canaries(&self, ask: &Ask) -> Markup {
        html! { @if !self.canaries.is_empty() {
            h2 { "Canaries" }
            div.scroll tabindex="0" { table {
                thead { tr {
                    th { "Canary" } th { "Database" } th { "By" } th { "Of" } th.number { "To go" } th.number { "Watched" }
                    th.number { "Good" } th.number { "Failed" } th.number { "Skipped" } th { "State" } th { "Change" }
                } }
                tbody { @for OfDatabase { database, canary } in &self.canaries { tr {
                    th scope="row" { (canary.id) }
                    td { a href=(format!("/db/{database}")) { (database) } }
                    td { (canary.operator.as_ref().unwrap_or(&canary.database_user)) }
                    td { (canary.things()) }
                    @for count in [canary.waiting, canary.watched, canary.good, canary.failed, canary.skipped] {
                        td.number { (number(count.into())) }
                    }
                    td.long { (state(&canary.state)) " " (canary.reason.as_ref().or(canary.fault.as_ref()).map_or("", |why| why)) }
                    td { @if ask.may_act() { @for action in actions(canary) {
                        a.button href=(format!("/db/{database}/act?kind=canaries&action={action}&id={}", canary.id)) { (action) } " "
                    } } }
                } } }
            } }
        } }
    }
}

/// The actions that it takes.
fn actions(canary: &Canary) -> &'static [&'static str] {
    match canary.state.as_str() {
        "running" => &["stop"],
        "failed" if canary.waiting + canary.watched > 0 => &["continue", "stop"],
        "stopped" if canary.waiting + canary.watched > 0 => &["continue"],
        _ => &[],
    }
}

fn done(job: &Job) -> String {
    let text = |count: u64| number(i64::try_from(count).unwrap_or(i64::MAX));
    let done = text(job.done.load(Ordering::Relaxed));
    job.expected.map_or(done.clone(), |expected| format!("{done} of {}", text(expected)))
}

impl View for One {
    fn title(&self) -> String {
        format!("Job {}: {}", self.job.id, self.job.order.verb.command)
    }

    fn body(&self, ask: &Ask) -> Markup {
        let (job, end) = (&self.job, self.job.end());
        html! {
            div #job data-live="*" {
                p { (ended(end.as_ref())) }
                @if end.is_none() {
                    p { @if let Some(expected) = job.expected {
                        progress max=(expected) value=(job.done.load(Ordering::Relaxed)) aria-label="Done so far" {} " "
                    } (done(job)) ", for " (span(job.began.elapsed().as_secs_f64())) }
                    @if ask.may_act() {
                        form action=(format!("/jobs/{}/stop", job.id)) method="post" { (token(ask)) button { "Stop" } }
                    }
                }
            }
            @if end.is_some() { @if let id @ 1.. = job.undo.load(Ordering::Relaxed) { p {
                a href=(format!("/db/{}/act?kind=audit&action=undo&id={id}", job.database)) { "Undo" } ", within a day"
            } } }
            dl {
                dt { "Database" } dd { a href=(format!("/db/{}", job.database)) { (job.database) } }
                dt { "By" } dd { (job.by) }
                dt { "Note" } dd { (job.order.note.as_deref().unwrap_or("none")) }
                @for (name, value) in &job.order.fields { dt { (name) } dd { (value) } }
            }
            p { a href=(format!("/db/{}/audit", job.database)) { "The audit of " (job.database) } }
        }
    }
}
