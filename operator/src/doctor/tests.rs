mod streams;

use std::time::SystemTime;

use super::*;
use crate::{
    LossStatus, relay_settings::RelaySettings, shell::assert_whole, status::RecentSubject,
    survey::StreamStatus,
};

fn plan() -> Plan {
    Plan {
        resend: Duration::from_secs(95),
        retention: Some(Duration::from_secs(7 * 24 * 3600)),
        saga_lifetime: None,
        expected: Expected {
            created: vec!["MADE".to_owned()],
            verified: vec![("OTHER".to_owned(), vec!["other.>".to_owned(), "more".to_owned()])],
            stream: None,
        },
        poll_max: Duration::from_millis(250),
        has_bucket: false,
        weaknesses: Vec::new(),
    }
}

/// Nothing to find, not even a note.
fn healthy() -> Examination {
    let stream = StreamStatus {
        name: "ORDERS".to_owned(),
        subjects: vec!["orders.>".to_owned()],
        replicas: 3,
        has_leader: true,
        discards_new: true,
        bytes_max: Some(100_000),
        filled: Some(0.1),
        bytes: 10_000,
        messages: 100,
        consumers: 1,
        duplicate_window_seconds: 600.0,
        ..StreamStatus::default()
    };
    let survey = Survey {
        url: "nats://n".to_owned(),
        version: "2.15.1".to_owned(),
        cluster: Some("C".to_owned()),
        max_payload_bytes: INLINE_BYTES_MAX,
        streams: vec![stream],
        clock: Some(Skew { seconds: 0.2, error_seconds: 0.1 }),
        ..Survey::default()
    };
    let facts = DatabaseFacts {
        target: "h/orders".to_owned(),
        version: "18.4".to_owned(),
        version_number: 180_004,
        role_name: "relay".to_owned(),
        fsyncs: true,
        schema: "oncebox".to_owned(),
        role_prefix: "oncebox_orders".to_owned(),
        hears: Some(true),
        clock: Some(Skew { seconds: -0.2, error_seconds: 0.1 }),
        subjects: vec![RecentSubject { subject: "orders.placed".to_owned(), messages: 7, bytes_max: 500 }],
        ..DatabaseFacts::default()
    };
    Examination { postgres: Some(facts), nats: Some(survey), ..Examination::default() }
}

/// Changes one fact, and expects exactly this finding.
fn check(
    severity: Severity,
    name: &str,
    parts: &[&str],
    change: impl FnOnce(&mut Plan, &mut DatabaseFacts, &mut Survey),
) {
    let (mut plan, mut seen) = (plan(), healthy());
    change(&mut plan, seen.postgres.as_mut().unwrap(), seen.nats.as_mut().unwrap());
    let found = diagnose(&plan, &seen);
    let [only] = &found[..] else { panic!("{name}: {found:#?}") };
    assert_eq!((only.severity, only.check), (severity, name), "{only:?}");
    let text = format!("{} / {} / {}", only.what, only.consequence, only.remedy);
    parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    assert_whole(&only.what, &only.remedy);
}

use Severity::{Note, Problem, Warning};
use oncebox_connect::clock::Skew;
use oncebox_relay::facts::LowIds;

#[test]
fn a_loss_is_named_with_its_size_and_what_was_done() {
    let loss = |state: &str| LossStatus {
        stream: "ORDERS".to_owned(),
        state: state.to_owned(),
        kind: "tail".to_owned(),
        lanes: 4,
        sequence: 17,
        lost_sequence: 99,
        found_at: crate::Time(SystemTime::UNIX_EPOCH),
    };
    let parts = ["ORDERS", "between 17 and 99", "4 lanes"];
    for (severity, state, part) in [
        (Problem, "reported", "oncebox outbox resend --stream ORDERS"),
        (Warning, "being sent again", "while a relay works"),
        (Note, "sent again", "was sent again"),
    ] {
        let parts = [&parts[..], &[state, part]].concat();
        check(severity, "loss", &parts, |_, facts, _| facts.losses = vec![loss(state)]);
    }
}

