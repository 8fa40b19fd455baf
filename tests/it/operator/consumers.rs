//! `oncebox status` and `oncebox doctor` tell of the consumers of the streams, and of those that
//! get no messages.

use std::time::Duration;

use async_nats::jetstream::{
    consumer::pull::Config as Consumer,
    stream::{Config, RetentionPolicy, Source, Stream},
};
use futures_util::StreamExt;
use oncebox_tests::{Nats, TestEnv, eventually};
use serde_json::{Value, json};

use crate::{
    operator::{
        doctor::{doctor, run_with},
        status_nats::{assert_finds, findings, status},
    },
    relay::support::{LIMIT, connect, drain, enqueue, fresh_stream, stream_config, values_of},
};

/// A stream with four messages of the outbox.
async fn stocked(env: &TestEnv, config: Config) -> Stream {
    let stream = fresh_stream(env.nats_url(), config).await;
    enqueue(&env.pg().await, &env.subject("taken.a"), "m-", 0..4, 0).await;
    drain(&mut connect(&values_of(env)).await.worker()).await;
    stream
}

fn config(env: &TestEnv) -> Config {
    stream_config(env.name(), &env.subject("taken.>"))
}

fn durable(name: &str) -> Consumer {
    Consumer { durable_name: Some(name.to_owned()), ..Consumer::default() }
}

/// Messages that are never acknowledged.
async fn take(stream: &Stream, consumer: &str, messages: usize) {
    let consumer = stream.get_consumer::<Consumer>(consumer).await.unwrap();
    let taken = consumer.fetch().max_messages(messages).messages().await.unwrap();
    assert_eq!(taken.count().await, messages);
}

/// Severities of the doctor's findings of this kind.
async fn doctor_finds(env: &TestEnv, check: &str) -> Vec<Value> {
    let (_, seen) = doctor(env.database_url(), env.nats_url(), &[]).await;
    let found = seen["findings"].as_array().unwrap().iter().filter(|found| found["check"] == check);
    found.map(|found| found["severity"].clone()).collect()
}

async fn text(env: &TestEnv) -> String {
    let environment = [("DATABASE_URL", env.database_url()), ("NATS_URL", env.nats_url())];
    run_with(&["status"], &environment).await.1
}

#[tokio::test]
async fn a_stream_that_nobody_consumes_is_a_finding_until_somebody_does() {
    let env = TestEnv::new().await;
    let stream = stocked(&env, config(&env)).await;
    let (_, told) = status(&env, env.nats_url()).await;
    assert_finds(&told, &["nobody consumes stream", env.name(), "4 messages", "start the services"]);
    assert_eq!(doctor_finds(&env, "stream-unconsumed").await, ["warning"]);

    // Neither when another stream has its messages.
    let context = async_nats::jetstream::new(env.nats().await);
    let source = Source { name: env.name().to_owned(), ..Source::default() };
    let copy = format!("{}_copy", env.name());
    let sources = Some(vec![source]);
    context.create_stream(Config { name: copy.clone(), sources, ..Config::default() }).await.unwrap();
    assert_eq!(findings(&status(&env, env.nats_url()).await.1), [""; 0]);
    context.delete_stream(&copy).await.unwrap();

    stream.create_consumer(durable("charge")).await.unwrap();
    let (_, told) = status(&env, env.nats_url()).await;
    assert_finds(&told, &["nobody pulls from the consumer charge", "4 wait", "nats consumer rm"]);
    assert_eq!(doctor_finds(&env, "stream-unconsumed").await, Vec::<Value>::new());
    assert_eq!(doctor_finds(&env, "consumer-forsaken").await, ["warning"]);

    // A client pulls, and does not acknowledge yet.
    take(&stream, "charge", 3).await;
    let (_, told) = status(&env, env.nats_url()).await;
    assert_eq!(findings(&told), [""; 0], "{told}");
    let consumer = &told["nats"]["consumers"][0];
    let numbers = ["name", "pending", "unacknowledged", "redelivered"].map(|name| consumer[name].clone());
    assert_eq!(json!(numbers), json!(["charge", 1, 3, 0]), "{told}");
    assert!(consumer["delivered_seconds"].as_f64().unwrap() < 60.0, "{told}");
    assert_eq!(consumer["acknowledged_seconds"], json!(null), "{told}");
    let text = text(&env).await;
    let line = text.lines().find(|line| line.contains(" charge ")).expect("a line for the consumer");
    assert!(line.contains("3 of 1000") && line.contains("never") && line.contains("nobody"), "{text}");
}

#[tokio::test]
async fn a_stream_that_drops_messages_for_want_of_consumers_is_a_finding() {
    let env = TestEnv::new().await;
    stocked(&env, Config { retention: RetentionPolicy::Interest, ..config(&env) }).await;
    let (_, told) = status(&env, env.nats_url()).await;
    assert_finds(&told, &["retention interest", "dropped at once", "oncebox outbox replay"]);
}

