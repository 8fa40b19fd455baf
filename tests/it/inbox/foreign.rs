//! Messages of others: several types and subjects in one consumer, CloudEvents, Debezium's records,
//! and keys and tenants from anywhere in a message.

use async_nats::{HeaderMap, jetstream::consumer::pull};
use oncebox_inbox::{
    CloudEvent, Context, Decode, DecodeError, Handler, HandlerError, Inbox, KeySource, Outcome, Part,
    Received, Verdict,
};
use oncebox_tests::{Nats, TestEnv, eventually, is_settled};
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::inbox::{
    consumer::consumer,
    support::{Job, LIMIT, SCOPE, builder, dead_letters, environment, stream_environment},
};

/// Two types, by subject, one of them not JSON.
#[derive(Debug)]
enum Event {
    Job(Job),
    Raw(Vec<u8>),
}

impl Decode for Event {
    fn decode(received: &Received) -> Result<Self, DecodeError> {
        match received.subject().rsplit('.').next() {
            Some("job") => Job::decode(received).map(Self::Job),
            Some("raw") if received.header_value("Kind") == Some("bytes") => {
                Ok(Self::Raw(received.payload().to_vec()))
            }
            _ => Err(DecodeError::new("of no kind that is known here")),
        }
    }
}

/// Records its messages.
struct Record;

async fn record(cx: &Context<'_>, n: i64) -> Result<Outcome<()>, HandlerError> {
    let sql = "INSERT INTO effect (key, n, line) VALUES ($1, $2, $3)";
    cx.transaction().execute(sql, &[&cx.key().as_str(), &n, &cx.tenant()]).await?;
    Ok(Outcome::done(()))
}

impl Handler for Record {
    type Message = Event;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, event: Event) -> Result<Outcome<()>, HandlerError> {
        let n = match event {
            Event::Job(job) => job.n,
            Event::Raw(bytes) => bytes.iter().map(|byte| i64::from(*byte)).sum(),
        };
        record(&cx, n).await
    }
}

/// By a nats-server that does not know them: no consumer is made, none loses its filter.
async fn several_filters_are_refused(env: &TestEnv) {
    let stream = env.stream().await;
    let run = async || {
        let consumer = consumer(env).await.filter_subjects([env.subject("a.>"), env.subject("b.>")]);
        let running = consumer.run(builder(env).build().unwrap(), Record, CancellationToken::new());
        let refused = running.await.unwrap_err().to_string();
        assert!(refused.contains("several filter_subjects need nats-server 2.10"), "{refused}");
    };
    run().await;
    let left = stream.consumer_info("d").await;
    assert!(left.is_err(), "no consumer without a filter is left behind: {left:?}");
    let filter_subject = env.subject("a.>");
    let config = pull::Config {
        durable_name: Some("d".to_owned()),
        filter_subject: filter_subject.clone(),
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.unwrap();
    run().await;
    assert_eq!(stream.consumer_info("d").await.unwrap().config.filter_subject, filter_subject);
}

/// Takes the data of an event.
struct OfEvent;

impl Handler for OfEvent {
    type Message = CloudEvent<Job>;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, event: CloudEvent<Job>) -> Result<Outcome<()>, HandlerError> {
        assert_eq!((event.id.as_str(), event.kind.as_str()), ("4711", "order.placed"));
        record(&cx, event.data.n).await
    }
}

