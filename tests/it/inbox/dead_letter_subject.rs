//! Dead letters are published to a subject at least once, after the row is committed and before the
//! message is acknowledged, and none is lost.

use std::time::Duration;

use async_nats::{
    HeaderMap,
    jetstream::{self, consumer::pull, stream::Stream},
};
use futures_util::StreamExt;
use oncebox_inbox::{Consumer, Error, Inbox, Origin, Outcome, Received, Verdict, dead_letter_id};
use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    inbox::{
        consumer::{Running, consumer, publish, settled},
        support::{Does, LIMIT, SCOPE, builder, count, effects, insert, stream_environment},
    },
    leased::support::Pays,
};

/// A handler that gives up messages with odd numbers.
fn gives_odd_up() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            Ok(if job.n % 2 == 1 { Outcome::dead("odd") } else { Outcome::done(reply) })
        })
    })
}

/// A stream for the dead letters of this test, and its subject.
async fn dead_letter_stream(env: &TestEnv, max_message_size: i32) -> (Stream, String) {
    let subject = format!("dead-{}", env.name());
    let config = jetstream::stream::Config {
        name: subject.clone(),
        subjects: vec![subject.clone()],
        max_message_size,
        ..Default::default()
    };
    (env.jetstream().await.create_stream(config).await.unwrap(), subject)
}

/// All dead letters in this stream.
async fn published(stream: &Stream) -> Vec<(HeaderMap, Vec<u8>)> {
    let last = stream.get_info().await.unwrap().state.last_sequence;
    let mut letters = Vec::new();
    for sequence in 1..=last {
        let message = stream.get_raw_message(sequence).await.unwrap();
        letters.push((message.headers, message.payload.to_vec()));
    }
    letters
}

fn value<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.as_str())
}

async fn await_published(stream: &Stream, expected: usize) {
    eventually("the dead letters are published", LIMIT, async || {
        (published(stream).await.len() >= expected).then_some(())
    })
    .await;
}

async fn consumer_with_short_ack_wait(env: &TestEnv, subject: &str) -> Consumer {
    consumer(env).await.ack_wait(Duration::from_millis(600)).dead_letter_subject(subject)
}

/// One by one and in batches: a message with a key, another payload under a used key, and a message
/// without a key.
#[tokio::test]
async fn each_dead_letter_is_published_with_what_is_known_of_it() {
    for batch in [1, 8] {
        let env = stream_environment().await;
        let (stream, subject) = dead_letter_stream(&env, -1).await;
        let jetstream = env.jetstream().await;
        publish(&jetstream, env.subject("a"), "good", 2, None).await;
        publish(&jetstream, env.subject("b"), "good", 4, None).await;
        publish(&jetstream, env.subject("c"), "bad", 3, Some("line")).await;
        publish(&jetstream, env.subject("d"), "behind", 6, Some("line")).await;
        jetstream.publish(env.subject("e"), "no key".into()).await.unwrap().await.unwrap();
        let inbox = builder(&env).build().unwrap();
        let consumer = consumer(&env).await.concurrency(1).batch(batch).dead_letter_subject(&subject);
        let running = Running::start(consumer, inbox.clone(), gives_odd_up());
        await_published(&stream, 3).await;
        settled(&env).await;
        running.stop().await;
        let mut letters = published(&stream).await;
        letters.sort_by_key(|(headers, _)| value(headers, "Oncebox-Dead-Sequence").to_owned());
        let told: Vec<[&str; 4]> = letters
            .iter()
            .map(|(headers, _)| {
                ["Oncebox-Dead-Sequence", "Oncebox-Dead-Key", "Idempotency-Key", "Oncebox-Dead-Reason"]
                    .map(|name| value(headers, name))
            })
            .collect();
        assert_eq!(told[0], ["2", "good", "good", "the key was used before with another payload"]);
        assert_eq!(told[1], ["3", "bad", "bad", "odd"]);
        assert_eq!((told[2][0], told[2][1], told.len()), ("5", "", 3), "{told:?}");
        let (headers, payload) = &letters[1];
        assert_eq!(payload, b"{\"n\":3}");
        assert_eq!(value(headers, "Oncebox-Dead-Scope"), SCOPE);
        assert_eq!(value(headers, "Oncebox-Dead-Subject"), env.subject("c"));
        assert_eq!(value(headers, "Oncebox-Dead-Stream"), env.name());
        assert_eq!(value(headers, "Oncebox-Dead-Deliveries"), "1");
        assert_eq!(value(headers, "Oncebox-Ordering-Key"), "line");
        let stored_at = env.stream().await.get_raw_message(3).await.unwrap().time.into();
        let place = Origin { stream: env.name().to_owned(), sequence: 3, stored_at };
        assert_eq!(value(headers, "Nats-Msg-Id"), dead_letter_id(SCOPE, &place));
        assert_eq!((inbox.counts().dead_letters_published, effects(&env).await), (3, 2));
    }
}

