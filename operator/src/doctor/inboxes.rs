//! Whether inboxes keep their keys for as long as a message can come again.

use super::InboxFacts;
use super::Severity::{Note, Problem, Warning};
use super::{Diagnosis, Plan, time};
use crate::survey::StreamStatus;

/// The danger of copies for inboxes that have forgotten a message's key.
const CONSEQUENCE: &str = "a message that comes again after that (a new or a recreated consumer, a retry of the producer, \
                           a saga's step, `oncebox outbox replay`) is handled a second time";

pub(super) fn check(
    plan: &Plan,
    streams: &[StreamStatus],
    inboxes: &[InboxFacts],
    found: &mut Vec<Diagnosis>,
) {
    found.extend(inboxes.iter().filter_map(|inbox| retention(plan, streams, inbox)));
}

/// Computed: for how long a message can come again; a stream without a limit can give it out for
/// ever.
fn retention(plan: &Plan, streams: &[StreamStatus], inbox: &InboxFacts) -> Option<Diagnosis> {
    let kept = inbox.retention_seconds;
    let relay = plan.retention.map(|retention| retention.as_secs_f64());
    let windows = streams.iter().map(|stream| stream.duplicate_window_seconds);
    let soon = windows.fold(plan.resend.as_secs_f64(), f64::max);
    let mut longer = Vec::new();
    let mut needed = Some(soon);
    let mut add = |limit: Option<f64>, name: String| {
        if limit.is_none_or(|limit| kept < limit) {
            let limit_text = limit.map_or("for ever".to_owned(), |limit| format!("for {}", time(limit)));
            longer.push(format!("{name} {limit_text}"));
        }
        needed = needed.zip(limit).map(|(needed, limit)| needed.max(limit));
    };
    for stream in streams {
        let limit = stream.age_max_seconds.map(|age| age + stream.duplicate_window_seconds);
        add(limit, format!("stream {} keeps messages", stream.name));
    }
    add(relay, "the outbox keeps what can be replayed".to_owned());
    if let Some(lifetime) = plan.saga_lifetime {
        add(Some(lifetime.as_secs_f64()), "a saga goes on".to_owned());
    }
    if longer.is_empty() && kept >= soon {
        return None;
    }
    let what = format!("the inbox of {} keeps keys for {}", inbox.scope, time(kept));
    let what = if longer.is_empty() { what } else { format!("{what}; {}", longer.join(", ")) };
    let remedy = match needed {
        Some(needed) => format!("keep keys for {} at least: set the retention of its inbox", time(needed)),
        None => "keep keys for as long as anybody may have its messages delivered again, or limit max_age of the stream \
                 and --retention of the relay"
            .to_owned(),
    };
    Some(if kept < soon {
        let what = format!("{what}; the relay itself may send a message again for {}", time(soon));
        Problem.of("inbox-retention", what, CONSEQUENCE, remedy)
    } else if needed.is_some() {
        Warning.of("inbox-retention", what, CONSEQUENCE, remedy)
    } else {
        Note.of("inbox-retention", what, CONSEQUENCE, remedy)
    })
}
