//! `/db/NAME`: one database, with the obstacles to delivery and their remedies.

use oncebox_connect::words::counted;
use std::sync::Arc;

use maud::{Markup, html};
use oncebox_operator::{Finding, Holder, LaneStatus, Status, Survey};
use schemars::JsonSchema;
use serde::Serialize;

use super::overview::{BACKLOG, Row};
use crate::{
    ask::Ask,
    history::Point,
    html::{
        chart::{Line, Scale, chart},
        words::{self, bytes, count, empty, number, span, state, time, time_or},
    },
    problem::Problem,
    sampler::Sample,
    view::View,
};

/// A database as it was looked at last.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Database")]
pub(crate) struct Shown {
    name: String,
    row: Row,
    #[serde(flatten)]
    sample: Sample,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Shown, Problem> {
    let database = ask.database()?;
    Ok(Shown {
        name: database.name().to_owned(),
        row: Row::new(database),
        sample: Sample::clone(&database.sample()),
    })
}

/// Messages that are set aside are counted to this.
const COUNTED_MAX: i64 = 100_000;
/// The findings of one kind that stand open.
const FINDINGS_SHOWN_MAX: usize = 2;

const CHARTS: [(&str, &str, &[Line<Point>]); 3] = [
    ("Lag", "s", &[Line { name: "lag", class: "one", value: |point| Some(point.lag_seconds) }]),
    ("Backlog", "messages", &[BACKLOG]),
    (
        "Rate",
        "/s",
        &[
            Line { name: "enqueued", class: "one", value: |point| Some(point.enqueued_per_second) },
            Line { name: "settled", class: "two", value: |point| Some(point.settled_per_second) },
        ],
    ),
];

impl View for Shown {
    fn title(&self) -> String {
        self.name.clone()
    }

    fn body(&self, _: &Ask) -> Markup {
        html! {
            div #database data-live=(self.name) {
                p {
                    (state(self.row.level.word()))
                    @if let Some(at) = self.sample.looked_at { " looked at " (span(at.elapsed().as_secs_f64())) " ago" }
                }
                @if let Some(problem) = &self.sample.problem { p.problem role="alert" { (problem) } }
                @match &self.sample.status {
                    None => (empty("Its numbers stand here as soon as the database has answered for the first time.")),
                    Some(status) => (stands(&self.row, &self.name, status, &self.sample)),
                }
            }
            (words::command(&["oncebox", "status", "--all", "--database", &self.name]))
        }
    }
}

fn stands(row: &Row, name: &str, status: &Status, sample: &Sample) -> Markup {
    let path = format!("/db/{name}");
    html! {
        (tiles(&path, status))
        @let hour = Scale::hour();
        div.charts { @for (title, unit, lines) in CHARTS { (chart(&sample.history, (title, unit), lines, &hour)) } }
        p.quiet { a href=(format!("{path}/history")) { "Hours, days and a week, with what happened" } }
        h2 #findings { "What holds delivery up" }
        @let diagnosed = row.diagnosed(&path);
        @match &diagnosed {
            None if status.findings.is_empty() && sample.problem.is_none() => { (empty("Nothing is seen to hold delivery up.")) },
            None => {},
            Some(diagnosed) => { p { (diagnosed) "; it looks once a minute" } },
        }
        (findings(&status.findings))
        h2 { "Relays" }
        (relays(status))
        @match (&status.nats, &status.nats_problem) {
            (Some(survey), _) => (streams(survey)),
            (None, Some(problem)) => { h2 { "Streams" } p.problem { (problem) } },
            (None, None) => {
                h2 { "Streams" }
                (empty("The streams and their consumers stand here when nats_url is configured."))
            },
        }
        h2 { "Inboxes" }
        (inboxes(&path, status))
        h2 { "Lanes" }
        (lanes(status))
        @if !status.enqueuing.is_empty() {
            h2 { "Open transactions that have enqueued" }
            ul { @for holder in &status.enqueuing { li { (who(holder)) } } }
        }
    }
}

/// Findings of one kind together: the first of many, and the others on demand.
fn findings(all: &[Finding]) -> Markup {
    let shown = |finding: &Finding| html! { li { strong { (finding.what) } p { (finding.remedy) } } };
    let groups = all.chunk_by(|one, other| one.kind.is_some() && one.kind == other.kind);
    html! { ul.findings { @for (number, group) in groups.enumerate() {
        @let (first, others) = group.split_at(group.len().min(FINDINGS_SHOWN_MAX));
        @for finding in first { (shown(finding)) }
        @if !others.is_empty() { li {
            details #{ "findings-" (number) } {
                summary { (others.len()) " more of this kind" }
                ul.findings { @for finding in others { (shown(finding)) } }
            }
        } }
    } } }
}

