//! `oncebox outbox verify`: it names messages that a stream does not have as the log does, and
//! sends them again.

use std::{collections::BTreeSet, time::Duration};

use async_nats::{
    HeaderMap,
    jetstream::{
        self,
        consumer::{AckPolicy, pull},
        message::StreamMessage,
        stream::{Config, RetentionPolicy, Source, Stream, SubjectTransform},
    },
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use oncebox_tests::{Nats, Proxy, TestEnv, eventually};
use serde_json::Value;

use crate::relay::{
    process::{run, run_ok},
    support::{
        LIMIT, await_messages, connect, count, drain, enqueue, fresh_stream, stored, stream_config,
        values_of, with,
    },
};

/// The result of a comparison: the exit code, the messages by their problem, and the summary.
struct Found {
    code: i32,
    lines: Vec<Value>,
    summary: Value,
}

impl Found {
    fn keys(&self, problem: &str) -> BTreeSet<&str> {
        let of_it = self.lines.iter().filter(|line| line["problem"] == problem);
        of_it.map(|line| line["key"].as_str().unwrap()).collect()
    }

    fn check(&self, code: i32, counts: &[(&str, u64)]) {
        assert_eq!(self.code, code, "{}", self.summary);
        for name in [
            "messages",
            "missing",
            "different",
            "parked",
            "superseded",
            "unproven",
            "copies",
            "unlogged",
            "resent",
        ] {
            let expected = counts.iter().find(|(named, _)| *named == name).map_or(0, |(_, count)| *count);
            assert_eq!(self.summary[name], expected, "{name}: {}", self.summary);
        }
    }
}

async fn verify_at(env: &TestEnv, nats_url: &str, stream: &str, more: &[&str]) -> Found {
    let arguments =
        [&["outbox", "verify", "--json", "--nats-url", nats_url, "--stream", stream], more].concat();
    let (code, output, log) = run(env.database_url(), &arguments).await;
    let mut lines: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.pop().unwrap_or_else(|| panic!("no summary, exit code {code}: {log}"));
    Found { code, lines, summary }
}

async fn verify(env: &TestEnv, more: &[&str]) -> Found {
    verify_at(env, env.nats_url(), env.name(), more).await
}

/// The streams of these tests forget ids at once.
pub(super) fn config(env: &TestEnv) -> Config {
    let duplicate_window = Duration::from_millis(100);
    Config { duplicate_window, ..stream_config(env.name(), &env.subject(">")) }
}

/// Waits until the stream would take a repeat of all earlier messages for new: its window has
/// passed.
pub(super) async fn ids_are_forgotten(env: &TestEnv, stream: &Stream) {
    let (context, subject) = (env.jetstream().await, env.subject("probe"));
    let publish = async || {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", "probe");
        let sent = context.publish_with_headers(subject.clone(), headers, Bytes::new()).await.unwrap();
        sent.await.unwrap()
    };
    publish().await;
    eventually("ids are forgotten", LIMIT, async || (!publish().await.duplicate).then_some(())).await;
    stream.purge().filter(&subject).await.unwrap();
}

type Change = fn(&str, &mut HeaderMap, &mut Bytes) -> bool;

/// Publishes the messages of one stream to another; messages for which the change returns false are
/// left out.
async fn copy_to(nats_url: &str, messages: &[StreamMessage], change: Change) {
    let context = jetstream::new(async_nats::connect(nats_url).await.unwrap());
    for message in messages {
        let (mut headers, mut payload) = (message.headers.clone(), message.payload.clone());
        let key = headers.get("Idempotency-Key").unwrap().to_string();
        if change(&key, &mut headers, &mut payload) {
            let sent = context.publish_with_headers(message.subject.clone(), headers, payload).await.unwrap();
            sent.await.unwrap();
        }
    }
}

#[tokio::test]
async fn holes_and_altered_messages_are_named_and_sent_again() {
    let env = TestEnv::new().await;
    fresh_stream(env.nats_url(), config(&env)).await;
    let client = env.pg().await;
    let mut worker = connect(&values_of(&env)).await.worker();
    let expected = enqueue(&client, &env.subject("x"), "a", 0..60, 5).await;
    drain(&mut worker).await;
    verify(&env, &[]).await.check(0, &[("messages", 60)]);

    let messages = env.messages().await;
    let stream = fresh_stream(env.nats_url(), config(&env)).await;
    let lost = ["a7", "a12", "a17", "a59"];
    copy_to(env.nats_url(), &messages, |key, headers, payload| {
        match key {
            "a20" => *payload = Bytes::from_static(b"other"),
            "a21" => headers.insert("tenant", "other"),
            "a22" => headers.insert("Nats-Msg-Id", "0123456789ab/AAAAAAAAAAAAAAAA/0/a22"),
            _ => {}
        }
        !["a7", "a12", "a17", "a59"].contains(&key)
    })
    .await;
    // That is another outbox's now.
    let missing = BTreeSet::from_iter(["a22"].into_iter().chain(lost));
    for more in [&[][..], &["--resend", "--dry-run"]] {
        let found = verify(&env, more).await;
        let resent = if more.is_empty() { 0 } else { 7 };
        found.check(1, &[("messages", 60), ("missing", 5), ("different", 2), ("resent", resent)]);
        assert_eq!(found.keys("missing"), missing);
        assert_eq!(found.keys("different"), BTreeSet::from(["a20", "a21"]));
        let altered: Vec<&Value> = found.lines.iter().filter(|line| line["problem"] == "altered").collect();
        assert_eq!(altered.len(), 2, "{altered:?}");
        assert_eq!(
            (&altered[0]["differs"][0], &altered[1]["differs"][0]),
            (&"payload".into(), &"header tenant".into())
        );
    }
    assert_eq!(drain(&mut worker).await, 0, "a dry run changes nothing");
    ids_are_forgotten(&env, &stream).await;

    // One message more is lost since a dry run: its token is refused, and the next one taken.
    let token = |found: &Found| found.summary["confirm"].as_str().unwrap().to_owned();
    let first = token(&verify(&env, &["--resend", "--dry-run"]).await);
    let last = stream.get_last_raw_message_by_subject(&env.subject("x")).await.unwrap();
    stream.delete_message(last.sequence).await.unwrap();
    let refused = ["outbox", "verify", "--nats-url", env.nats_url(), "--stream", env.name(), "--resend"];
    let (code, _, log) = run(env.database_url(), &[&refused[..], &["--confirm", &first]].concat()).await;
    assert!(code == 1 && log.contains("7 then, 8 of them now"), "{log}");
    assert_eq!(drain(&mut worker).await, 0, "nothing is sent");
    let second = token(&verify(&env, &["--resend", "--dry-run"]).await);
    verify(&env, &["--resend", "--confirm", &second])
        .await
        .check(0, &[("messages", 60), ("missing", 6), ("different", 2), ("resent", 8)]);
    // While they wait to be sent, nothing is missing.
    verify(&env, &["--resend"]).await.check(0, &[("messages", 52), ("parked", 8)]);
    drain(&mut worker).await;
    // Beside the two that a good copy follows.
    verify(&env, &[]).await.check(0, &[("messages", 60), ("superseded", 2)]);
    let stored = stored(&stream).await;
    let present: BTreeSet<&str> = stored.iter().map(|message| message.key.as_str()).collect();
    assert_eq!(present, expected.iter().map(String::as_str).collect());
    // Of one ordering key: in the order in which they were enqueued.
    let again: Vec<&str> = stored.iter().map(|message| message.key.as_str()).collect();
    let at = |key: &str| again.iter().rposition(|other| *other == key).unwrap();
    assert!(at("a7") < at("a12") && at("a12") < at("a17"), "{again:?}");
    let audit = "SELECT count(*) FROM oncebox.audit AS a JOIN oncebox.message AS m ON m.id = a.message_id AND m.key = a.key
                 WHERE a.action = 'resend'";
    assert_eq!(client.query_one(audit, &[]).await.unwrap().get::<_, i64>(0), 8, "a row for each message");
    let text = run_ok(
        env.database_url(),
        &["outbox", "verify", "--nats-url", env.nats_url(), "--stream", env.name()],
    )
    .await;
    assert!(
        text.contains("60 messages of the log compared") && text.contains("0 missing, 0 different"),
        "{text}"
    );
}

/// The average size of messages says nothing of the largest, and the server cuts a connection for
/// which too much waits.
#[tokio::test]
async fn a_few_large_messages_among_small_ones_are_read_without_a_cut() {
    let env = TestEnv::new().await;
    let nats = Nats::start_with("max_payload: 9000000\nmax_pending: 40000000").await.unwrap();
    fresh_stream(&nats.url(), config(&env)).await;
    let (client, subject) = (env.pg().await, env.subject("x"));
    enqueue(&client, &subject, "small-", 0..500, 0).await;
    let sql = "SELECT oncebox.enqueue('large-' || n, $1, convert_to(repeat('x', 8 << 20), 'UTF8'))
               FROM generate_series(1, 6) AS n";
    client.query(sql, &[&subject]).await.unwrap();
    let values = with(&values_of(&env), [("nats-url", &nats.url())]);
    let mut worker = connect(&values).await.worker();
    assert_eq!(drain(&mut worker).await, 506);
    let proxy = Proxy::start(([127, 0, 0, 1], nats.port()).into()).await;
    proxy.slow(0, Duration::from_millis(1));
    let url = format!("nats://127.0.0.1:{}", proxy.port());
    verify_at(&env, &url, env.name(), &[]).await.check(0, &[("messages", 506)]);
    assert_eq!(proxy.connections(), 1, "the server has cut connections");
}

#[tokio::test]
async fn only_messages_since_a_time_are_looked_for_and_wide_holes_are_jumped_over() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), config(&env)).await;
    let client = env.pg().await;
    let mut worker = connect(&values_of(&env)).await.worker();
    enqueue(&client, &env.subject("x"), "a", 0..5, 0).await;
    drain(&mut worker).await;
    let context = env.jetstream().await;
    for n in 0..2_500 {
        let sent = context.publish(env.subject("noise"), "".into()).await.unwrap();
        if n == 2_499 {
            sent.await.unwrap();
        }
    }
    stream.purge().filter(env.subject("noise")).await.unwrap();
    let sql = "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
    let between: String = client.query_one(sql, &[]).await.unwrap().get(0);
    enqueue(&client, &env.subject("x"), "b", 0..5, 0).await;
    drain(&mut worker).await;
    verify(&env, &[]).await.check(0, &[("messages", 10)]);
    // Which keys these have depends on the order of lanes.
    for sequence in [1, stream.get_info().await.unwrap().state.last_sequence] {
        stream.delete_message(sequence).await.unwrap();
    }
    verify(&env, &[]).await.check(1, &[("messages", 10), ("missing", 2)]);
    let found = verify(&env, &["--since", &between]).await;
    found.check(1, &[("messages", 5), ("missing", 1)]);
    let found = verify(&env, &["--since", "2100-01-01T00:00:00Z"]).await;
    found.check(0, &[]);
    assert!(found.summary["first_sequence"].as_u64() > Some(2_500), "nothing is read: {}", found.summary);
}