async fn rows(env: &TestEnv) -> Vec<String> {
    let sql = "SELECT key || ' ' || n || ' ' || line FROM effect ORDER BY key, line";
    let rows = env.pg().await.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn one_consumer_takes_several_types_of_several_subjects() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let publish = async |tail: &str, key: &str, payload: &'static [u8]| {
        let mut headers = HeaderMap::new();
        headers.insert("Idempotency-Key", key);
        headers.insert("Kind", "bytes");
        let subject = env.subject(tail);
        jetstream.publish_with_headers(subject, headers, payload.into()).await.unwrap().await.unwrap();
    };
    publish("a.job", "job", br#"{"n": 7}"#).await;
    publish("b.raw", "raw", &[0xff, 1, 0]).await;
    publish("b.other", "other", b"").await;
    publish("b.job", "no-job", b"no json").await;
    publish("c.job", "elsewhere", br#"{"n": 1}"#).await;
    let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
    if Nats::version().unwrap() < (2, 10) {
        return several_filters_are_refused(&env).await;
    }
    let consumer = consumer(&env).await.filter_subjects([env.subject("a.>"), env.subject("b.>")]);
    tasks.spawn(consumer.run(builder(&env).build().unwrap(), Record, shutdown.clone()));
    let stream = env.stream().await;
    eventually("all are settled", LIMIT, async || is_settled(&stream, "d").await.then_some(())).await;
    shutdown.cancel();
    tasks.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(rows(&env).await, ["job 7 ", "raw 256 "]);
    let mut reasons = dead_letters(&env).await;
    reasons.sort();
    assert_eq!(reasons, ["of no kind that is known here", "the payload is no JSON, line 1 column 2"]);
}

fn inbox(env: &TestEnv, keys: impl Into<Vec<KeySource>>) -> Inbox {
    builder(env).key_from(keys).build().unwrap()
}

#[tokio::test]
async fn cloud_events_of_both_modes_are_one_event() {
    let env = environment().await;
    let inbox = inbox(&env, KeySource::CloudEvent);
    let binary = |source: &str, payload: &'static str| {
        let message =
            Received::new("orders", payload).header("ce-specversion", "1.0").header("ce-id", "4711");
        message.header("ce-source", source).header("ce-type", "order.placed")
    };
    for (message, expected) in [
        (binary("/shop", r#"{"n": 7}"#), "handled"),
        (binary("/shop", r#"{"n": 7}"#), "replayed"),
        (binary("/bank", r#"{"n": 8}"#), "handled"),
    ] {
        let verdict = inbox.run(&OfEvent, &message).await.unwrap();
        let said = if matches!(verdict, Verdict::Handled(_)) { "handled" } else { "replayed" };
        assert_eq!(said, expected, "{verdict:?}");
    }
    let structured = r#"{"specversion": "1.0", "id": "4711", "source": "/post", "type": "order.placed", "data": {"n": 9}}"#;
    let structured =
        Received::new("orders", structured).header("content-type", "application/cloudevents+json");
    assert!(matches!(inbox.run(&OfEvent, &structured).await.unwrap(), Verdict::Handled(_)));
    assert!(matches!(inbox.run(&OfEvent, &structured).await.unwrap(), Verdict::Replayed(_)));
    let nameless = Received::new("orders", r#"{"n": 7}"#);
    assert!(matches!(inbox.run(&OfEvent, &nameless).await.unwrap(), Verdict::Dead { .. }));
    let mut effects: Vec<i64> = env
        .pg()
        .await
        .query("SELECT n FROM effect", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    effects.sort_unstable();
    assert_eq!(effects, [7, 8, 9]);
}

#[tokio::test]
async fn keys_and_tenants_come_from_anywhere() {
    #[derive(Deserialize)]
    struct Anything {}
    struct Any;
    impl Handler for Any {
        type Message = Anything;
        type Reply = ();

        async fn handle(&self, cx: Context<'_>, _: Anything) -> Result<Outcome<()>, HandlerError> {
            record(&cx, 1).await
        }
    }
    let env = environment().await;
    let message = || Received::new("events.acme.orders", r#"{"payload": {"id": "p1"}, "n": 3}"#);
    for (keys, message, expected) in [
        (KeySource::debezium(), message(), "p1"),
        (KeySource::debezium(), message().header("id", "h:1"), "h%3A1"),
        (vec![KeySource::Part(Part::json("/n"))], message(), "3"),
        (
            vec![KeySource::Part(Part::with(|message| Some(format!("x{}", message.subject().len()))))],
            message(),
            "x18",
        ),
        (
            vec![KeySource::client_header("Nats-Msg-Id")],
            message().header("Nats-Msg-Id", "any:id"),
            "any%3Aid",
        ),
    ] {
        let inbox = Inbox::builder(env.pool(2)).scope(SCOPE).tenant_from(Part::subject_token(1));
        let inbox = inbox.key_from(keys).build().unwrap();
        let verdict = inbox.run(&Any, &message).await.unwrap();
        assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
        assert!(rows(&env).await.contains(&format!("{expected} 1 acme")), "{expected}");
    }
    let nobodys = Received::new("events", r#"{"n": 3}"#);
    let inbox = Inbox::builder(env.pool(2)).scope(SCOPE).tenant_from(Part::subject_token(1));
    let inbox = inbox.key_from(KeySource::Part(Part::json("/n"))).build().unwrap();
    let Verdict::Dead { reason } = inbox.run(&Any, &nobodys).await.unwrap() else {
        panic!("without a tenant")
    };
    assert_eq!(reason, "tenant token 1 of the subject is missing");
}