fn tiles(path: &str, status: &Status) -> Markup {
    let about = if status.backlog_is_exact { "" } else { "about " };
    let stuck = status.sagas_waiting.iter().map(|sagas| sagas.sagas).sum();
    let links: [(&str, String, i64, &str); 5] = [
        ("set aside", format!("{path}/set-aside?kind=parked"), status.parked, "warn"),
        ("dead", format!("{path}/set-aside?kind=dead"), status.dead, "bad"),
        ("delayed", format!("{path}/delayed"), status.delayed.messages, ""),
        ("replays", format!("{path}/replays"), status.replays, ""),
        ("stuck sagas", format!("{path}/sagas?state=stuck"), stuck, "bad"),
    ];
    html! {
        ul.tiles {
            @let grave = status.findings.iter().any(|finding| finding.holds_delivery);
            @let hold = i64::try_from(status.findings.len()).unwrap_or(i64::MAX);
            @if hold > 0 { li { b { (count(hold, if grave { "bad" } else { "warn" })) } a href="#findings" { "what holds delivery up" } } }
            li { b { (span(status.lag_seconds)) } span { "lag" } }
            li { b { (about) (number(status.backlog_messages)) } span { "backlog" } }
            li { b { (format!("{:.1} /s", status.rates.enqueued_per_second)) } span { "enqueued" } }
            li { b { (format!("{:.1} /s", status.rates.settled_per_second)) } span { "settled" } }
            @for (name, link, number, class) in links {
                li { b { @if number >= COUNTED_MAX { "at least " } (count(number, class)) } a href=(link) { (name) } }
            }
        }
    }
}

fn relays(status: &Status) -> Markup {
    let has_leader = status.relays.iter().any(|relays| relays.leads);
    html! {
        @if let Some(asleep) = &status.asleep {
            p.quiet { (asleep.relays) " asleep until " (time_or(Some(asleep.wakes_at), "none")) ", or until a message on " (asleep.wake_subject) }
        }
        @if status.lacks_relay() { (empty("No relay is connected. Start one with `oncebox relay`.")) }
        @else if !status.relays.is_empty() {
            div.scroll tabindex="0" { table {
                thead { tr { th { "User" } th { "Address" } th.number { "Sessions" } th { "Part" } } }
                tbody { @for relay in &status.relays { tr {
                    td { (relay.user_name.as_deref().unwrap_or("not to be seen")) }
                    td { (relay.client.as_deref().unwrap_or("this host, or not to be seen")) }
                    td.number { (relay.sessions) }
                    td { @if relay.leads { "leader" } @else if has_leader { "standby" } }
                } } }
            } }
        }
        p.quiet {
            "Milestones from " (time_or(status.oldest_milestone, "none")) " to " (time_or(status.newest_milestone, "none"))
            @if !status.sees_all_sessions { ". GRANT pg_read_all_stats to this role to see the sessions of others." }
        }
    }
}

