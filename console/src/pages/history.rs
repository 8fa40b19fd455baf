//! `/db/NAME/history`: an hour, a day or a week of a database, and one moment of it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use maud::{Markup, html};
use oncebox_connect::words::counted;
use oncebox_operator::{History, HistoryPoint, Mark, Moment, Time};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    ask::Ask,
    fields::Fields,
    html::{
        chart::{Line, Scale, Timed, chart},
        words::{empty, number, span, time},
    },
    problem::Problem,
    view::View,
};

/// A stretch of time: its name, its title, how long it is, the length of its points, and that of
/// the parts that can be looked at.
type Range = (&'static str, &'static str, Duration, Duration, Duration);

const MINUTE: Duration = Duration::from_secs(60);
const RANGES: [Range; 3] = [
    ("hour", "an hour", Duration::from_secs(3_600), MINUTE, MINUTE),
    ("day", "a day", Duration::from_secs(86_400), Duration::from_secs(300), Duration::from_secs(1_800)),
    ("week", "a week", Duration::from_secs(604_800), Duration::from_secs(1_800), Duration::from_secs(10_800)),
];

impl Timed for HistoryPoint {
    fn at(&self) -> SystemTime {
        *self.at
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DatabaseHistory")]
pub(crate) struct Shown {
    database: String,
    #[serde(flatten)]
    history: History,
    /// The moment of `at`: one point.
    moment: Option<History>,
    #[serde(skip)]
    range: &'static str,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Shown, Problem> {
    let database = ask.database()?;
    let wanted = ask.query.get("range").unwrap_or(RANGES[0].0);
    let range = RANGES.iter().find(|range| range.0 == wanted);
    let (range, _, length, point, part) =
        *range.ok_or_else(|| Problem::Bad(format!("range: {wanted:?} is none; hour, day and week are")))?;
    let (until, at) = (ask.query.parsed::<Moment>("until")?, ask.query.parsed::<Moment>("at")?);
    let mut turn = database.turn().await?;
    let operator = turn.look().await?;
    let now = database.answer(operator.now()).await?;
    let until = until.map_or(now, |until| until.at(now));
    let history = database.answer(operator.history(until, length, point)).await?;
    let moment = match at {
        Some(at) => Some(database.answer(operator.history(at.at(now) + part / 2, part, part)).await?),
        None => None,
    };
    turn.keep().await;
    Ok(Shown { database: database.name().to_owned(), history, moment, range })
}

#[expect(clippy::cast_precision_loss, reason = "a chart")]
const fn whole(count: Option<i64>) -> Option<f64> {
    match count {
        Some(count) => Some(count as f64),
        None => None,
    }
}

type Chart = (&'static str, &'static str, &'static [Line<HistoryPoint>]);

const CHARTS: [Chart; 5] = [
    (
        "Stored",
        "messages",
        &[Line { name: "stored", class: "one", value: |point| whole(Some(point.stored)) }],
    ),
    (
        "Commit to stored",
        "s",
        &[
            Line { name: "median", class: "one", value: |point| point.stored_median },
            Line { name: "p99", class: "two", value: |point| point.stored_p99 },
        ],
    ),
    (
        "Commit to handled",
        "s",
        &[
            Line { name: "median", class: "one", value: |point| point.handled_median },
            Line { name: "p99", class: "two", value: |point| point.handled_p99 },
        ],
    ),
    (
        "Waiting",
        "messages",
        &[
            Line { name: "backlog", class: "one", value: |point| whole(point.backlog) },
            Line { name: "set aside", class: "two", value: |point| whole(point.parked) },
        ],
    ),
    ("Lag", "s", &[Line { name: "lag", class: "one", value: |point| point.lag_seconds }]),
];

impl View for Shown {
    fn title(&self) -> String {
        format!("History of {}", self.database)
    }

    fn body(&self, _: &Ask) -> Markup {
        let path = format!("/db/{}/history", self.database);
        let until = text(*self.history.until);
        html! {
            nav aria-label="Time" {
                @for (name, title, ..) in RANGES {
                    a href=(Fields::link(&path, &[("range", name), ("until", &until)])) aria-current=[(self.range == name).then_some("page")] { (title) }
                }
                a href=(self.beside(&path, -1)) { "before" }
                a href=(self.beside(&path, 1)) { "after" }
                a href=(Fields::link(&path, &[("range", self.range)])) { "now" }
            }
            @if self.history.points.is_empty() {
                (empty("No relay has written anything down in this time. A relay writes a row a minute, and keeps eight days."))
            } @else {
                @let scale = self.scale(&path);
                div.charts { @for (title, unit, lines) in CHARTS { (chart(&self.history.points, (title, unit), lines, &scale)) } }
            }
            form.row action=(path) method="get" {
                input type="hidden" name="range" value=(self.range);
                input type="hidden" name="until" value=(until);
                label { "A moment, in UTC " input type="datetime-local" name="at" required; }
                button { "Look at it" }
            }
            @if let Some(moment) = &self.moment { (shown_moment(moment)) }
            h2 { "What happened" }
            (marks(&self.history.marks))
            h2 { "Subjects" }
            (subjects(&self.history))
            p.quiet { "\"Handled\" is seen in inboxes of this database alone, of 100 messages a minute." }
        }
    }
}

impl Shown {
    /// The address of the time before or after this one.
    fn beside(&self, path: &str, direction: i32) -> String {
        let History { since: Time(since), until: Time(until), .. } = self.history;
        let length = until.duration_since(since).unwrap_or_default();
        let until = if direction < 0 { since } else { until + length };
        Fields::link(path, &[("range", self.range), ("until", &text(until))])
    }

    fn scale(&self, path: &str) -> Scale {
        let (name, title, length, point, part) =
            RANGES.into_iter().find(|range| range.0 == self.range).unwrap_or(RANGES[0]);
        let History { since: Time(since), until: Time(until), ref marks, .. } = self.history;
        let parts = std::iter::successors(Some(since + part / 2), |at| Some(*at + part));
        let until_text = text(until);
        let address = |at| Fields::link(path, &[("range", name), ("until", &until_text), ("at", &text(at))]);
        let moment = |at| (short(at), address(at));
        Scale {
            name: title,
            began: short(since),
            ended: short(until),
            until: Some(until),
            span: length,
            gap: point * 5 / 2,
            marks: marks.iter().map(|mark| (*mark.at, mark.what.clone())).collect(),
            moments: parts.take_while(|at| *at < until).map(moment).collect(),
        }
    }
}

/// How one moment stood.
fn shown_moment(moment: &History) -> Markup {
    let or_none = |value: Option<f64>| value.map_or_else(|| "not seen".to_owned(), span);
    let held = |value: Option<i64>| value.map_or_else(|| "not seen".to_owned(), number);
    html! {
        section.moment aria-label="A moment" {
            h2 { "From " (time(moment.since)) " to " (time(moment.until)) }
            @match moment.points.first() {
                None => (empty("No relay wrote anything down then.")),
                Some(point) => {
                    dl {
                        dt { "Stored" } dd { (number(point.stored)) }
                        dt { "Commit to stored" } dd { "half within " (or_none(point.stored_median)) ", 99 % within " (or_none(point.stored_p99)) }
                        dt { "Commit to handled" } dd {
                            "half within " (or_none(point.handled_median)) ", 99 % within " (or_none(point.handled_p99))
                            ", " (number(point.handled)) " of " (number(point.sampled)) " looked for were handled"
                        }
                        dt { "Lag" } dd { (or_none(point.lag_seconds)) }
                        dt { "Backlog" } dd { (held(point.backlog)) }
                        dt { "Set aside, dead" } dd { (held(point.parked)) ", " (held(point.dead)) }
                        dt { "Delayed" } dd { (held(point.delayed)) }
                        dt { "Failing in inboxes, dead letters" } dd { (held(point.failing)) ", " (held(point.dead_letters)) }
                    }
                    (marks(&moment.marks))
                    (subjects(moment))
                }
            }
        }
    }
}

fn marks(marks: &[Mark]) -> Markup {
    html! {
        @if marks.is_empty() { (empty("Neither an operator nor a change of relays, nor a loss.")) }
        @else {
            ul.timeline { @for mark in marks { li { (time(mark.at)) span { (mark.kind) } span { (mark.what) } } } }
        }
    }
}

fn subjects(history: &History) -> Markup {
    let title = |subject: &Option<String>| subject.clone().unwrap_or_else(|| "others".to_owned());
    html! {
        @if history.subjects.is_empty() { (empty("Nothing was stored.")) }
        @else { details open {
            summary { (counted(history.subjects.len(), "subject")) }
            div.scroll tabindex="0" { table {
                thead { tr { th { "Subject" } th.number { "Stored" } } }
                tbody { @for subject in &history.subjects { tr {
                    td.long { (title(&subject.subject)) }
                    td.number { (number(subject.messages)) }
                } } }
            } }
        } }
    }
}

/// As an address has it.
fn text(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

fn short(at: SystemTime) -> String {
    text(at).get(5..16).unwrap_or_default().replace('T', " ")
}