/// The bound is the longest time after which a message can come again.
#[test]
fn findings_about_how_long_inboxes_keep_keys() {
    let day = 24.0 * 3600.0;
    let keeps =
        |seconds: f64| vec![InboxFacts { scope: "pay:charge".to_owned(), retention_seconds: seconds }];
    let aged = |seen: &mut Survey, days: f64| seen.streams[0].age_max_seconds = Some(days * day);
    // Its own note says that the stream drops messages.
    let sagas = |days: f64| Some(Duration::from_secs_f64(days * day));
    let found_with = |saga_lifetime: Option<Duration>, retention: f64, age: Option<f64>| {
        let mut seen = healthy();
        seen.postgres.as_mut().unwrap().inboxes = keeps(retention);
        age.inspect(|age| aged(seen.nats.as_mut().unwrap(), *age));
        let plan = Plan { saga_lifetime, ..plan() };
        let found = diagnose(&plan, &seen).into_iter().filter(|found| found.check == "inbox-retention");
        found.collect::<Vec<_>>()
    };
    let found = |retention, age| found_with(None, retention, age);
    assert_eq!(found(8.0 * day, Some(7.0)), []);
    let enough = 7.0 * day + 600.0;
    assert_eq!(found(enough, Some(7.0)), []);
    let short = found(enough - 1.0, Some(7.0));
    assert_eq!((short.len(), short[0].severity), (1, Warning));
    assert!(short[0].what.contains("stream ORDERS keeps messages for 7days 10m"), "{short:?}");
    assert!(short[0].remedy.contains("7days 10m"), "{short:?}");
    let replayed = found(6.0 * day, Some(3.0));
    assert!(replayed[0].what.contains("the outbox keeps what can be replayed for 7days"), "{replayed:?}");
    assert_eq!(found_with(sagas(30.0), 30.0 * day, Some(7.0)), []);
    let saga = found_with(sagas(30.0), 30.0 * day - 1.0, Some(7.0));
    assert_eq!((saga.len(), saga[0].severity), (1, Warning));
    assert!(saga[0].what.contains("a saga goes on for 30days"), "{saga:?}");
    assert!(saga[0].remedy.contains("30days at least"), "{saga:?}");
    let soon = found(599.0, Some(7.0));
    assert_eq!(soon[0].severity, Problem);
    assert!(soon[0].what.contains("may send a message again for 10m"), "{soon:?}");
    check(Note, "inbox-retention", &["pay:charge", "ORDERS keeps messages for ever"], |_, facts, _| {
        facts.inboxes = keeps(365.0 * day);
    });
}

#[test]
fn a_healthy_pair_has_nothing_to_find() {
    assert_eq!(diagnose(&plan(), &healthy()), []);
}

