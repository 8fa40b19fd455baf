//! Obstacles after the streams: consumers that get no messages, or acknowledge none. Messages reach
//! their stream all the same, so `oncebox doctor` only warns of them.

use oncebox_connect::words::counted;
use oncebox_relay::facts::covers;

use crate::Severity::Warning;
use crate::{
    diagnosis::Diagnosis,
    shell::quoted,
    status::RecentSubject,
    survey::{ConsumerStatus, StreamStatus, Survey},
};

/// Longer silence than this is no pause between two messages.
const QUIET_SECONDS: f64 = 5.0;
/// Obstacles that are listed, at most; there may be hundreds of consumers.
const LISTED_MAX: usize = 20;
/// Subjects of one obstacle that are named, at most.
const NAMED_MAX: usize = 5;

/// The obstacles after the streams of the outbox.
pub(crate) fn consumption(survey: &Survey, subjects: &[RecentSubject]) -> Vec<Diagnosis> {
    let streams = survey.streams.iter().filter_map(|stream| {
        let of_stream = survey.consumers.iter().filter(|consumer| consumer.stream == stream.name);
        unconsumed(stream).or_else(|| uncovered(stream, &Vec::from_iter(of_stream), subjects))
    });
    let consumers = survey.consumers.iter().filter_map(|consumer| of_consumer(survey, consumer));
    streams.chain(consumers).take(LISTED_MAX).collect()
}

/// The obstacle between a consumer and its messages, if there is one.
pub(crate) fn of_consumer(survey: &Survey, consumer: &ConsumerStatus) -> Option<Diagnosis> {
    let stream = survey.streams.iter().find(|stream| stream.name == consumer.stream);
    stream
        .and_then(|stream| without_match(stream, consumer))
        .or_else(|| paused(consumer))
        .or_else(|| full(consumer))
        .or_else(|| forsaken(consumer, consumer.pending > 0))
}

fn unconsumed(stream: &StreamStatus) -> Option<Diagnosis> {
    let name = &stream.name;
    if stream.consumers > 0 || stream.copied_by.is_some() {
        return None;
    }
    if stream.drops_unconsumed {
        return Some(Warning.of(
            "stream-unconsumed",
            format!("stream {name} keeps messages for its consumers only (retention interest), and has none"),
            "each message counts as delivered and is dropped at once",
            format!(
                "start the services that consume it, then have what was dropped sent again: {}",
                replay(stream)
            ),
        ));
    }
    (stream.messages > 0).then(|| {
        Warning.of(
            "stream-unconsumed",
            format!("nobody consumes stream {name}, which has {}", counted(stream.messages, "message")),
            "they reach no service",
            "start the services that consume it; none is needed where a stream of another account copies it",
        )
    })
}

/// A stream by interest stores no message that none of its consumers takes, and acknowledges it all
/// the same; a work queue keeps it for ever.
fn uncovered(
    stream: &StreamStatus,
    consumers: &[&ConsumerStatus],
    subjects: &[RecentSubject],
) -> Option<Diagnosis> {
    // Not all consumers are listed where there are many, or where other streams copy this one. A
    // work queue may be filled before its first consumer is there.
    if !stream.deletes_acknowledged
        || stream.copies_others
        || consumers.len() != stream.consumers
        || consumers.is_empty()
    {
        return None;
    }
    let is_taken = |subject: &str| {
        let takes = |filter: &String| covers(filter, subject);
        consumers.iter().any(|consumer| consumer.filters.is_empty() || consumer.filters.iter().any(takes))
    };
    let subjects = subjects.iter().map(|recent| recent.subject.as_str());
    let lost: Vec<&str> = subjects.filter(|subject| stream.takes(subject) && !is_taken(subject)).collect();
    let (first, count) = (lost.first()?, lost.len());
    let mut named = lost[..count.min(NAMED_MAX)].join(", ");
    if count > NAMED_MAX {
        named.push_str(&format!(" and {} more", count - NAMED_MAX));
    }
    if !stream.drops_unconsumed {
        return Some(Warning.of(
            "subject-unconsumed",
            format!("no consumer of the work queue {} takes {named}", stream.name),
            "these messages reach no service and stay, until the stream is full",
            "have a consumer take the subject; if you have moved one away from it, those that it had not acknowledged come to \
             it all the same",
        ));
    }
    Some(Warning.of(
        "subject-unconsumed",
        format!(
            "stream {} keeps messages for its consumers only (retention interest), and no consumer takes {named}",
            stream.name
        ),
        "a message with such a subject counts as delivered and is dropped at once",
        format!(
            "have a consumer take it, or give the stream retention limits, then have what was dropped sent again: \
             `oncebox outbox replay --subject {}`",
            quoted(first)
        ),
    ))
}

