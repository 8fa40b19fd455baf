//! Conclusions from the settings of a stream for the messages of the outbox.

use super::Severity::{Note, Problem, Warning};
use super::{Diagnosis, FILLED, INLINE_BYTES_MAX, Plan, time};
use crate::{
    consumption::replay,
    obstacles::{is_full, wider},
    status::RecentSubject,
    survey::{StreamStatus, Survey},
};
use oncebox_connect::words::counted;

/// README asks for so much.
const WINDOW_SECONDS: f64 = 600.0;
/// The part of a limit that is reached is compared in these.
const SHARE: u128 = 1_000_000;

pub(super) fn check(
    plan: &Plan,
    survey: &Survey,
    stream: &StreamStatus,
    subjects: &[RecentSubject],
    found: &mut Vec<Diagnosis>,
) {
    found.extend(declared(stream));
    found.extend(window(plan, stream));
    found.extend(kept_as_long(plan, stream));
    found.extend(discard(stream));
    found.extend(storage(stream));
    found.extend(replicas(survey, stream));
    found.extend(offline(stream));
    found.extend(message_size(survey, stream, subjects));
    found.extend(filled(stream, subjects));
    found.extend(age(stream));
    found.extend(markers(stream));
    found.extend(fed(plan, stream));
}

/// The bucket for large payloads: an object has to stay as long as its message.
pub(super) fn check_bucket(survey: &Survey, found: &mut Vec<Diagnosis>) {
    let Some(bucket) = &survey.bucket else { return };
    found.extend(declared(bucket));
    found.extend(discard(bucket).filter(|found| found.severity != Note));
    found.extend(storage(bucket));
    found.extend(replicas(survey, bucket));
    found.extend(offline(bucket));
    found.extend(filled(bucket, &[]));
    found.extend(closed_bucket(bucket));
    let Some(kept) = bucket.age_max_seconds else { return };
    let age = |stream: &StreamStatus| stream.age_max_seconds.unwrap_or(f64::INFINITY);
    let oldest = survey.streams.iter().max_by(|a, b| age(a).total_cmp(&age(b)));
    let Some(stream) = oldest.filter(|stream| age(stream) > kept) else { return };
    let name = &bucket.name;
    let longer =
        stream.age_max_seconds.map_or_else(|| "for ever".to_owned(), |age| format!("for {}", time(age)));
    found.push(Problem.of(
        "bucket-age",
        format!("{name} keeps large payloads for {}, stream {} its messages {longer}", time(kept), stream.name),
        "a message that is consumed after that has lost its payload, and becomes a dead letter",
        format!("nats stream edit {name} --max-age={}s --force; have what is lost already sent again: `oncebox outbox verify \
                 --stream {} --resend`", stream.age_max_seconds.unwrap_or_default().ceil(), stream.name),
    ));
}

/// A bucket that takes no objects, or not their descriptions.
fn closed_bucket(bucket: &StreamStatus) -> Option<Diagnosis> {
    let name = &bucket.name;
    let (what, remedy) = if bucket.is_sealed {
        let what = format!("{name} is sealed: it takes no object, and never again lets one go by its age");
        (what, "name another bucket with --object-store; a seal cannot be undone".to_owned())
    } else if bucket.refuses_rollups {
        let what = format!("{name} allows no roll-ups, so it refuses the description of each object");
        (what, format!("nats stream edit {name} --allow-rollup --force"))
    } else {
        return None;
    };
    Some(Problem.of(
        "bucket-closed",
        what,
        "messages with large payloads are set aside, and die in the end",
        remedy,
    ))
}

/// The server hands the header `Nats-Expected-Stream` on, and the other stream is not the one.
fn fed(plan: &Plan, stream: &StreamStatus) -> Option<Diagnosis> {
    let (expected, fed) = (plan.expected.stream.as_ref()?, stream.feeds.as_ref()?);
    let [_, destination] = stream.republishes.as_ref()?;
    (fed != expected).then(|| {
        Problem.of(
            "republish",
            format!(
                "stream {} republishes its messages to {destination}, for stream {fed}, while --expected-stream is {expected}",
                stream.name
            ),
            format!("{fed} refuses each of these messages without a sign: it lacks them"),
            format!(
                "take `republish` from stream {0} and make {0} a source of {fed}, which takes them then; or start the \
                 relays without --expected-stream",
                stream.name
            ),
        )
    })
}