#[test]
fn findings_of_postgresql() {
    check(Problem, "postgres-version", &["14.9", "15 to 18"], |_, facts, _| {
        (facts.version_number, facts.version) = (140_009, "14.9".to_owned());
    });
    check(Warning, "postgres-version", &["19.0"], |_, facts, _| {
        (facts.version_number, facts.version) = (190_000, "19.0".to_owned());
    });
    check(
        Warning,
        "relay-settings",
        &["2 with on-dead = block", "7days", "1 with on-dead = skip", "for ever"],
        |_, facts, _| {
            let group = |relays, retention_seconds, dead_blocks| RelaySettings {
                relays,
                retention_seconds,
                dead_blocks,
            };
            facts.relay_settings = vec![group(2, Some(7.0 * 24.0 * 3600.0), true), group(1, None, false)];
        },
    );
    check(Problem, "read-only", &["h/orders", "primary"], |_, facts, _| facts.is_read_only = true);
    check(Problem, "disk-full", &["No space left", "make room"], |_, facts, _| {
        facts.full_disk = Some("PostgreSQL takes no writes: No space left on device".to_owned());
    });
    check(Warning, "plain-text", &["db.example", "read and change"], |plan, _, _| {
        plan.weaknesses = vec!["has no sslmode, to db.example".to_owned()];
    });
    check(Problem, "schema-version", &["is at version 3", "oncebox migrate"], |_, facts, _| {
        facts.schema_problem = Some("it is at version 3".to_owned());
    });
    check(
        Problem,
        "privileges",
        &["DELETE on message; x", "GRANT \"oncebox_orders_relay\" TO \"relay\""],
        |_, facts, _| {
            let privileges = "DELETE on message; x".to_owned();
            facts.lacking = vec![Lacking { role: "relay".to_owned(), privileges }];
        },
    );
    check(
        Problem,
        "message-ids",
        &["stand at 57, below 2000", "run a relay", "oncebox.message_id_seq"],
        |_, facts, _| {
            facts.low_ids = Some(LowIds { stood_at: 57, needed: 2000 });
        },
    );
    check(Warning, "roles", &["oncebox_relay", "CREATE ROLE \"oncebox_relay\" NOLOGIN"], |_, facts, _| {
        facts.missing_roles = vec!["oncebox_relay".to_owned()];
    });
    check(Warning, "superuser", &["role relay", "whole cluster"], |_, facts, _| {
        (facts.is_superuser, facts.readable_tables) = (true, 9);
    });
    check(Warning, "business-tables", &["public.orders", "and 2 more", "CREATE ROLE"], |_, facts, _| {
        (facts.readable_tables, facts.readable_examples) = (3, vec!["public.orders".to_owned()]);
    });
    check(Warning, "fsync", &["power failure"], |_, facts, _| facts.fsyncs = false);
    check(Note, "pooler", &["transaction pooler"], |_, facts, _| facts.is_pooled = true);
    check(Problem, "pooler", &["not allowed", "pool_mode = transaction"], |_, facts, _| {
        facts.transactions_refused = Some("not allowed in statement pooling mode".to_owned());
    });
    check(Note, "listen", &["250ms", "--poll-max-milliseconds"], |_, facts, _| facts.hears = Some(false));
    check(Warning, "unasked", &["denied"], |_, facts, _| facts.unasked.push("denied".to_owned()));
    check(Warning, "clock", &["PostgreSQL is 9.0 s behind", "NTP"], |_, facts, _| {
        facts.clock = Some(Skew { seconds: -9.0, error_seconds: 1.0 });
    });
}

#[test]
fn standbys_that_commits_wait_for_are_there_and_apply_in_time() {
    let awaits = |facts: &mut DatabaseFacts, commit: &str, there| {
        facts.synchronous_commit = commit.to_owned();
        facts.synchronous_standby_names = "ANY 2 (a, b, c)".to_owned();
        (facts.awaited_standbys, facts.synchronous_standbys) = (2, there);
    };
    check(Problem, "standbys", &["2 standbys", "ANY 2 (a, b, c)", "1 of them is", "hang"], |_, facts, _| {
        awaits(facts, "on", Some(1));
    });
    check(Warning, "standbys", &["17 MiB", "remote_apply"], |_, facts, _| {
        awaits(facts, "remote_apply", Some(2));
        facts.unapplied_bytes = Some(17 << 20);
    });
    for (commit, there, unapplied) in [
        ("on", Some(2), 17 << 20),
        ("remote_apply", Some(2), 15 << 20),
        ("local", Some(0), 0),
        ("on", None, 0),
    ] {
        let mut seen = healthy();
        let facts = seen.postgres.as_mut().unwrap();
        awaits(facts, commit, there);
        facts.unapplied_bytes = Some(unapplied);
        assert_eq!(diagnose(&plan(), &seen), [], "{commit} {there:?}");
    }
}

#[test]
fn a_clock_that_was_asked_slowly_is_not_blamed() {
    let mut seen = healthy();
    seen.postgres.as_mut().unwrap().clock = Some(Skew { seconds: 9.0, error_seconds: 4.5 });
    assert_eq!(diagnose(&plan(), &seen), []);
}

/// Those that would be too large go to the bucket.
#[test]
fn with_a_bucket_a_small_max_payload_is_enough() {
    let (mut plan, mut seen) = (plan(), healthy());
    seen.nats.as_mut().unwrap().max_payload_bytes = 1 << 20;
    plan.has_bucket = true;
    assert_eq!(diagnose(&plan, &seen), []);
    plan.has_bucket = false;
    assert_eq!(diagnose(&plan, &seen).len(), 1);
}

