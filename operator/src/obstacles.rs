//! Obstacles to delivery in NATS right now: the part that `oncebox status` shares with `oncebox
//! doctor`.

use std::collections::BTreeSet;

use oncebox_connect::{
    config::{Config, Policy},
    words::{counted, for_one},
};

use super::shell::quoted;
use crate::Severity::Problem;
use crate::{
    diagnosis::Diagnosis,
    status::RecentSubject,
    survey::{StreamStatus, Survey},
};

/// The bytes of a stored message that the outbox does not count: subject, headers of the relay, the
/// record.
const OVERHEAD_BYTES: u64 = 300;

/// The expectations of a relay with this configuration towards NATS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// The one stream that messages are for, if that is configured.
    pub(crate) stream: Option<String>,
    /// Declared streams that a relay creates when they are missing.
    pub(crate) created: Vec<String>,
    /// The others, with their subjects.
    pub(crate) verified: Vec<(String, Vec<String>)>,
}

impl Expected {
    pub(crate) fn new(config: &Config) -> Self {
        let mut expected = Self { stream: config.tuning.limits.expected_stream.clone(), ..Self::default() };
        for stream in &config.streams {
            let name = stream.name.clone();
            match stream.policy {
                Policy::Create => expected.created.push(name),
                _ => expected.verified.push((name, stream.config.subjects.clone())),
            }
        }
        expected
    }
}

/// The obstacles in NATS.
pub(crate) fn obstacles(expected: &Expected, survey: &Survey, subjects: &[RecentSubject]) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    found.extend(unusable(survey));
    found.extend(survey.missing_streams.iter().filter_map(|name| missing(expected, name, survey, subjects)));
    for subject in &survey.subjects_without_stream {
        found.push(no_stream(subject, subjects, &survey.streams));
    }
    for stream in &survey.streams {
        found.extend(closed(stream));
        found.extend(another_stream(expected, stream, subjects));
        found.extend(full(stream, subjects));
    }
    found
}

fn unusable(survey: &Survey) -> Option<Diagnosis> {
    survey.unusable.as_ref().map(|problem| {
        // A cluster without a leader is silent.
        let first = match problem.contains("timed out") {
            true => "bring back the servers of the cluster: a majority of them makes a leader. If all run, ",
            false => "",
        };
        Problem.of(
            "jetstream",
            format!("JetStream cannot be used: {problem}"),
            "no message can be stored: all are set aside, or wait in the outbox",
            format!(
                "{first}enable JetStream on the server (`jetstream {{}}`) and for the account, and let the relay's user \
                 subscribe to its inbox (see --nats-inbox-prefix)"
            ),
        )
    })
}

fn missing(
    expected: &Expected,
    name: &str,
    survey: &Survey,
    subjects: &[RecentSubject],
) -> Option<Diagnosis> {
    if expected.created.iter().any(|made| made == name) {
        return None;
    }
    Some(if expected.stream.as_deref() == Some(name) {
        Problem.of(
            "stream-missing",
            format!("the stream {name} is not there, which --expected-stream demands"),
            "every message is set aside",
            expecting(name, survey, subjects),
        )
    } else {
        let declared = expected.verified.iter().find(|(declared, _)| declared == name);
        let subjects = declared.map(|(_, subjects)| subjects.join(",")).unwrap_or_default();
        Problem.of(
            "stream-missing",
            format!("the declared stream {name} is not there, and its policy is verify"),
            "the relay does not start",
            format!(
                "set its policy to create, or: nats stream add {} --subjects {} --discard new --dupe-window 10m --defaults",
                quoted(name),
                quoted(&subjects)
            ),
        )
    })
}

/// A command that makes the stream, for the subjects that no other has.
fn expecting(name: &str, survey: &Survey, subjects: &[RecentSubject]) -> String {
    let is_free = |subject: &&str| !survey.streams.iter().any(|stream| stream.takes(subject));
    let recent = subjects.iter().map(|recent| recent.subject.as_str());
    let all: BTreeSet<String> = recent.filter(is_free).map(siblings).collect();
    let make = match all.is_empty() {
        true => format!("make the stream {name}, with the subjects of your messages"),
        false => {
            let all = Vec::from_iter(all).join(",");
            format!("oncebox relay --stream {}", quoted(&format!("{name}={all}")))
        }
    };
    format!("{make}, or start the relays with another --expected-stream or without it")
}

/// All subjects that begin with the same word.
fn siblings(subject: &str) -> String {
    subject.split_once('.').map_or(subject.to_owned(), |(first, _)| format!("{first}.>"))
}