/// Such a message is acknowledged all the same.
#[tokio::test]
async fn a_subject_that_no_consumer_of_an_interest_stream_takes_is_a_finding() {
    let env = TestEnv::new().await;
    let config = Config { retention: RetentionPolicy::Interest, ..config(&env) };
    let stream = fresh_stream(env.nats_url(), config).await;
    let of = |subject| Consumer { filter_subject: env.subject(subject), ..durable("charge") };
    stream.create_consumer(of("taken.a")).await.unwrap();
    let client = env.pg().await;
    for subject in ["taken.a", "taken.b"] {
        enqueue(&client, &env.subject(subject), subject, 0..4, 0).await;
    }
    drain(&mut connect(&values_of(&env)).await.worker()).await;
    assert_eq!(stream.get_info().await.unwrap().state.messages, 4, "the others are not stored");
    take(&stream, "charge", 1).await;
    let (_, told) = status(&env, env.nats_url()).await;
    let subject = env.subject("taken.b");
    assert_finds(&told, &["no consumer takes", &subject, "dropped at once", "oncebox outbox replay"]);
    assert_eq!(doctor_finds(&env, "subject-unconsumed").await, ["warning"]);
    stream.create_consumer(of("taken.*")).await.unwrap();
    assert_eq!(doctor_finds(&env, "subject-unconsumed").await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_paused_consumer_is_a_finding_with_the_end_of_its_pause() {
    if Nats::version().unwrap() < (2, 11) {
        return;
    }
    let env = TestEnv::new().await;
    let stream = stocked(&env, config(&env)).await;
    stream.create_consumer(durable("charge")).await.unwrap();
    let until = std::time::SystemTime::now() + Duration::from_secs(3600);
    let pause = async |body: Value| {
        let request = format!("$JS.API.CONSUMER.PAUSE.{}.charge", env.name());
        env.nats().await.request(request, body.to_string().into()).await.unwrap()
    };
    pause(json!({"pause_until": humantime::format_rfc3339(until).to_string()})).await;
    let (_, told) = status(&env, env.nats_url()).await;
    let until = humantime::format_rfc3339_seconds(until).to_string();
    assert_finds(
        &told,
        &["the consumer charge", &format!("is paused until {until}"), "4 wait", "consumer resume"],
    );
    assert!(text(&env).await.contains(&format!("paused until {until}")));
    assert_eq!(doctor_finds(&env, "consumer-paused").await, ["warning"]);
    pause(json!({})).await;
    take(&stream, "charge", 1).await;
    assert_eq!(findings(&status(&env, env.nats_url()).await.1), [""; 0]);
}

#[tokio::test]
async fn a_consumer_whose_messages_nobody_acknowledges_is_a_finding() {
    let env = TestEnv::new().await;
    let stream = stocked(&env, config(&env)).await;
    let consumer = Consumer { max_ack_pending: 2, ..durable("charge") };
    stream.create_consumer(consumer).await.unwrap();
    take(&stream, "charge", 2).await;
    let told = eventually("five seconds without an acknowledgement", LIMIT, async || {
        let (_, told) = status(&env, env.nats_url()).await;
        (!findings(&told).is_empty()).then_some(told)
    })
    .await;
    assert_finds(
        &told,
        &["has 2 messages unacknowledged, all that its max_ack_pending allows", "2 wait", "handlers"],
    );
    assert_eq!(doctor_finds(&env, "consumer-full").await, ["warning"]);
}

#[tokio::test]
async fn a_filter_that_no_subject_of_the_stream_matches_is_a_finding() {
    let env = TestEnv::new().await;
    let both = Config { subjects: vec![env.subject("taken.>"), env.subject("moved.>")], ..config(&env) };
    let stream = stocked(&env, both).await;
    let filter_subject = env.subject("moved.*.placed");
    stream.create_consumer(Consumer { filter_subject, ..durable("charge") }).await.unwrap();
    assert_eq!(findings(&status(&env, env.nats_url()).await.1), [""; 0]);
    let context = async_nats::jetstream::new(env.nats().await);
    context.update_stream(&config(&env)).await.unwrap();
    let (_, told) = status(&env, env.nats_url()).await;
    assert_finds(
        &told,
        &["the consumer charge", "moved.*.placed", "never gets a message", "nats consumer edit"],
    );
    assert_eq!(doctor_finds(&env, "consumer-filter").await, ["warning"]);
}

#[tokio::test]
async fn consumers_that_the_user_may_not_see_are_said_to_be_missing() {
    let env = TestEnv::new().await;
    let allowed = r#"["$JS.API.INFO", "$JS.API.STREAM.>"]"#;
    let users = format!(
        "authorization {{ users = [
           {{ user: admin, password: a }}
           {{ user: relay, password: r, permissions = {{ publish: {{ allow: {allowed} }} }} }}
         ] }}"
    );
    let nats = Nats::start_with(&users).await.unwrap();
    let admin = async_nats::ConnectOptions::new().user_and_password("admin".into(), "a".into());
    let admin = async_nats::jetstream::new(admin.connect(nats.url()).await.unwrap());
    let stream = admin.create_stream(config(&env)).await.unwrap();
    stream.create_consumer(durable("charge")).await.unwrap();
    enqueue(&env.pg().await, &env.subject("taken.a"), "m-", 0..1, 0).await;
    let url = nats.url();
    let login = [
        ("DATABASE_URL", env.database_url()),
        ("NATS_URL", &*url),
        ("ONCEBOX_NATS_USER", "relay"),
        ("ONCEBOX_NATS_PASSWORD", "r"),
    ];
    let (code, text, log) = run_with(&["status"], &login).await;
    let line = format!("not shown: the consumers of stream {}: NATS does not let", env.name());
    // A message waits, and there is no relay.
    assert!(code == 1 && text.contains(&line), "{text}{log}");
    let (_, seen) = doctor(env.database_url(), &url, &login[2..]).await;
    assert!(seen.to_string().contains("$JS.API.CONSUMER.LIST.*"), "{seen}");
}
