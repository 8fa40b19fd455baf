//! The consumer runtime on a real stream.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_nats::{
    HeaderMap,
    jetstream::{self, consumer::pull},
};
use futures_util::StreamExt;
use oncebox_inbox::{Consumer, Error, HandlerError, Inbox, Outcome, Runs};
use oncebox_tests::{Log, Nats, Postgres, Stop, TestEnv, eventually, is_settled};
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::inbox::support::{
    Does, Job, LIMIT, SCOPE, builder, dead_letters, effects, inbox, insert, stream_environment,
};

/// A consumer that runs, and is stopped and awaited by `stop`.
pub(crate) struct Running {
    pub(crate) shutdown: CancellationToken,
    pub(crate) tasks: JoinSet<Result<(), Error>>,
}

impl Running {
    pub(crate) fn start<H, I>(consumer: Consumer, inbox: I, handler: H) -> Self
    where
        H: Send + 'static,
        I: Runs<H> + Send + 'static,
    {
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(consumer.run(inbox, handler, shutdown.clone()));
        Self { shutdown, tasks }
    }

    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        let ended = timeout(LIMIT, self.tasks.join_next()).await.expect("a shutdown in time");
        ended.unwrap().unwrap().unwrap();
    }
}

pub(crate) async fn consumer(env: &TestEnv) -> Consumer {
    Consumer::new(env.jetstream().await, env.name(), "d").ack_wait(Duration::from_secs(2))
}

pub(crate) async fn publish(
    jetstream: &jetstream::Context,
    subject: String,
    key: &str,
    n: i64,
    line: Option<&str>,
) {
    let mut headers = HeaderMap::new();
    headers.insert("Idempotency-Key", key);
    if let Some(line) = line {
        headers.insert("Oncebox-Ordering-Key", line);
    }
    let payload = serde_json::to_vec(&Job { n }).unwrap();
    jetstream.publish_with_headers(subject, headers, payload.into()).await.unwrap().await.unwrap();
}

/// All messages are acknowledged, or given up.
pub(crate) async fn settled(env: &TestEnv) {
    let stream = env.stream().await;
    eventually("every message is settled", LIMIT, async || is_settled(&stream, "d").await.then_some(()))
        .await;
}

#[tokio::test]
async fn every_message_has_one_effect_however_often_it_is_published() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    let running = Running::start(consumer(&env).await.concurrency(4), inbox.clone(), handler.clone());
    for round in 0..3 {
        for n in 0..40 {
            publish(&jetstream, env.subject(&format!("r{round}")), &format!("k{n}"), n, None).await;
        }
    }
    settled_after(&env, 120).await;
    running.stop().await;
    let counts = inbox.counts();
    assert_eq!((effects(&env).await, counts.handled, counts.dead), (40, 40, 0));
    assert_eq!(counts.replayed, 80);
}

/// The consumer has been created and got past this sequence.
pub(crate) async fn settled_after(env: &TestEnv, sequence: u64) {
    let stream = env.stream().await;
    eventually("the floor rises", LIMIT, async || {
        let info = stream.consumer_info("d").await.ok()?;
        (info.ack_floor.stream_sequence >= sequence).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_commit_before_a_lost_acknowledgement_is_replayed() {
    let env = stream_environment().await;
    publish(&env.jetstream().await, env.subject("a"), "k", 7, None).await;
    let inbox = inbox(&env);
    let handler = Does::effect();
    let config = pull::Config {
        durable_name: Some("d".into()),
        ack_wait: Duration::from_millis(500),
        ..Default::default()
    };
    let raw = env.stream().await.create_consumer(config).await.unwrap();
    let message = raw.fetch().max_messages(1).messages().await.unwrap().next().await.unwrap().unwrap();
    let received = oncebox_inbox::Received::from_jetstream(&message).unwrap();
    inbox.run(&handler, &received).await.unwrap();
    // No acknowledgement: the process died here.
    let running = Running::start(consumer(&env).await, inbox.clone(), handler.clone());
    settled_after(&env, 1).await;
    running.stop().await;
    assert_eq!((handler.runs(), effects(&env).await, inbox.counts().replayed), (1, 1, 1));
}

/// Retries, dead letters and poison: the others flow, and everything is settled in the end.
#[tokio::test]
async fn failures_delay_only_themselves() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let inbox = builder(&env).attempts_max(3).build().unwrap();
    let seen: Arc<Mutex<HashMap<i64, u64>>> = Arc::default();
    let handler = Does::new(move |cx, job| {
        let run = *seen.lock().unwrap().entry(job.n).and_modify(|runs| *runs += 1).or_insert(1);
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            match job.n % 4 {
                0 => Ok(Outcome::dead("not this one")),
                1 => Err(HandlerError::message("never")),
                2 if run == 1 => panic!("once"),
                _ => Ok(Outcome::done(reply)),
            }
        })
    });
    let running = Running::start(consumer(&env).await, inbox.clone(), handler);
    for n in 0..16 {
        let line = (n % 2 == 0).then_some("even");
        publish(&jetstream, env.subject("a"), &format!("k{n}"), n, line).await;
    }
    jetstream.publish(env.subject("a"), "no headers".into()).await.unwrap().await.unwrap();
    settled_after(&env, 17).await;
    running.stop().await;
    let counts = inbox.counts();
    assert_eq!((effects(&env).await, counts.handled, counts.dead), (8, 8, 9));
    assert_eq!(dead_letters(&env).await.len(), 9);
}