#[tokio::test]
async fn dead_letters_of_leased_mode_are_published_too() {
    let env = stream_environment().await;
    let (stream, subject) = dead_letter_stream(&env, -1).await;
    publish(&env.jetstream().await, env.subject("a"), "k", 1, None).await;
    let leased = builder(&env).leased(Duration::from_secs(8)).build().unwrap();
    let handler = Pays::new(|_, _| Box::pin(async { Ok(Outcome::dead("no such account")) }));
    let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let consumer = consumer(&env).await.dead_letter_subject(&subject);
    tasks.spawn(consumer.run(leased, handler, shutdown.clone()));
    await_published(&stream, 1).await;
    settled(&env).await;
    Running { shutdown, tasks }.stop().await;
    let letters = published(&stream).await;
    assert_eq!((letters.len(), value(&letters[0].0, "Oncebox-Dead-Reason")), (1, "no such account"));
}

/// Runs a message as a process would that commits its end and dies before the acknowledgement.
async fn dies_after_its_commit(env: &TestEnv, inbox: &Inbox) {
    let config = pull::Config {
        durable_name: Some("d".into()),
        ack_wait: Duration::from_millis(300),
        ..Default::default()
    };
    let raw = env.stream().await.create_consumer(config).await.unwrap();
    let message = raw.fetch().max_messages(1).messages().await.unwrap().next().await.unwrap().unwrap();
    let verdict = inbox.run(&gives_odd_up(), &Received::from_jetstream(&message).unwrap()).await.unwrap();
    assert!(matches!(verdict, Verdict::Dead { .. }), "{verdict:?}");
}

#[tokio::test]
async fn a_crash_between_the_row_and_the_letter_loses_neither() {
    let env = stream_environment().await;
    let (stream, subject) = dead_letter_stream(&env, -1).await;
    publish(&env.jetstream().await, env.subject("a"), "k", 1, None).await;
    let inbox = builder(&env).build().unwrap();
    dies_after_its_commit(&env, &inbox).await;
    assert_eq!((count(&env, "oncebox.dead_letter").await, published(&stream).await.len()), (1, 0));
    let running =
        Running::start(consumer_with_short_ack_wait(&env, &subject).await, inbox.clone(), gives_odd_up());
    await_published(&stream, 1).await;
    settled(&env).await;
    running.stop().await;
    assert_eq!((count(&env, "oncebox.dead_letter").await, published(&stream).await.len()), (1, 1));
}

/// The dead letter is published, but the acknowledgement of the message is lost. So the message is
/// delivered again, and the dead letter is published again under the same id.
#[tokio::test]
async fn a_crash_between_the_letter_and_the_acknowledgement_repeats_it_under_the_same_id() {
    let env = stream_environment().await;
    let (stream, subject) = dead_letter_stream(&env, -1).await;
    publish(&env.jetstream().await, env.subject("a"), "k", 1, None).await;
    let url: async_nats::ServerAddr = env.nats_url().parse().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], url.port()).into()).await;
    let client = async_nats::connect(format!("nats://127.0.0.1:{}", proxy.port())).await.unwrap();
    let consumer = Consumer::new(jetstream::new(client), env.name(), "d").dead_letter_subject(&subject);
    let consumer = consumer.ack_wait(Duration::from_millis(600));
    proxy.lose_when_client_sends(b"+TERM");
    let inbox = builder(&env).build().unwrap();
    let running = Running::start(consumer, inbox.clone(), gives_odd_up());
    eventually("published twice", LIMIT, async || (inbox.counts().dead_letters_published == 2).then_some(()))
        .await;
    settled(&env).await;
    running.stop().await;
    assert!(!proxy.is_armed());
    assert_eq!((count(&env, "oncebox.dead_letter").await, published(&stream).await.len()), (1, 1));
}