fn without_match(stream: &StreamStatus, consumer: &ConsumerStatus) -> Option<Diagnosis> {
    let matches = |filter: &String| stream.subjects.iter().any(|subject| overlap(filter, subject));
    // Its messages may have subjects that its own list does not name.
    if stream.copies_others || consumer.filters.is_empty() || consumer.filters.iter().any(matches) {
        return None;
    }
    let filters: Vec<String> =
        stream.subjects.iter().map(|subject| format!("--filter {}", quoted(subject))).collect();
    let subjects = [&stream.subjects[..], &consumer.filters[..]].concat().join(",");
    let remedy = format!(
        "have it take what the stream has: `nats consumer edit {} {} --force`; or the stream what it takes: \
         `nats stream edit {} --subjects {} --force`",
        arguments(consumer),
        filters.join(" "),
        quoted(&stream.name),
        quoted(&subjects)
    );
    Some(Warning.of(
        "consumer-filter",
        format!(
            "{} takes {}, and no subject of its stream matches that: {}",
            name(consumer),
            consumer.filters.join(", "),
            stream.subjects.join(", ")
        ),
        "it never gets a message",
        remedy,
    ))
}

fn paused(consumer: &ConsumerStatus) -> Option<Diagnosis> {
    let until = consumer.paused_until?;
    let deleted = consumer.inactive_max_seconds.filter(|seconds| *seconds < consumer.pause_seconds).map(|seconds| {
        format!(", and JetStream deletes it with its place once no service has pulled for {seconds:.0} s (inactive_threshold)")
    });
    Some(Warning.of(
        "consumer-paused",
        format!("{} is paused until {}", name(consumer), humantime::format_rfc3339_seconds(*until)),
        waiting(consumer) + &deleted.unwrap_or_default(),
        format!("`nats consumer resume {}`", arguments(consumer)),
    ))
}

fn full(consumer: &ConsumerStatus) -> Option<Diagnosis> {
    let most = consumer.unacknowledged_max.filter(|most| consumer.unacknowledged >= *most)?;
    let quiet = consumer.acknowledged_seconds.unwrap_or(consumer.created_seconds);
    (quiet >= QUIET_SECONDS).then(|| {
        Warning.of(
            "consumer-full",
            format!(
                "{} has {} unacknowledged, all that its max_ack_pending allows, and none was acknowledged for {quiet:.0} s",
                name(consumer),
                counted(most, "message")
            ),
            waiting(consumer),
            "see why its service acknowledges nothing: handlers that hang or fail, or a process that died; where they \
             only take long, raise max_ack_pending",
        )
    })
}

/// A consumer from which no client pulls the messages that it has to deliver again. That its
/// handlers are at work for longer than `ack_wait` cannot be told from that by the consumer alone.
pub(crate) fn left_alone(consumer: &ConsumerStatus) -> Option<Diagnosis> {
    forsaken(consumer, consumer.unacknowledged > 0)
}