fn declared(stream: &StreamStatus) -> Option<Diagnosis> {
    let what = format!("stream {} is not as declared: {}", stream.name, stream.differs.as_ref()?);
    let remedy = format!(
        "change the stream (`nats stream edit {} --interactive --force`) or its declaration",
        stream.name
    );
    Some(if stream.is_verified {
        Problem.of("stream-declared", what, "its policy is verify: the relay does not start", remedy)
    } else {
        Warning.of("stream-declared", what, "it is left as it is", remedy)
    })
}

fn window(plan: &Plan, stream: &StreamStatus) -> Option<Diagnosis> {
    let (window, resend) = (stream.duplicate_window_seconds, plan.resend.as_secs_f64());
    let what = format!("duplicate_window of stream {} is {}", stream.name, time(window));
    // A window is no longer than messages stay.
    let longest = time(stream.age_max_seconds.map_or(WINDOW_SECONDS, |age| age.min(WINDOW_SECONDS)));
    let remedy = format!(
        "nats stream edit {} --dupe-window {longest} --force; nats-server knows the ids of older messages for so long only after a restart",
        stream.name
    );
    if window < resend {
        let what = format!("{what}; the relay may send a message again after {}", time(resend));
        let consequence =
            "a message whose acknowledgement was lost is stored twice: consumers without an inbox act twice";
        return Some(Problem.of("duplicate-window", what, consequence, remedy));
    }
    if stream.deletes_acknowledged {
        let what = format!("stream {} deletes messages as they are acknowledged (retention)", stream.name);
        let consequence = "with each restart of NATS it forgets their ids, so what is sent again then is stored twice; \
                           consumers without an inbox act twice";
        return Some(Note.of(
            "duplicate-window",
            what,
            consequence,
            "where that matters make another stream, with retention = limits: it cannot be changed",
        ));
    }
    (window < WINDOW_SECONDS).then(|| {
        let consequence = "what was stored before a longer outage, but not acknowledged, is stored twice after it; \
                           consumers without an inbox act twice";
        Note.of("duplicate-window", what, consequence, remedy)
    })
}

fn kept_as_long(plan: &Plan, stream: &StreamStatus) -> Option<Diagnosis> {
    let retention = plan.retention?.as_secs_f64();
    (retention < stream.duplicate_window_seconds).then(|| {
        Warning.of(
            "retention",
            format!(
                "--retention {} is shorter than duplicate_window {} of stream {}",
                time(retention),
                time(stream.duplicate_window_seconds),
                stream.name
            ),
            "a key that is used again after its message was deleted is taken for a duplicate by the stream: the new \
             message counts as published, and is not there",
            "keep settled messages longer than the window; hours or days",
        )
    })
}

fn discard(stream: &StreamStatus) -> Option<Diagnosis> {
    let name = &stream.name;
    let per_subject =
        stream.messages_per_subject_max.filter(|_| !(stream.discards_new && stream.discards_new_per_subject));
    if let Some(most) = per_subject {
        return Some(Problem.of(
            "discard",
            format!(
                "stream {name} keeps {} of a subject, and drops the oldest for a new one",
                counted(most, "message")
            ),
            "messages that no consumer has had yet are lost without a trace",
            format!(
                "nats stream edit {name} --max-msgs-per-subject=-1 --force, or: nats stream edit {name} --discard new --discard-per-subject --force"
            ),
        ));
    }
    if stream.discards_new {
        return None;
    }
    let remedy = if stream.is_scheduling {
        format!(
            "move the schedules to a stream of their own, or use `enqueue_at` of Oncebox: a stream with schedules cannot \
             refuse messages; then: nats stream edit {name} --discard new --force"
        )
    } else {
        format!("nats stream edit {name} --discard new --force: then the relay waits until there is room")
    };
    Some(if stream.messages_max.is_some() || stream.bytes_max.is_some() {
        Problem.of(
            "discard",
            format!("stream {name} drops the oldest messages when it is full (discard old)"),
            "messages that no consumer has had yet are lost without a trace",
            remedy,
        )
    } else {
        Note.of(
            "discard",
            format!(
                "stream {name} would drop the oldest messages when full (discard old); it has no limit now"
            ),
            "once somebody sets a limit, messages that no consumer has had yet can be lost",
            remedy,
        )
    })
}