/// While no stream takes dead letters, their messages stay unacknowledged and other messages are
/// handled. When a stream takes them, all dead letters are published.
#[tokio::test]
async fn a_letter_that_is_not_taken_holds_nobody_up_and_is_not_lost() {
    let env = stream_environment().await;
    let (_, subject) = dead_letter_stream(&env, -1).await;
    let jetstream = env.jetstream().await;
    let inbox = builder(&env).build().unwrap();
    let running = Running::start(
        consumer_with_short_ack_wait(&env, &subject).await.concurrency(1),
        inbox.clone(),
        gives_odd_up(),
    );
    publish(&jetstream, env.subject("a"), "first", 2, None).await;
    eventually("it consumes", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    jetstream.delete_stream(&subject).await.unwrap();
    publish(&jetstream, env.subject("a"), "dies", 1, Some("line")).await;
    publish(&jetstream, env.subject("a"), "behind", 4, Some("line")).await;
    publish(&jetstream, env.subject("a"), "other", 6, None).await;
    eventually("the others go on", LIMIT, async || (effects(&env).await == 3).then_some(())).await;
    eventually("it is tried again", LIMIT, async || (inbox.counts().dead_letters_failed >= 2).then_some(()))
        .await;
    let info = env.stream().await.consumer_info("d").await.unwrap();
    assert_eq!(info.num_ack_pending, 1, "the message is not settled");
    let (stream, _) = dead_letter_stream(&env, -1).await;
    await_published(&stream, 1).await;
    settled(&env).await;
    running.stop().await;
    assert_eq!((published(&stream).await.len(), count(&env, "oncebox.dead_letter").await), (1, 1));
}

/// A dead letter is tried for a day after its row was written, and then only the row remains. A
/// dead letter that an operator has discarded is not published.
#[tokio::test]
async fn an_old_letter_is_given_up_and_a_discarded_one_is_not_published() {
    let env = stream_environment().await;
    let (stream, subject) = dead_letter_stream(&env, -1).await;
    let jetstream = env.jetstream().await;
    let inbox = builder(&env).build().unwrap();
    publish(&jetstream, env.subject("a"), "discarded", 1, None).await;
    dies_after_its_commit(&env, &inbox).await;
    env.pg().await.batch_execute("DELETE FROM oncebox.dead_letter").await.unwrap();
    let running =
        Running::start(consumer_with_short_ack_wait(&env, &subject).await, inbox.clone(), gives_odd_up());
    settled(&env).await;
    assert_eq!((published(&stream).await.len(), inbox.counts().dead_letters_published), (0, 0));

    jetstream.delete_stream(&subject).await.unwrap();
    publish(&jetstream, env.subject("a"), "old", 3, None).await;
    eventually("it is tried", LIMIT, async || (inbox.counts().dead_letters_failed >= 1).then_some(())).await;
    let age = "UPDATE oncebox.dead_letter SET created_at = created_at - interval '25 hours'";
    env.pg().await.batch_execute(age).await.unwrap();
    settled(&env).await;
    running.stop().await;
    assert_eq!(count(&env, "oncebox.dead_letter").await, 1);
}

/// A message of the largest size leaves no room for the headers of its dead letter.
#[tokio::test]
async fn a_letter_that_would_be_too_large_comes_without_its_payload() {
    let env = stream_environment().await;
    let (stream, subject) = dead_letter_stream(&env, 1000).await;
    let jetstream = env.jetstream().await;
    let large = format!("{{\"n\":{}1}}", " ".repeat(900));
    let mut headers = HeaderMap::new();
    headers.insert("Idempotency-Key", "k");
    jetstream
        .publish_with_headers(env.subject("a"), headers, large.clone().into())
        .await
        .unwrap()
        .await
        .unwrap();
    let inbox = builder(&env).build().unwrap();
    let running =
        Running::start(consumer_with_short_ack_wait(&env, &subject).await, inbox.clone(), gives_odd_up());
    await_published(&stream, 1).await;
    settled(&env).await;
    running.stop().await;
    let (headers, payload) = published(&stream).await.remove(0);
    assert_eq!((value(&headers, "Oncebox-Dead-Payload"), payload.len()), ("left out", 0));
    assert_eq!((value(&headers, "Oncebox-Dead-Key"), value(&headers, "Oncebox-Dead-Reason")), ("k", "odd"));
    let row = env.pg().await.query_one("SELECT payload FROM oncebox.dead_letter", &[]).await.unwrap();
    assert_eq!(row.get::<_, Vec<u8>>(0), large.as_bytes(), "the row has it whole");
}

#[tokio::test]
async fn a_subject_that_cannot_work_is_refused_at_the_start() {
    let env = stream_environment().await;
    let start = async |subject: &str, filter: Option<String>| -> Error {
        let mut consumer = consumer(&env).await.dead_letter_subject(subject);
        if let Some(filter) = filter {
            consumer = consumer.filter_subject(filter);
        }
        let running = consumer.run(builder(&env).build().unwrap(), gives_odd_up(), CancellationToken::new());
        tokio::time::timeout(LIMIT, running).await.expect("an answer").unwrap_err()
    };
    let error = start(&format!("nobody-takes-{}", env.name()), None).await;
    assert!(matches!(&error, Error::Broker(what, _) if what.contains("nobody-takes")), "{error}");
    let error = start("dead..letters", None).await;
    assert!(
        matches!(&error, Error::Invalid(_)) && error.to_string().contains("dead_letter_subject"),
        "{error}"
    );
    for filter in [None, Some(env.subject(">")), Some(env.subject("dead"))] {
        let error = start(&env.subject("dead"), filter).await;
        assert!(error.to_string().contains("its dead letters would die again"), "{error}");
    }
    assert!(env.stream().await.consumer_info("d").await.is_err(), "nothing was set up");
    // The subject may be in the same stream, if the consumer's filter leaves it out.
    let consumer = consumer(&env).await.filter_subject(env.subject("a"));
    let inbox = builder(&env).build().unwrap();
    let running =
        Running::start(consumer.dead_letter_subject(env.subject("dead")), inbox.clone(), gives_odd_up());
    publish(&env.jetstream().await, env.subject("a"), "k", 1, None).await;
    eventually("it is published", LIMIT, async || (inbox.counts().dead_letters_published == 1).then_some(()))
        .await;
    settled(&env).await;
    running.stop().await;
}