#[tokio::test]
async fn a_slow_handler_is_not_delivered_again() {
    let env = stream_environment().await;
    publish(&env.jetstream().await, env.subject("a"), "slow", 7, Some("line")).await;
    publish(&env.jetstream().await, env.subject("a"), "behind", 8, Some("line")).await;
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            assert_eq!(cx.message().delivery_count(), 1, "waiting costs no delivery");
            let reply = insert(cx, &job).await?;
            tokio::time::sleep(Duration::from_millis(1500)).await;
            Ok(Outcome::done(reply))
        })
    });
    let inbox = inbox(&env);
    let consumer = consumer(&env).await.ack_wait(Duration::from_millis(600));
    let running = Running::start(consumer, inbox.clone(), handler.clone());
    settled_after(&env, 2).await;
    let info = env.stream().await.consumer_info("d").await.unwrap();
    running.stop().await;
    assert_eq!((handler.runs(), info.delivered.consumer_sequence, inbox.counts().retried), (2, 2, 0));
}

#[tokio::test]
async fn the_consumer_is_brought_up_to_date_and_recreated() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let stream = env.stream().await;
    let old = pull::Config {
        durable_name: Some("d".into()),
        description: Some("kept".into()),
        max_deliver: 2,
        max_ack_pending: 1,
        ..Default::default()
    };
    stream.create_consumer(old).await.unwrap();
    let inbox = inbox(&env);
    let running =
        Running::start(consumer(&env).await.filter_subject(env.subject("a")), inbox.clone(), Does::effect());
    publish(&jetstream, env.subject("b"), "other", 1, None).await;
    publish(&jetstream, env.subject("a"), "k1", 1, None).await;
    eventually("the first effect", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    let config = stream.consumer_info("d").await.unwrap().config;
    assert_eq!((config.max_deliver, config.ack_wait), (-1, Duration::from_secs(2)));
    assert_eq!(config.max_ack_pending, 1024);
    assert_eq!((config.filter_subject, config.description), (env.subject("a"), Some("kept".to_owned())));
    stream.delete_consumer("d").await.unwrap();
    publish(&jetstream, env.subject("a"), "k2", 2, None).await;
    eventually("the second effect", LIMIT, async || (effects(&env).await == 2).then_some(())).await;
    settled(&env).await;
    running.stop().await;
    assert_eq!((inbox.counts().handled, inbox.counts().replayed), (2, 1));
}

