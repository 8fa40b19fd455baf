//! Findings about inboxes: dead letters, lines that wait for them, messages that fail, and those
//! that are not there in time.

use std::{cmp::Reverse, time::Duration};

use oncebox_connect::words::{counted, for_one};
use oncebox_relay::facts::{Expectation, InboxStatus};

use super::super::{
    super::{dead_letters::DeadLetters, sagas::is_refused, shell::quoted},
    Finding, LinesDue,
};

/// Inboxes with failing messages that have a finding, at most.
const INBOXES_LISTED_MAX: usize = 10;
/// Messages that are counted for each expectation, at most.
const UNHANDLED_MAX: i64 = 10_000;

/// Findings about dead letters of consumers: stored in a stream, and not done.
pub(super) fn dead_letters(group: &DeadLetters) -> Finding {
    let DeadLetters { scope, letters, reason, is_capped, .. } = group;
    let at_least = if *is_capped { "at least " } else { "" };
    let word = quoted(scope);
    let messages = counted(letters, "message");
    let first = match is_refused(scope, reason) {
        true => format!(
            "mend the participant: its saga passes over a refused answer, also if it comes again; see which: \
             `oncebox inbox dead list --scope {word}`, and help sagas that are stuck for it: `oncebox saga list --state stuck`"
        ),
        false => format!("mend the cause, then `oncebox inbox dead retry --scope {word}`"),
    };
    let waiting = group.waiting();
    Finding::new(
        format!("the inbox of {scope} has given {at_least}{messages} up{waiting}; the newest: {reason}"),
        format!("{first}; or give them up: `oncebox inbox dead discard --scope {word}`"),
    )
}

/// Findings about lines that go on after dead letters were retried or discarded.
pub(super) fn line_due(due: &LinesDue) -> Finding {
    let LinesDue { scope, messages, key } = due;
    let why = key.as_ref().map(|key| format!("; see one: `oncebox why {}`", quoted(key)));
    Finding::new(
        format!(
            "the inbox of {scope} is to run {} of its lines behind dead letters that were retried or discarded",
            counted(messages, "message")
        ),
        format!("none is needed while its consumer runs; start it if this stays{}", why.unwrap_or_default()),
    )
}

/// Findings about inboxes whose messages fail, the ten with the most.
pub(super) fn failing(inboxes: &[InboxStatus]) -> Vec<Finding> {
    let mut failing: Vec<&InboxStatus> = inboxes.iter().filter(|inbox| inbox.failing > 0).collect();
    failing.sort_by_key(|inbox| Reverse(inbox.failing));
    let findings = failing.into_iter().take(INBOXES_LISTED_MAX).map(|inbox| {
        let who = inbox.scope.as_ref().map_or("other inboxes".to_owned(), |scope| format!("the inbox of {scope}"));
        let are = for_one(inbox.failing, "is", "are");
        let reason = inbox.reason.as_deref().unwrap_or("unknown");
        let at_least = if inbox.is_capped { "at least " } else { "" };
        Finding::new(
            format!(
                "{at_least}{} of {who} failed and {are} tried again, the oldest is {:.0} s old; the newest reason: {reason}",
                counted(inbox.failing, "message"),
                inbox.failing_oldest_seconds
            ),
            "mend the cause: the consumer tries them again by itself, until its attempts are used up and they are dead",
        )
    });
    findings.collect()
}

/// Findings about messages that should have had an effect by now.
pub(super) fn unhandled(expected: &Expectation) -> Option<Finding> {
    let Expectation { subject, handled_by, unhandled, oldest_key, .. } = expected;
    let key = oldest_key.as_deref().filter(|_| *unhandled > 0)?;
    let at_least = if *unhandled >= UNHANDLED_MAX { "at least " } else { "" };
    let within = Duration::from_secs_f64(expected.within_seconds);
    Some(Finding::new(
        format!(
            "{at_least}{} to {subject} {} not in the inbox of {handled_by} within {}; the oldest, {key}, is {:.0} s old",
            counted(unhandled, "message"),
            for_one(unhandled, "was", "were"),
            humantime::format_duration(within),
            expected.oldest_seconds
        ),
        format!(
            "start that consumer, or see what holds it: `oncebox why {}`; all of them: `oncebox expect unhandled \
             --handled-by {}`",
            quoted(key),
            quoted(handled_by)
        ),
    ))
}