#[test]
fn findings_of_the_nats_server() {
    check(Problem, "nats-version", &["2.9.9"], |_, _, survey| survey.version = "2.9.9".to_owned());
    check(Note, "max-payload", &["1048576", "dead at once"], |_, _, survey| {
        survey.max_payload_bytes = 1 << 20
    });
    check(Problem, "max-payload", &["orders.placed", "500 bytes", "400"], |_, _, survey| {
        survey.max_payload_bytes = 400;
    });
    check(Problem, "jetstream", &["not enabled"], |_, _, survey| {
        survey.unusable = Some("not enabled".to_owned())
    });
    check(
        Problem,
        "subject-coverage",
        &["orders.placed", "7 of the newest", "--attempts-max"],
        |_, _, survey| {
            survey.streams.clear();
            survey.subjects_without_stream.push("orders.placed".to_owned());
        },
    );
    check(Warning, "account", &["85 %", "refuse messages"], |_, _, survey| {
        survey.account_filled = Some(0.859)
    });
    check(Problem, "account", &["without max_bytes", "MADE"], |_, _, survey| {
        survey.unlimited_streams.push("MADE".into())
    });
    check(Note, "stream-missing", &["MADE", "creates it"], |_, _, survey| {
        survey.missing_streams.push("MADE".into())
    });
    check(
        Problem,
        "stream-missing",
        &["nats stream add 'OTHER' --subjects 'other.>,more'", "does not start"],
        |_, _, survey| {
            survey.missing_streams.push("OTHER".to_owned());
        },
    );
    check(Problem, "stream-missing", &["OTHER", "--expected-stream"], |plan, facts, survey| {
        plan.expected.stream = Some("OTHER".to_owned());
        facts.subjects.clear();
        survey.missing_streams.push("OTHER".to_owned());
    });
    check(
        Problem,
        "stream-missing",
        &["oncebox relay --stream 'OTHER=paid,pay.>',"],
        |plan, facts, survey| {
            plan.expected.stream = Some("OTHER".to_owned());
            let subject = |name: &str| RecentSubject { subject: name.to_owned(), messages: 1, bytes_max: 1 };
            facts.subjects = ["pay.made", "paid", "pay.back"].map(subject).to_vec();
            survey.missing_streams.push("OTHER".to_owned());
        },
    );
    check(Warning, "unasked", &["STREAM.NAMES"], |_, _, survey| survey.unasked.push("denied".to_owned()));
    check(Warning, "clock", &["NATS is 9.0 s ahead"], |_, _, survey| {
        survey.clock = Some(Skew { seconds: 9.0, error_seconds: 1.0 });
    });
}

#[test]
fn older_and_newer_servers_are_told_apart() {
    for (version, is_old) in
        [("2.9.9", true), ("2.9.10", false), ("2.10.0", false), ("3.0.0-beta.1", false), ("1.99.99", true)]
    {
        let mut seen = healthy();
        seen.nats.as_mut().unwrap().version = version.to_owned();
        assert_eq!(!diagnose(&plan(), &seen).is_empty(), is_old, "{version}");
    }
}

#[test]
fn what_cannot_be_reached_is_a_problem_and_the_rest_is_checked_all_the_same() {
    let mut seen = Examination { nats_problem: Some("NATS at x cannot be reached".to_owned()), ..healthy() };
    seen.nats = None;
    seen.postgres.as_mut().unwrap().fsyncs = false;
    let found = diagnose(&plan(), &seen);
    let checks: Vec<(Severity, &str)> = found.iter().map(|found| (found.severity, found.check)).collect();
    assert_eq!(checks, [(Problem, "nats"), (Warning, "fsync")]);
    assert!(!seen.reached_both());

    let mut seen = Examination { postgres_problem: Some("away".to_owned()), ..healthy() };
    seen.postgres = None;
    seen.nats.as_mut().unwrap().streams[0].is_sealed = true;
    let found = diagnose(&plan(), &seen);
    let checks: Vec<(Severity, &str)> = found.iter().map(|found| (found.severity, found.check)).collect();
    assert_eq!(checks, [(Problem, "postgres"), (Problem, "stream-closed")]);
}