/// While messages are unacknowledged for less than `ack_wait`, their handlers may be at work.
fn forsaken(consumer: &ConsumerStatus, has_work: bool) -> Option<Diagnosis> {
    let work = if consumer.unacknowledged > 0 { consumer.ack_wait_seconds } else { 0.0 };
    let is_quiet = consumer.delivered_seconds.is_none_or(|seconds| seconds >= QUIET_SECONDS.max(work));
    (has_work && !consumer.is_awaited && is_quiet).then(|| {
        Warning.of(
            "consumer-forsaken",
            format!("nobody pulls from {}", name(consumer)),
            waiting(consumer),
            format!(
                "start its service, or see why it does not pull (its log; all its handlers may be busy); if nobody needs the consumer any more: `nats consumer rm {}`",
                arguments(consumer)
            ),
        )
    })
}

fn name(consumer: &ConsumerStatus) -> String {
    format!("the consumer {} of stream {}", consumer.name, consumer.stream)
}

fn waiting(consumer: &ConsumerStatus) -> String {
    match (consumer.pending, consumer.unacknowledged) {
        (0, left) => format!("it gets no message: {left} that it had are to be delivered again"),
        (pending, _) => format!("it gets no message: {pending} wait in the stream"),
    }
}

fn arguments(consumer: &ConsumerStatus) -> String {
    format!("{} {}", quoted(&consumer.stream), quoted(&consumer.name))
}

/// Commands that send the messages of a stream again.
pub(crate) fn replay(stream: &StreamStatus) -> String {
    let commands = stream
        .subjects
        .iter()
        .map(|subject| format!("`oncebox outbox replay --subject {}`", quoted(subject)));
    Vec::from_iter(commands).join(", ")
}