#[tokio::test]
async fn a_start_without_its_stream_or_with_impossible_settings_fails() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let missing = Consumer::new(jetstream.clone(), "NO_SUCH_STREAM", "d");
    let error = missing.run(inbox(&env), Does::effect(), CancellationToken::new()).await.unwrap_err();
    assert!(matches!(&error, Error::Broker(what, _) if what.contains("NO_SUCH_STREAM")), "{error}");
    let wrong = Consumer::new(jetstream, "a.b", "").concurrency(0).ack_wait(Duration::ZERO);
    let error =
        wrong.run(inbox(&env), Does::effect(), CancellationToken::new()).await.unwrap_err().to_string();
    for part in ["stream name", "durable name", "concurrency", "ack_wait"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[tokio::test]
async fn a_filter_that_nothing_can_match_is_refused_and_a_start_says_what_is_consumed() {
    let env = stream_environment().await;
    let filtered = async |filter: String| consumer(&env).await.filter_subject(filter).concurrency(3);
    let refused = async |consumer: Consumer| {
        let run = consumer.run(inbox(&env), Does::effect(), CancellationToken::new());
        timeout(LIMIT, run).await.expect("it does not start").unwrap_err().to_string()
    };
    let error = refused(filtered("elsewhere.>".to_owned()).await).await;
    assert!(error.contains("elsewhere.>") && error.contains(&env.subject(">")), "{error}");

    // Stored messages of a subject that the stream takes no more can be consumed; nats-server 2.9
    // itself refuses that.
    let (stream, jetstream) = (env.stream().await, env.jetstream().await);
    let is_old = jetstream.client().server_info().version.starts_with("2.9.");
    let taken = env.subject(if is_old { "new" } else { "old" });
    let filter = format!("{taken}.*");
    publish(&jetstream, format!("{taken}.a"), "k", 1, None).await;
    let config = stream.cached_info().config.clone();
    let moved = jetstream::stream::Config { subjects: vec![env.subject("new.>")], ..config };
    jetstream.update_stream(&moved).await.unwrap();
    let (log, _guard) = Log::of_this_thread();
    let running = Running::start(filtered(filter.clone()).await, inbox(&env), Does::effect());
    eventually("the effect", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    running.stop().await;
    let said = log.text();
    let line = said.lines().find(|line| line.contains("the consumer starts")).expect(&said);
    for part in [
        format!("stream=\"{}\"", env.name()),
        format!("filter=\"{filter}\""),
        format!("scope=\"{SCOPE}\""),
        "durable=\"d\"".to_owned(),
        "mode=\"in transactions\"".to_owned(),
        "order=PerProcess".to_owned(),
        "concurrency=3".to_owned(),
        "ack_wait=2s".to_owned(),
    ] {
        assert!(line.contains(&part), "{part}: {line}");
    }
    stream.purge().await.unwrap();
    let error = refused(filtered(env.subject("old.*")).await).await;
    assert!(error.contains("nothing would ever be consumed"), "{error}");
}

/// Both servers go and come back; nothing is lost, doubled, or given up, although the delivery
/// limit is 2.
#[tokio::test]
async fn outages_of_both_servers_cost_nothing() {
    let (mut postgres, mut nats) = (Postgres::start().await.unwrap(), Nats::start().await.unwrap());
    let pg = async |url: String| {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move { drop(connection.await) });
        (client, task)
    };
    let (mut client, _connection) = pg(postgres.url("postgres")).await;
    oncebox_schema::migrate(&mut client, &Default::default(), Default::default()).await.unwrap();
    client.batch_execute("CREATE TABLE effect (id bigserial, key text, n bigint, line text)").await.unwrap();
    let jetstream = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let config =
        jetstream::stream::Config { name: "S".into(), subjects: vec!["s.>".into()], ..Default::default() };
    jetstream.create_stream(config).await.unwrap();
    let manager =
        deadpool_postgres::Manager::new(postgres.url("postgres").parse().unwrap(), tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(4).build().unwrap();
    let inbox = Inbox::builder(pool).scope("a:b").single_tenant().attempts_max(2).build().unwrap();
    let consumer = Consumer::new(jetstream.clone(), "S", "d").ack_wait(Duration::from_secs(5)).concurrency(4);
    let running = Running::start(consumer, inbox.clone(), Does::effect());
    for n in 0..30 {
        publish(&jetstream, "s.a".into(), &format!("k{n}"), n, Some(["a", "b"][usize::from(n % 3 == 0)]))
            .await;
        if n % 10 == 5 {
            let some = async || (inbox.counts().handled > u64::try_from(n - 5).unwrap()).then_some(());
            eventually("it consumes", LIMIT, some).await;
        }
        if n == 10 {
            postgres.restart(Stop::Immediate).await.unwrap();
        }
        if n == 20 {
            nats.restart().await.unwrap();
        }
    }
    let (client, _connection) = pg(postgres.url("postgres")).await;
    eventually("all effects", Duration::from_secs(60), async || {
        let row = client.query_one("SELECT count(*), count(DISTINCT key) FROM effect", &[]).await.unwrap();
        (row.get::<_, i64>(0) == 30 && row.get::<_, i64>(1) == 30).then_some(())
    })
    .await;
    running.stop().await;
    assert_eq!((inbox.counts().dead, inbox.counts().mismatched), (0, 0));
}
