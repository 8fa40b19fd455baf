//! The times of a saga's steps as horizontal bars, on one scale: from sent to answered, and beneath
//! it the compensation. The table of the steps has the same times as text.

use std::time::Duration;

use maud::{Markup, html};
use oncebox_operator::{SagaProgress, SagaStep, Time};

use crate::html::words::{span, state, time};

/// One bar, with the times of its ends.
struct Bar<'a> {
    name: String,
    state: &'a str,
    sent: Time,
    /// `None` while the answer is awaited.
    answered: Option<Time>,
    class: &'static str,
}

pub(super) fn draw(progress: &SagaProgress) -> Markup {
    let saga = &progress.saga;
    let now = Time(*saga.created_at + Duration::from_millis(saga.age_ms.try_into().unwrap_or(0)));
    let last = saga.finished_at.unwrap_or(now);
    let bars: Vec<Bar<'_>> = progress.steps.iter().flat_map(|step| bars_of(step, saga.changed_at)).collect();
    if bars.is_empty() {
        return html! { p.quiet { "No command was sent." } };
    }
    let ends = bars.iter().flat_map(|bar| [Some(bar.sent), bar.answered]).flatten();
    let (first, last) = ends.fold((saga.created_at, last), |(first, last), at| (first.min(at), last.max(at)));
    let whole = passed(first, last).as_secs_f64().max(0.001);
    html! {
        div.bars {
            @for bar in &bars {
                @let (from, to) = (passed(first, bar.sent), passed(first, bar.answered.unwrap_or(last)));
                @let [x, width] = [from, to.saturating_sub(from)].map(|time| 100.0 * time.as_secs_f64() / whole);
                div.bar {
                    span { (bar.name) " " (state(bar.state)) }
                    svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" {
                        rect.(bar.class) x=(format!("{x:.2}")) y="1" width=(format!("{:.2}", width.max(0.4))) height="8" {}
                    }
                    span.number {
                        (span(to.saturating_sub(from).as_secs_f64()))
                        @if bar.answered.is_none() { span.quiet { " so far" } }
                    }
                }
            }
            p.scale { (time(first)) " " span { (span(whole)) } " " (time(last)) }
        }
    }
}

fn passed(from: Time, to: Time) -> Duration {
    to.duration_since(*from).unwrap_or_default()
}

/// A step that failed without an answer ended with the change of its saga at the latest.
fn bars_of(step: &SagaStep, changed: Time) -> Vec<Bar<'_>> {
    let undo = step.undo_sent_at.map(|sent| Bar {
        name: format!("{}:undo", step.step),
        state: &step.state,
        sent,
        answered: step.undone_at.or((step.state == "undo-failed").then_some(changed)),
        class: match step.state.as_str() {
            "undone" => "warn",
            "undo-failed" => "bad",
            _ => "calm",
        },
    });
    let (is_open, is_failed) = (step.state == "sent", ["failed", "rejected"].contains(&step.state.as_str()));
    let ended = step.answered_at.or(step.undo_sent_at).or((!is_open).then_some(changed));
    let action = Bar {
        name: step.step.clone(),
        state: match (&undo, step.answered_at) {
            (None, _) => &step.state,
            (Some(_), Some(_)) => "done",
            (Some(_), None) => "failed",
        },
        sent: step.sent_at,
        answered: ended.filter(|_| !is_open),
        class: match (is_open, is_failed || step.answered_at.is_none()) {
            (true, _) => "calm",
            (false, true) => "bad",
            (false, false) => "good",
        },
    };
    std::iter::once(action).chain(undo).collect()
}
