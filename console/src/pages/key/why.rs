//! Why the messages of a key are not there yet: the first thing that holds each, and the remedy.

use maud::{Markup, html};
use oncebox_operator::{Explained, Outcome, Passed, Remedy};

use crate::{
    ask::Ask,
    html::{
        layout::key_link,
        words::{state, time},
    },
    pages::list::action,
};

/// Messages that nothing holds and that stand open.
const WELL_SHOWN_MAX: usize = 3;

pub(super) fn title(answers: &[Explained]) -> &'static str {
    let is_done = |answer: &Explained| answer.outcome == Outcome::Done;
    if answers.iter().all(is_done) { "It is there" } else { "Why it is not there yet" }
}

pub(super) fn show(ask: &Ask, answers: &[Explained]) -> Markup {
    let is_well = |answer: &&Explained| matches!(answer.outcome, Outcome::Done | Outcome::OnItsWay);
    let (well, held): (Vec<&Explained>, Vec<&Explained>) = answers.iter().partition(is_well);
    let (first, others) = well.split_at(well.len().min(WELL_SHOWN_MAX));
    html! {
        ul.findings {
            @for answer in held.into_iter().chain(first.iter().copied()) { (one(ask, answer)) }
            @if !others.is_empty() { li.note {
                details #why-others {
                    summary { (others.len()) " more that nothing holds" }
                    ul.findings { @for answer in others { (one(ask, answer)) } }
                }
            } }
        }
    }
}

/// The badge of an answer, and the class of its frame.
fn words(outcome: Outcome) -> (&'static str, &'static str) {
    match outcome {
        Outcome::Done => ("done", "well"),
        Outcome::OnItsWay => ("on its way", "note"),
        Outcome::Held => ("held", "bad"),
        Outcome::GivenUp => ("given up", "warning"),
        _ => ("not known", "warning"),
    }
}

fn one(ask: &Ask, answer: &Explained) -> Markup {
    let (word, class) = words(answer.outcome);
    html! {
        li.(class) {
            (state(word)) " " (key_link(&answer.key))
            @if let Some(database) = &answer.database { " in " a href=(format!("/db/{database}")) { (database) } }
            p { strong { (answer.station) } ": " (answer.what) }
            @if let Some(behind) = &answer.behind { p { "Ahead of it: " (key_link(behind)) } }
            @if let Some(remedy) = &answer.remedy { (act(ask, remedy)) }
            @if !answer.passed.is_empty() { (passed(&answer.passed)) }
        }
    }
}

fn act(ask: &Ask, remedy: &Remedy) -> Markup {
    let fields: Vec<(&str, &str)> =
        remedy.action.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let word = fields.iter().find(|(name, _)| *name == "action").map_or("", |(_, value)| *value);
    html! {
        p { "Remedy: " (remedy.what) }
        @if let Some(command) = &remedy.command { p.command { code { (command) } } }
        @if let (Some(database), false) = (&remedy.database, fields.is_empty()) {
            p { (action(ask, database, word, &fields)) }
        }
    }
}

fn passed(stations: &[Passed]) -> Markup {
    html! {
        p.quiet {
            "Passed: "
            @for (number, Passed { station, what, at, .. }) in stations.iter().enumerate() {
                @if number > 0 { "; " }
                (station) " (" (what) @if let Some(at) = at { ", " (time(*at)) } ")"
            }
        }
    }
}