#[tokio::test]
async fn another_clusters_copy_is_compared_and_a_mirror_needs_to_know_its_subjects() {
    let env = TestEnv::new().await;
    fresh_stream(env.nats_url(), config(&env)).await;
    let client = env.pg().await;
    enqueue(&client, &env.subject("x"), "a", 0..30, 3).await;
    drain(&mut connect(&values_of(&env)).await.worker()).await;
    let messages = env.messages().await;

    let other = Nats::start().await.unwrap();
    fresh_stream(&other.url(), config(&env)).await;
    copy_to(&other.url(), &messages, |key, _, _| key != "a11").await;
    let found = verify_at(&env, &other.url(), env.name(), &[]).await;
    found.check(1, &[("messages", 30), ("missing", 1)]);
    assert_eq!(found.keys("missing"), BTreeSet::from(["a11"]));

    let name = format!("{}_copy", env.name());
    let source = Source { name: env.name().to_owned(), ..Source::default() };
    let mirror = Config { name: name.clone(), mirror: Some(source), ..Config::default() };
    let mirror = env.jetstream().await.create_stream(mirror).await.unwrap();
    await_messages(&mirror, 30).await;
    let arguments = ["outbox", "verify", "--nats-url", env.nats_url(), "--stream", &name];
    let (code, _, log) = run(env.database_url(), &arguments).await;
    assert!(code == 1 && log.contains("--subject"), "{log}");
    let subjects = env.subject(">");
    verify_at(&env, env.nats_url(), &name, &["--subject", &subjects]).await.check(0, &[("messages", 30)]);
    let (code, _, log) = run(env.database_url(), &[&arguments[..5], &["nosuch"]].concat()).await;
    assert!(code == 1 && log.contains("no such stream"), "{log}");
    // A stream that was deleted and created again holds none of these messages.
    fresh_stream(env.nats_url(), config(&env)).await;
    verify(&env, &[]).await.check(1, &[("messages", 30), ("missing", 30)]);
}