fn no_stream(subject: &str, subjects: &[RecentSubject], streams: &[StreamStatus]) -> Diagnosis {
    let recent = subjects.iter().find(|recent| recent.subject == subject);
    let count = recent.map_or(1, |recent| recent.messages);
    Problem.of(
        "subject-coverage",
        format!(
            "no stream takes the subject {subject}, which {count} of the newest messages {}",
            for_one(count, "has", "have")
        ),
        "they are set aside, tried again for some hours (--attempts-max), and then dead",
        taking(subject, streams),
    )
}

/// A command after which a stream takes the subject: a stream that is named after the first word of
/// the subject, for all subjects that begin with it.
fn taking(subject: &str, streams: &[StreamStatus]) -> String {
    let all = siblings(subject);
    let name = all.trim_end_matches(".>").to_uppercase();
    if let Some(stream) = streams.iter().find(|stream| stream.name == name) {
        let subjects = [stream.subjects.join(","), subject.to_owned()].join(",");
        return format!("nats stream edit {name} --subjects {} --force", quoted(&subjects));
    }
    format!(
        "oncebox relay --stream {}, or: nats stream add {} --subjects {} --discard new --dupe-window 10m --defaults",
        quoted(&format!("{name}={all}")),
        quoted(&name),
        quoted(&all)
    )
}

fn another_stream(
    expected: &Expected,
    stream: &StreamStatus,
    subjects: &[RecentSubject],
) -> Option<Diagnosis> {
    let expected = expected.stream.as_ref().filter(|expected| **expected != stream.name)?;
    let taken = subjects.iter().find(|subject| stream.takes(&subject.subject))?;
    Some(Problem.of(
        "expected-stream",
        format!(
            "stream {} takes the subject {}, but --expected-stream is {expected}",
            stream.name, taken.subject
        ),
        "JetStream refuses these messages: they are set aside, and dead in the end",
        format!(
            "move the subject to {expected}, or start the relays with another --expected-stream or without it"
        ),
    ))
}

fn closed(stream: &StreamStatus) -> Option<Diagnosis> {
    let (what, consequence) = if stream.is_sealed {
        ("is sealed", "it takes no message")
    } else if stream.is_silent {
        (
            "acknowledges nothing (no_ack)",
            "nothing is known to be stored: messages are set aside, asked about for some hours (--attempts-max), and then \
             dead, though the stream may have them",
        )
    } else if !stream.has_leader {
        ("has no leader", "it takes no message until its servers agree on one")
    } else {
        return None;
    };
    let remedy = if stream.is_sealed {
        "give its subjects to another stream: a seal cannot be undone"
    } else if stream.is_silent {
        "give its subjects to a stream that acknowledges"
    } else {
        "bring back the servers that hold it: a majority of them makes a leader"
    };
    Some(Problem.of("stream-closed", format!("stream {} {what}", stream.name), consequence, remedy))
}

fn full(stream: &StreamStatus, subjects: &[RecentSubject]) -> Option<Diagnosis> {
    is_full(stream, subjects).then(|| {
        let limit = |count: u64, most: Option<u64>| most.map_or(count.to_string(), |most| format!("{count} of {most}"));
        Problem.of(
            "stream-full",
            format!(
                "stream {} is full: {}, {}",
                stream.name,
                counted(limit(stream.messages, stream.messages_max), "message"),
                counted(limit(stream.bytes, stream.bytes_max), "byte")
            ),
            "it refuses messages; they wait in the outbox and go on by themselves once there is room",
            format!(
                "widen its limit (`nats stream edit {} {} --force`), or see why its messages are not consumed and deleted",
                stream.name,
                wider(stream, has_no_messages_left(stream))
            ),
        )
    })
}

/// The flag that doubles the limit of its messages, or that of its bytes.
pub(crate) fn wider(stream: &StreamStatus, of_messages: bool) -> String {
    let doubled = |most: Option<u64>| most.unwrap_or_default().saturating_mul(2);
    match of_messages {
        true => format!("--max-msgs {}", doubled(stream.messages_max)),
        false => format!("--max-bytes {}", doubled(stream.bytes_max)),
    }
}

/// Whether a stream that refuses new messages has no room for one like the largest of late.
pub(crate) fn is_full(stream: &StreamStatus, subjects: &[RecentSubject]) -> bool {
    let taken = subjects.iter().filter(|subject| stream.takes(&subject.subject));
    let largest = taken.map(|subject| subject.bytes_max.unsigned_abs()).max().unwrap_or(0);
    let needed = stream.bytes.saturating_add(largest).saturating_add(OVERHEAD_BYTES);
    let no_bytes = stream.bytes_max.is_some_and(|most| needed > most);
    stream.discards_new && (no_bytes || has_no_messages_left(stream))
}

fn has_no_messages_left(stream: &StreamStatus) -> bool {
    stream.messages_max.is_some_and(|most| stream.messages >= most)
}
