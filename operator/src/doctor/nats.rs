//! Conclusions from the facts about the NATS server, and the subjects that it takes.

use super::Severity::{Note, Problem, Warning};
use super::{Diagnosis, FILLED, INLINE_BYTES_MAX, Plan};
use crate::{status::RecentSubject, survey::Survey};

const OLDEST: [u64; 3] = [2, 9, 10];

pub(super) fn check(plan: &Plan, survey: &Survey, subjects: &[RecentSubject], found: &mut Vec<Diagnosis>) {
    found.extend(version(survey));
    found.extend(max_payload(plan, survey, subjects));
    found.extend(account_filled(survey));
    found.extend(survey.unlimited_streams.iter().map(|name| {
        Problem.of(
            "account",
            format!("the account takes no stream without max_bytes, and the declaration of {name} has none"),
            "the relay cannot create it, and messages for it are set aside",
            format!("give {name} a max_bytes in the relay's configuration"),
        )
    }));
    let made = survey.missing_streams.iter().filter(|name| plan.expected.created.contains(name));
    found.extend(made.map(|name| {
        Note.of(
            "stream-missing",
            format!("the declared stream {name} is not there"),
            "a relay creates it when it starts, and again within a minute when it is deleted; until then messages for it are \
             set aside",
            "start a relay; if one runs and the stream stays missing, see its log: perhaps its NATS user may not \
             publish to $JS.API.STREAM.CREATE.*",
        )
    }));
    found.extend(survey.may_not_find_copies.then(|| {
        Warning.of(
            "copy-unasked",
            "NATS does not let the relay's user publish or subscribe to _ONCEBOX.home.>",
            "relays cannot tell a copy of the database's files from the original, and one that is restored elsewhere waits for \
             `oncebox adopt`",
            "let the relay's NATS user publish and subscribe to _ONCEBOX.home.>; messages flow without it",
        )
    }));
    found.extend(survey.unasked.iter().map(|problem| {
        Warning.of(
            "unasked",
            format!("NATS could not be asked: {problem}"),
            "this part was not checked",
            "to check it let the relay's NATS user publish to $JS.API.INFO, $JS.API.STREAM.NAMES, \
             $JS.API.STREAM.LIST, $JS.API.STREAM.INFO.* and $JS.API.CONSUMER.LIST.*; messages flow without it",
        )
    }));
}

fn version(survey: &Survey) -> Option<Diagnosis> {
    let core = survey.version.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<u64> = core.split('.').filter_map(|part| part.parse().ok()).collect();
    (numbers[..] < OLDEST[..]).then(|| {
        Problem.of(
            "nats-version",
            format!("nats-server is {}; 2.9.10 and newer are supported", survey.version),
            "what it does with duplicates, limits and crashes is not what Oncebox was tested with",
            "use a newer nats-server",
        )
    })
}

/// Streams refuse messages as if they were full.
fn account_filled(survey: &Survey) -> Option<Diagnosis> {
    let filled = survey.account_filled.filter(|filled| *filled >= FILLED)?;
    Some(Warning.of(
        "account",
        format!("the account has used {:.0} % of the disk that it may use", (filled * 100.0).floor()),
        "when all is used its streams refuse messages: they wait in the outbox until there is room",
        "raise the account's limit, or shorten the max_age of its streams; `nats account info` shows both",
    ))
}

/// Headers count too. The outbox may get messages as large as those that it holds.
fn max_payload(plan: &Plan, survey: &Survey, subjects: &[RecentSubject]) -> Option<Diagnosis> {
    let limit = survey.max_payload_bytes;
    if plan.has_bucket || limit >= INLINE_BYTES_MAX {
        return None;
    }
    let consequence = "a larger message is dead at once, and holds back its ordering key";
    let remedy = "have the relay put large payloads into a bucket with --object-store, above --large-payload-bytes; or raise \
                  max_payload of nats-server and of the account";
    let largest = subjects.iter().max_by_key(|subject| subject.bytes_max);
    if let Some(largest) = largest.filter(|largest| largest.bytes_max.unsigned_abs() > limit) {
        let what = format!(
            "messages to {} have up to {} bytes, max_payload is {limit}",
            largest.subject, largest.bytes_max
        );
        return Some(Problem.of("max-payload", what, consequence, remedy));
    }
    let what =
        format!("without a bucket a payload may have up to {INLINE_BYTES_MAX} bytes, max_payload is {limit}");
    Some(Note.of("max-payload", what, consequence, remedy))
}