async fn of_retention(env: &TestEnv, change: impl FnOnce(&mut Config)) -> Stream {
    let mut config = config(env);
    change(&mut config);
    let stream = fresh_stream(env.nats_url(), config).await;
    let client = env.pg().await;
    let mut worker = connect(&values_of(env)).await.worker();
    enqueue(&client, &env.subject("x"), "x", 0..20, 3).await;
    enqueue(&client, &env.subject("y"), "y", 0..5, 3).await;
    drain(&mut worker).await;
    stream
}

#[tokio::test]
async fn what_a_stream_let_go_as_it_was_told_is_not_missing() {
    let env = TestEnv::new().await;
    let stream = of_retention(&env, |config| config.max_messages = 8).await;
    assert_eq!(count(&stream).await, 8);
    verify(&env, &[]).await.check(0, &[("messages", 25), ("unproven", 17)]);
    verify(&env, &["--resend"]).await.check(0, &[("messages", 25), ("unproven", 17)]);

    let env = TestEnv::new().await;
    let stream = of_retention(&env, |config| config.max_messages_per_subject = 2).await;
    verify(&env, &[]).await.check(0, &[("messages", 25), ("unproven", 21)]);
    // Of a subject that had messages two are left at least.
    stream.purge().filter(env.subject("y")).await.unwrap();
    let found = verify(&env, &[]).await;
    found.check(1, &[("messages", 25), ("missing", 5), ("unproven", 18)]);
    assert_eq!(found.keys("missing"), BTreeSet::from(["y0", "y1", "y2", "y3", "y4"]));
}