/// Whether any subject is taken by both patterns.
fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some("*"), Some(_)) | (Some(_), Some("*")) => {}
            (Some(one), Some(other)) if one == other => {}
            (_, _) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_overlap_when_a_subject_fits_both() {
        for (one, other, expected) in [
            ("orders.placed", "orders.placed", true),
            ("orders.placed", "orders.paid", false),
            ("orders.*", "*.placed", true),
            ("orders.*", "orders.placed.eu", false),
            ("orders.>", "*.placed.eu", true),
            ("orders.>", "orders", false),
            (">", "orders", true),
            ("order.>", "orders.>", false),
        ] {
            assert_eq!(overlap(one, other), expected, "{one} {other}");
            assert_eq!(overlap(other, one), expected, "{other} {one}");
        }
    }

    fn check(change: impl FnOnce(&mut StreamStatus, &mut ConsumerStatus), expected: Option<&str>) {
        let mut stream = StreamStatus {
            name: "S".into(),
            subjects: vec!["a.>".into()],
            consumers: 1,
            ..StreamStatus::default()
        };
        let mut consumer = ConsumerStatus {
            stream: "S".into(),
            name: "c".into(),
            pending: 9,
            ack_wait_seconds: 30.0,
            unacknowledged_max: Some(5),
            created_seconds: 3600.0,
            delivered_seconds: Some(1.0),
            acknowledged_seconds: Some(1.0),
            is_awaited: true,
            ..ConsumerStatus::default()
        };
        change(&mut stream, &mut consumer);
        let survey = Survey { streams: vec![stream], consumers: vec![consumer], ..Survey::default() };
        let found: Vec<&str> = consumption(&survey, &[]).iter().map(|found| found.check).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{survey:?}");
    }

    #[test]
    fn a_consumer_at_work_is_no_obstacle_and_one_that_stands_still_is() {
        check(|_, _| {}, None);
        check(|_, consumer| consumer.unacknowledged = 5, None);
        let full = |quiet, created| {
            move |_: &mut StreamStatus, consumer: &mut ConsumerStatus| {
                consumer.unacknowledged = 5;
                consumer.acknowledged_seconds = quiet;
                consumer.created_seconds = created;
            }
        };
        check(full(Some(6.0), 60.0), Some("consumer-full"));
        check(full(None, 6.0), Some("consumer-full"));
        check(full(None, 1.0), None);
        let forsaken = |unacknowledged, delivered| {
            move |_: &mut StreamStatus, consumer: &mut ConsumerStatus| {
                consumer.is_awaited = false;
                consumer.unacknowledged = unacknowledged;
                consumer.delivered_seconds = delivered;
            }
        };
        check(forsaken(0, Some(1.0)), None);
        check(forsaken(0, Some(6.0)), Some("consumer-forsaken"));
        check(forsaken(1, Some(6.0)), None);
        check(forsaken(1, Some(31.0)), Some("consumer-forsaken"));
        check(forsaken(0, None), Some("consumer-forsaken"));
        check(|_, consumer| consumer.filters = vec!["b".into(), "a.b".into()], None);
        check(|_, consumer| consumer.filters = vec!["b".into(), "c".into()], Some("consumer-filter"));
        let copied = |stream: &mut StreamStatus, consumer: &mut ConsumerStatus| {
            stream.copies_others = true;
            consumer.filters = vec!["b".into()];
        };
        check(copied, None);
    }

    #[test]
    fn a_stream_without_consumers_is_an_obstacle_once_it_has_messages_or_drops_them() {
        let empty = |messages, drops_unconsumed| {
            let stream =
                StreamStatus { name: "S".into(), messages, drops_unconsumed, ..StreamStatus::default() };
            consumption(&Survey { streams: vec![stream], ..Survey::default() }, &[]).len()
        };
        assert_eq!((empty(0, false), empty(1, false), empty(0, true)), (0, 1, 1));
    }

    #[test]
    fn a_subject_that_no_consumer_of_an_interest_stream_takes_is_named() {
        let found = |(deletes_acknowledged, drops_unconsumed), filters: &[&str]| {
            let stream = StreamStatus {
                name: "S".into(),
                subjects: vec!["orders.>".into()],
                deletes_acknowledged,
                drops_unconsumed,
                consumers: 1,
                ..StreamStatus::default()
            };
            let filters = filters.iter().map(ToString::to_string).collect();
            let is_awaited = true;
            let consumer =
                ConsumerStatus { stream: "S".into(), filters, is_awaited, ..ConsumerStatus::default() };
            let survey = Survey { streams: vec![stream], consumers: vec![consumer], ..Survey::default() };
            let recent = ["orders.placed", "orders.paid", "mail.sent"];
            let recent =
                recent.map(|subject| RecentSubject { subject: subject.into(), messages: 1, bytes_max: 9 });
            consumption(&survey, &recent).into_iter().map(|found| found.what).collect::<Vec<_>>()
        };
        let (limits, queue, interest) = ((false, false), (true, false), (true, true));
        let only = found(interest, &["orders.placed"]);
        assert!(only.len() == 1 && only[0].ends_with("no consumer takes orders.paid"), "{only:?}");
        assert_eq!(found(queue, &["orders.placed"]), ["no consumer of the work queue S takes orders.paid"]);
        assert_eq!(found(limits, &["orders.placed"]), Vec::<String>::new(), "it keeps all");
        assert_eq!(found(interest, &["orders.*"]), Vec::<String>::new());
        assert_eq!(found(queue, &[]), Vec::<String>::new());
    }

    #[test]
    fn a_paused_consumer_that_will_be_deleted_says_so() {
        let found = |inactive| {
            let consumer = ConsumerStatus {
                paused_until: Some(crate::Time(std::time::UNIX_EPOCH)),
                pause_seconds: 3600.0,
                inactive_max_seconds: inactive,
                ..ConsumerStatus::default()
            };
            paused(&consumer).unwrap().consequence.contains("deletes it")
        };
        assert_eq!([found(Some(60.0)), found(Some(7200.0)), found(None)], [true, false, false]);
    }
}