fn storage(stream: &StreamStatus) -> Option<Diagnosis> {
    if !stream.is_in_memory {
        return None;
    }
    let name = &stream.name;
    let remedy = format!("make a stream with storage = file; storage of {name} cannot be changed");
    Some(if stream.replicas < 2 {
        let consequence = "a restart of NATS loses messages that were acknowledged";
        let remedy = format!("{remedy}; to send again what is lost: {}", replay(stream));
        Problem.of(
            "storage",
            format!("stream {name} is kept in the memory of one server"),
            consequence,
            remedy,
        )
    } else {
        let consequence = "when all its servers restart together, messages that were acknowledged are lost";
        Warning.of("storage", format!("stream {name} is kept in memory"), consequence, remedy)
    })
}

fn replicas(survey: &Survey, stream: &StreamStatus) -> Option<Diagnosis> {
    let cluster = survey.cluster.as_ref().filter(|_| stream.replicas < 2)?;
    Some(Warning.of(
        "replicas",
        format!("stream {} is held by one server of the cluster {cluster}", stream.name),
        "while that server is away nothing is delivered; with its disk the messages are gone",
        format!("nats stream edit {} --replicas 3 --force", stream.name),
    ))
}

fn offline(stream: &StreamStatus) -> Option<Diagnosis> {
    (!stream.offline_replicas.is_empty()).then(|| {
        Warning.of(
            "replicas",
            format!(
                "of stream {} these servers are away: {}",
                stream.name,
                stream.offline_replicas.join(", ")
            ),
            "when a majority is away, it takes nothing",
            "bring them back",
        )
    })
}

fn message_size(survey: &Survey, stream: &StreamStatus, subjects: &[RecentSubject]) -> Option<Diagnosis> {
    let limit =
        stream.message_bytes_max.filter(|limit| *limit < survey.max_payload_bytes.min(INLINE_BYTES_MAX))?;
    let name = &stream.name;
    let consequence = "a larger message is dead at once, and holds back its ordering key";
    let remedy = format!(
        "nats stream edit {name} --max-msg-size=-1 --force, or have producers send a reference to large bodies"
    );
    let taken = subjects.iter().filter(|subject| stream.takes(&subject.subject));
    let largest = taken.max_by_key(|subject| subject.bytes_max);
    Some(match largest.filter(|largest| largest.bytes_max.unsigned_abs() > limit) {
        Some(largest) => {
            let what = format!(
                "messages to {} have up to {} bytes, max_msg_size of stream {name} is {limit}",
                largest.subject, largest.bytes_max
            );
            Problem.of("max-msg-size", what, consequence, remedy)
        }
        None => Note.of(
            "max-msg-size",
            format!("max_msg_size of stream {name} is {limit} bytes"),
            consequence,
            remedy,
        ),
    })
}

fn filled(stream: &StreamStatus, subjects: &[RecentSubject]) -> Option<Diagnosis> {
    let filled = stream.filled.filter(|filled| *filled >= FILLED && stream.discards_new)?;
    // Then it is more than a warning, and said already.
    if is_full(stream, subjects) {
        return None;
    }
    let what = format!("stream {} is filled to {:.0} % of its limits", stream.name, (filled * 100.0).floor());
    let consequence = "when it is full it refuses messages: they wait in the outbox until there is room";
    let part =
        |count: u64, most: Option<u64>| most.map(|most| u128::from(count) * SHARE / u128::from(most.max(1)));
    let of_messages = part(stream.messages, stream.messages_max) > part(stream.bytes, stream.bytes_max);
    Some(Warning.of(
        "stream-filled",
        what,
        consequence,
        format!(
            "widen its limit (`nats stream edit {} {} --force`), or see why consumers are behind",
            stream.name,
            wider(stream, of_messages)
        ),
    ))
}

fn markers(stream: &StreamStatus) -> Option<Diagnosis> {
    let kept = stream.delete_marker_seconds?;
    Some(Note.of(
        "delete-markers",
        format!(
            "stream {} puts an empty message in the place of the last of a subject that goes by its age, for {}",
            stream.name,
            time(kept)
        ),
        "consumers get it as a message: inboxes of Oncebox pass over it, others have to know its header Nats-Marker-Reason",
        "none is needed where all consumers are inboxes; else make the stream without subject_delete_marker_ttl",
    ))
}

fn age(stream: &StreamStatus) -> Option<Diagnosis> {
    let age = stream.age_max_seconds?;
    Some(Note.of(
        "max-age",
        format!("stream {} drops messages after {}", stream.name, time(age)),
        "a consumer that is away for longer never gets them",
        format!(
            "none is needed when no consumer is ever away for so long; to send them again: {}",
            replay(stream)
        ),
    ))
}