#[tokio::test]
async fn what_was_consumed_from_a_work_queue_is_not_missing() {
    let env = TestEnv::new().await;
    let stream = of_retention(&env, |config| config.retention = RetentionPolicy::WorkQueue).await;
    let durable = pull::Config {
        durable_name: Some("work".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(durable).await.unwrap();
    let mut messages = consumer.messages().await.unwrap().take(8);
    while let Some(message) = messages.next().await {
        message.unwrap().double_ack().await.unwrap();
    }
    eventually("8 are gone", LIMIT, async || (count(&stream).await == 17).then_some(())).await;
    verify(&env, &[]).await.check(0, &[("messages", 25), ("unproven", 8)]);
    let consumers = stream.get_info().await.unwrap().state.consumer_count;
    assert_eq!(consumers, 1, "it is read without a consumer");
}

/// A stream may store messages under other subjects, and an account may map them before that.
#[tokio::test]
async fn a_message_that_nats_has_mapped_is_not_altered() {
    let env = TestEnv::new().await;
    let nats = Nats::start_with("mappings { \"mapped.*\": \"taken.$1\" }").await.unwrap();
    let transform = SubjectTransform { source: "orders.>".into(), destination: "stored.>".into() };
    let with_transform =
        Config { subject_transform: Some(transform), ..stream_config("TRANSFORMED", "orders.>") };
    fresh_stream(&nats.url(), with_transform).await;
    fresh_stream(&nats.url(), stream_config("MAPPED", "taken.>")).await;
    let client = env.pg().await;
    let sql =
        "SELECT oncebox.enqueue($1 || n, $1, 'p', '{\"tenant\": \"acme\"}') FROM generate_series(1, 5) AS n";
    for subject in ["orders.a", "mapped.a"] {
        client.execute(sql, &[&subject]).await.unwrap();
    }
    let relay = connect(&with(&values_of(&env), [("nats-url", &*nats.url())])).await;
    drain(&mut relay.worker()).await;
    let url = nats.url();
    verify_at(&env, &url, "TRANSFORMED", &[]).await.check(0, &[("messages", 5)]);
    verify_at(&env, &url, "MAPPED", &["--subject", "mapped.>"]).await.check(0, &[("messages", 5)]);
    run_ok(env.database_url(), &["outbox", "replay", "--key", "orders.a1"]).await;
    drain(&mut relay.worker()).await;
    let replayed = verify_at(&env, &url, "TRANSFORMED", &[]).await;
    replayed.check(0, &[("messages", 5)]);
    assert!(replayed.keys("altered").is_empty());
}
