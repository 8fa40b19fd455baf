//! Findings about streams and the bucket.

use super::*;
use crate::obstacles::is_full;

#[test]
fn findings_of_the_bucket() {
    let day = 24.0 * 3600.0;
    let bucket = |age| StreamStatus {
        name: "OBJ_payloads".to_owned(),
        replicas: 3,
        age_max_seconds: Some(age),
        ..StreamStatus::default()
    };
    check(
        Problem,
        "bucket-age",
        &["OBJ_payloads", "1day", "ORDERS", "for ever", "--max-age=0s"],
        |_, _, survey| {
            survey.bucket = Some(bucket(day));
        },
    );
    let closed = |parts: &[&str], change: fn(&mut StreamStatus)| {
        check(Problem, "bucket-closed", parts, |_, _, survey| {
            let mut closed = StreamStatus { age_max_seconds: None, ..bucket(day) };
            change(&mut closed);
            survey.bucket = Some(closed);
        });
    };
    closed(&["OBJ_payloads is sealed"], |bucket| bucket.is_sealed = true);
    closed(&["roll-ups", "--allow-rollup"], |bucket| bucket.refuses_rollups = true);
    let kept = |survey: &mut Survey| {
        survey.streams[0].age_max_seconds = Some(2.0 * day);
        survey.streams[0].discards_new = true;
    };
    let mut seen = healthy();
    kept(seen.nats.as_mut().unwrap());
    let without = diagnose(&plan(), &seen);
    seen.nats.as_mut().unwrap().bucket = Some(bucket(2.0 * day));
    assert_eq!(diagnose(&plan(), &seen), without, "as long as the stream");
    seen.nats.as_mut().unwrap().bucket = Some(bucket(day));
    let found = diagnose(&plan(), &seen);
    let ages: Vec<_> = found.iter().filter(|found| found.check == "bucket-age").collect();
    assert!(ages.len() == 1 && ages[0].what.contains("2days"), "{found:?}");
}

#[test]
fn findings_of_a_stream() {
    let stream = |severity, name, parts: &[&str], change: fn(&mut StreamStatus)| {
        check(severity, name, parts, |_, _, survey| change(&mut survey.streams[0]));
    };
    stream(Warning, "stream-declared", &["max_bytes is 1"], |s| {
        s.differs = Some("max_bytes is 1".to_owned())
    });
    stream(Problem, "stream-declared", &["does not start"], |s| {
        (s.differs, s.is_verified) = (Some("max_bytes is 1".to_owned()), true);
    });
    stream(Problem, "stream-closed", &["sealed"], |s| s.is_sealed = true);
    stream(Problem, "stream-closed", &["no_ack"], |s| s.is_silent = true);
    stream(Problem, "stream-closed", &["no leader", "majority"], |s| s.has_leader = false);
    stream(Problem, "duplicate-window", &["1m 30s", "1m 35s", "stored twice"], |s| {
        s.duplicate_window_seconds = 90.0
    });
    stream(Note, "duplicate-window", &["2m", "--dupe-window 10m", "after a restart"], |s| {
        s.duplicate_window_seconds = 120.0
    });
    stream(Note, "duplicate-window", &["retention", "restart"], |s| s.deletes_acknowledged = true);
    stream(Problem, "discard", &["lost without a trace", "--discard new"], |s| s.discards_new = false);
    stream(Note, "discard", &["no limit now"], |s| {
        (s.discards_new, s.bytes_max, s.filled) = (false, None, None)
    });
    stream(Problem, "discard", &["schedules to a stream of their own", "enqueue_at"], |s| {
        (s.discards_new, s.is_scheduling) = (false, true)
    });
    stream(Note, "delete-markers", &["for 2m", "empty message"], |s| s.delete_marker_seconds = Some(120.0));
    stream(Problem, "discard", &["5 messages of a subject"], |s| s.messages_per_subject_max = Some(5));
    stream(Warning, "storage", &["memory"], |s| s.is_in_memory = true);
    stream(Warning, "replicas", &["cluster C", "--replicas 3"], |s| s.replicas = 1);
    stream(Warning, "replicas", &["n2, n3"], |s| s.offline_replicas = vec!["n2".into(), "n3".into()]);
    stream(Note, "max-msg-size", &["1000 bytes", "--max-msg-size=-1"], |s| s.message_bytes_max = Some(1_000));
    stream(Problem, "max-msg-size", &["orders.placed", "500", "400"], |s| s.message_bytes_max = Some(400));
    stream(Warning, "stream-filled", &["89 %", "edit ORDERS --max-bytes 200000 --force"], |s| {
        (s.bytes, s.filled) = (89_999, Some(0.899))
    });
    stream(Problem, "stream-full", &["100 of 100 messages", "--max-msgs"], |s| {
        (s.messages_max, s.filled) = (Some(100), Some(1.0));
    });
    stream(Problem, "stream-full", &["99500 of 100000", "--max-bytes"], |s| {
        (s.bytes, s.filled) = (99_500, Some(0.995))
    });
    stream(Note, "max-age", &["1h", "`oncebox outbox replay --subject 'orders.>'`"], |s| {
        s.age_max_seconds = Some(3_600.0)
    });
    check(Problem, "storage", &["`oncebox outbox replay --subject 'orders.>'`"], |_, _, survey| {
        survey.cluster = None;
        (survey.streams[0].is_in_memory, survey.streams[0].replicas) = (true, 1);
    });
    check(
        Problem,
        "expected-stream",
        &["ORDERS takes the subject orders.placed", "is OTHER"],
        |plan, _, _| {
            plan.expected.stream = Some("OTHER".to_owned());
        },
    );
    check(Problem, "republish", &["ORDERS", "copy.>", "COPY refuses", "source"], |plan, _, survey| {
        plan.expected.stream = Some("ORDERS".to_owned());
        let stream = &mut survey.streams[0];
        let again = [">", "copy.>"].map(str::to_owned);
        (stream.republishes, stream.feeds) = (Some(again), Some("COPY".to_owned()));
    });
    check(Warning, "retention", &["5m", "10m", "not there"], |plan, _, _| {
        plan.retention = Some(Duration::from_secs(300));
    });
}

#[test]
fn limits_that_are_kept_are_nothing_to_find() {
    let mut seen = healthy();
    let stream = &mut seen.nats.as_mut().unwrap().streams[0];
    (stream.messages_per_subject_max, stream.discards_new_per_subject) = (Some(5), true);
    assert_eq!(diagnose(&Plan { retention: None, ..plan() }, &seen), []);
    // One that drops old messages is never full.
    let stream =
        StreamStatus { discards_new: false, messages_max: Some(1), messages: 1, ..StreamStatus::default() };
    assert!(!is_full(&stream, &[]));
}