fn streams(survey: &Survey) -> Markup {
    html! {
        h2 { "Streams" }
        p.quiet { "NATS " (survey.version) " at " (survey.url) }
        @for problem in &survey.unasked { p.problem { (problem) } }
        @if survey.streams.is_empty() { (empty("No stream takes a subject of this outbox.")) }
        @else {
            div.scroll tabindex="0" { table {
                thead { tr {
                    th { "Stream" } th { "Subjects" } th.number { "Messages" } th.number { "Filled" } th.number { "Replicas" }
                    th.number { "Consumers" } th { "Differs" }
                } }
                tbody { @for stream in &survey.streams { tr {
                    th scope="row" { (stream.name) }
                    td.long { (stream.subjects.join(", ")) }
                    td.number { (number(i64::try_from(stream.messages).unwrap_or(i64::MAX))) }
                    td.number { @match stream.filled {
                        Some(filled) => { (format!("{:.0} %", filled * 100.0)) },
                        None => span.quiet { "no limit" },
                    } }
                    td.number { (stream.replicas) @if !stream.has_leader { " " strong.bad { "no leader" } } }
                    td.number { (stream.consumers) }
                    td.long { (stream.differs.as_deref().unwrap_or_default()) }
                } } }
            } }
        }
        @if !survey.consumers.is_empty() {
            h3 { "Consumers" }
            div.scroll tabindex="0" { table {
                thead { tr {
                    th { "Consumer" } th { "Stream" } th { "Takes" } th.number { "Pending" } th.number { "Unacknowledged" }
                    th.number { "Redelivered" } th { "Last delivery" }
                } }
                tbody { @for consumer in &survey.consumers { tr {
                    th scope="row" { (consumer.name) }
                    td { (consumer.stream) }
                    td.long { @if consumer.filters.is_empty() { "all" } @else { (consumer.filters.join(", ")) } }
                    td.number { (consumer.pending) }
                    td.number { (consumer.unacknowledged) }
                    td.number { (consumer.redelivered) }
                    td {
                        @match consumer.delivered_seconds {
                            Some(seconds) => { (span(seconds)) " ago" },
                            None => span.quiet { "never" },
                        }
                        @if !consumer.is_awaited { " " (state("nobody waits")) }
                    }
                } } }
            } }
        }
    }
}

fn inboxes(path: &str, status: &Status) -> Markup {
    let Some(all) = &status.inboxes else {
        return empty("This role may not look into the inboxes.");
    };
    let link = |kind: &str, number: i64, class: &str| {
        html! { @if number > 0 { a href=(format!("{path}/set-aside?kind={kind}")) { (count(number, class)) } }
        @else { (count(0, class)) } }
    };
    html! {
        @if all.is_empty() { (empty("Inboxes of this database stand here once they have run a message.")) }
        @else {
            div.scroll tabindex="0" { table {
                thead { tr {
                    th { "Inbox" } th.number { "Failing" } th.number { "Dead letters" } th.number { "Snoozed" } th { "Last reason" }
                } }
                tbody { @for inbox in all { tr {
                    th scope="row" { (inbox.scope.as_deref().unwrap_or("the others together")) }
                    @let at_least = |number: i64| if inbox.is_capped && number > 0 { "at least " } else { "" };
                    td.number { (at_least(inbox.failing)) (link("failing", inbox.failing, "warn")) }
                    td.number { (at_least(inbox.dead)) (link("dead-letters", inbox.dead, "bad")) }
                    td.number { (at_least(inbox.snoozed)) (count(inbox.snoozed, "")) }
                    td.long { (inbox.reason.as_deref().unwrap_or_default()) }
                } } }
            } }
        }
    }
}

fn lanes(status: &Status) -> Markup {
    let holders = |lane: &LaneStatus| {
        let holding = status.locks.iter().filter(|holder| holder.lanes.contains(&lane.lane));
        holding.map(who).collect::<Vec<_>>().join("; ")
    };
    html! {
        details #lanes {
            summary { (counted(status.lanes.len(), "lane")) }
            div.scroll tabindex="0" { table {
                thead { tr { th.number { "Lane" } th.number { "Backlog" } th.number { "Lag" } th { "Settled" } th { "Locked by" } } }
                tbody { @for lane in &status.lanes { tr {
                    td.number { (lane.lane) }
                    td.number { (count(lane.backlog_messages, "")) }
                    td.number { (span(lane.lag_seconds)) }
                    td { (time(lane.settled_at)) @if lane.is_restored { " " (state("restored")) } }
                    td.long { (holders(lane)) }
                } } }
            } }
        }
        @if !status.subjects.is_empty() {
            details #subjects {
                summary { "Subjects of the newest messages" }
                div.scroll tabindex="0" { table {
                    thead { tr { th { "Subject" } th.number { "Messages" } th.number { "Largest" } } }
                    tbody { @for subject in &status.subjects { tr {
                        td.long { (subject.subject) }
                        td.number { (number(subject.messages)) }
                        td.number { (bytes(subject.bytes_max)) }
                    } } }
                } }
            }
        }
    }
}

/// A session that holds something.
fn who(holder: &Holder) -> String {
    let pid = holder.pid.map(|pid| format!("pid {pid}"));
    let texts =
        [&pid, &holder.prepared, &holder.application_name, &holder.user_name, &holder.client, &holder.state];
    let mut texts: Vec<String> = texts.into_iter().flatten().cloned().collect();
    texts.extend(holder.transaction_seconds.map(span));
    texts.join(", ")
}
