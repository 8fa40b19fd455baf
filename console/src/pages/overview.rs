//! `/`: every database a row, those that need an operator first.

use oncebox_connect::words::counted;
use std::{cmp::Reverse, sync::Arc};

use maud::{Markup, html};
use oncebox_operator::{Severity, Status};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    ask::Ask,
    fleet::Database,
    history::Point,
    html::{
        chart::{Line, Scale, spark},
        words::{self, count, number, span, state},
    },
    problem::Problem,
    sampler::Sample,
    view::View,
};

/// How a database stands; the gravest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    Starting,
    Well,
    Look,
    NeedsSomebody,
    Away,
}

impl Level {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Well => "well",
            Self::Look => "look",
            Self::NeedsSomebody => "needs somebody",
            Self::Away => "away",
        }
    }
}

/// The numbers of a database that are seen at a glance.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DatabaseRow")]
pub(crate) struct Row {
    database: String,
    pub(crate) level: Level,
    /// Why it is away.
    problem: Option<String>,
    seconds_ago: Option<f64>,
    /// Whether it has ever answered.
    is_known: bool,
    lag_seconds: f64,
    backlog_messages: i64,
    backlog_is_exact: bool,
    enqueued_per_second: f64,
    settled_per_second: f64,
    set_aside: i64,
    dead: i64,
    dead_letters: i64,
    failing: i64,
    /// Whether there may be more of these two.
    inbox_counts_are_capped: bool,
    stuck: i64,
    relay_sessions: i64,
    has_leader: bool,
    /// The gravest obstacle to delivery.
    finding: Option<String>,
    findings: usize,
    /// Those of messages that do not get through.
    grave_findings: usize,
    doctor_problems: usize,
    doctor_warnings: usize,
    #[serde(skip)]
    history: Vec<Point>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Overview {
    databases: Vec<Row>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Overview, Problem> {
    let mut databases: Vec<Row> = ask.console.fleet.databases.iter().map(Row::new).collect();
    databases.sort_by(|one, other| {
        let order = |row: &Row| (Reverse(row.level), Reverse(row.findings + row.doctor_problems));
        order(one).cmp(&order(other)).then(other.lag_seconds.total_cmp(&one.lag_seconds))
    });
    Ok(Overview { databases })
}

/// Sums over the inboxes of a database.
fn of_inboxes(status: &Status, number: fn(&oncebox_operator::InboxStatus) -> i64) -> i64 {
    status.inboxes.iter().flatten().map(number).sum()
}

/// Inboxes count theirs to a limit, and letters of inboxes that have gone are in the list only.
fn dead_letters(status: &Status) -> i64 {
    let newest = status.dead_letters.iter().flatten().map(|letters| letters.letters).sum();
    of_inboxes(status, |inbox| inbox.dead).max(newest)
}

impl Row {
    pub(crate) fn new(database: &Database) -> Self {
        let sample = database.sample();
        let seen = sample.status.as_deref();
        let default = Status::default();
        let status = seen.unwrap_or(&default);
        let diagnoses = || sample.examination.iter().flat_map(|examination| &examination.findings);
        let of = |severity| diagnoses().filter(|found| found.severity == severity).count();
        let mut row = Self {
            database: database.name().to_owned(),
            level: Level::Starting,
            problem: sample.problem.clone(),
            seconds_ago: sample.looked_at.map(|at| at.elapsed().as_secs_f64()),
            is_known: seen.is_some(),
            lag_seconds: status.lag_seconds,
            backlog_messages: status.backlog_messages,
            backlog_is_exact: status.backlog_is_exact,
            enqueued_per_second: status.rates.enqueued_per_second,
            settled_per_second: status.rates.settled_per_second,
            set_aside: status.parked,
            dead: status.dead,
            dead_letters: dead_letters(status),
            failing: of_inboxes(status, |inbox| inbox.failing),
            inbox_counts_are_capped: status.inboxes.iter().flatten().any(|inbox| inbox.is_capped)
                || status.dead_letters.iter().flatten().any(|letters| letters.is_capped),
            stuck: status.sagas_waiting.iter().map(|sagas| sagas.sagas).sum(),
            relay_sessions: status.relays.iter().map(|relays| relays.sessions).sum(),
            has_leader: status.relays.iter().any(|relays| relays.leads),
            finding: status.findings.first().map(|finding| finding.what.clone()),
            findings: status.findings.len(),
            grave_findings: status.findings.iter().filter(|finding| finding.holds_delivery).count(),
            doctor_problems: of(Severity::Problem),
            doctor_warnings: of(Severity::Warning),
            history: sample.history.clone(),
        };
        row.level = row.judge(&sample);
        row
    }

    fn judge(&self, sample: &Sample) -> Level {
        let to_look_at = [self.set_aside, self.dead, self.dead_letters, self.failing, self.stuck];
        match (sample.is_fresh(), &sample.problem) {
            (false, None) if sample.status.is_none() => Level::Starting,
            (false, _) | (_, Some(_)) => Level::Away,
            _ if self.grave_findings + self.doctor_problems > 0 => Level::NeedsSomebody,
            _ if self.findings + self.doctor_warnings > 0 || to_look_at.iter().any(|count| *count > 0) => {
                Level::Look
            }
            _ => Level::Well,
        }
    }

    fn cells(&self) -> Markup {
        let path = format!("/db/{}", self.database);
        let about = if self.backlog_is_exact { "" } else { "about " };
        let aside = |kind: &str, number: i64, class: &str| {
            let link = format!("{path}/set-aside?kind={kind}");
            html! { @if number > 0 { a href=(link) { (count(number, class)) } } @else { (count(0, class)) } }
        };
        let needs = self.needs(&path);
        html! {
            tbody.away[self.level == Level::Away] {
                tr {
                    th scope="row" { a href=(path) { (self.database) } }
                    td data-head="state" { (state(self.level.word())) }
                    @if self.is_known {
                        td.number data-head="lag" { (span(self.lag_seconds)) }
                        td.number data-head="backlog" { (about) (number(self.backlog_messages)) }
                        td data-head="an hour" { (spark(&self.history, &BACKLOG, &Scale::hour())) }
                        td.number data-head="settled" { (format!("{:.1}", self.settled_per_second)) " /s" }
                        td.number data-head="set aside" { (aside("parked", self.set_aside, "warn")) }
                        td.number data-head="dead" { (aside("dead", self.dead, "bad")) }
                        @let at_least = |number: i64| {
                            if self.inbox_counts_are_capped && number > 0 { "at least " } else { "" }
                        };
                        td.number data-head="failing" { (at_least(self.failing)) (aside("failing", self.failing, "warn")) }
                        td.number data-head="dead letters" { (at_least(self.dead_letters)) (aside("dead-letters", self.dead_letters, "bad")) }
                        td.number data-head="stuck" {
                            @if self.stuck > 0 { a href=(format!("{path}/sagas?state=stuck")) { (count(self.stuck, "bad")) } }
                            @else { (count(0, "bad")) }
                        }
                        td.number data-head="relays" {
                            (count(self.relay_sessions, "")) @if !self.has_leader && self.relay_sessions > 0 { " no leader" }
                        }
                    } @else { td.quiet colspan="10" { "not known yet" } }
                }
                @if let Some(needs) = needs { tr.needs { td colspan="12" { (needs) } } }
            }
        }
    }

    /// Why it needs an operator.
    fn needs(&self, path: &str) -> Option<Markup> {
        let seconds = self.seconds_ago.map(|ago| format!(" (seen {} ago)", span(ago)));
        if let (Level::Away, Some(problem)) = (self.level, &self.problem) {
            return Some(html! { span.bad-text { (problem) (seconds.unwrap_or_default()) } });
        }
        if let Some(finding) = &self.finding {
            return Some(html! {
                (finding) @if self.findings > 1 { " " a href=(path) { "and " (self.findings - 1) " more" } }
            });
        }
        self.diagnosed(path)
    }

    /// The doctor's findings, as a link.
    pub(crate) fn diagnosed(&self, path: &str) -> Option<Markup> {
        let (problems, warnings) = (self.doctor_problems, self.doctor_warnings);
        (problems + warnings > 0).then(|| {
            let text = format!(
                "the doctor finds {} and {}",
                counted(problems, "problem"),
                counted(warnings, "warning")
            );
            html! { a href=(format!("{path}/doctor")) { (text) } }
        })
    }
}

pub(crate) const BACKLOG: Line<Point> = Line {
    name: "backlog",
    class: "one",
    #[expect(clippy::cast_precision_loss, reason = "a chart")]
    value: |point| Some(point.backlog_messages as f64),
};

impl View for Overview {
    fn title(&self) -> String {
        "Databases".to_owned()
    }

    fn body(&self, _: &Ask) -> Markup {
        let heads = [
            ("Database", ""),
            ("State", ""),
            ("Lag", "number"),
            ("Backlog", "number"),
            ("The last hour", ""),
            ("Settled", "number"),
            ("Set aside", "number"),
            ("Dead", "number"),
            ("Failing", "number"),
            ("Dead letters", "number"),
            ("Stuck", "number"),
            ("Relays", "number"),
        ];
        let need = self.databases.iter().filter(|row| row.level >= Level::NeedsSomebody).count();
        let look = self.databases.iter().filter(|row| row.level == Level::Look).count();
        html! {
            div #overview data-live="*" {
                p {
                    @match need {
                        0 if look == 0 => { "Nothing is seen to hold delivery up." },
                        0 => { "No database needs somebody; look at " (counted(look, "database")) "." },
                        1 => { strong.bad { "1 database needs somebody." } },
                        _ => { strong.bad { (need) " databases need somebody." } },
                    }
                }
                div.scroll tabindex="0" {
                    table.stacks {
                        thead { tr { @for (head, class) in heads { th scope="col" class=[(!class.is_empty()).then_some(class)] { (head) } } } }
                        @for row in &self.databases { (row.cells()) }
                    }
                }
            }
            (words::command(&["oncebox", "status", "--watch", "5"]))
        }
    }
}
