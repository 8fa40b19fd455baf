//! The messages that a consumer holds: for a limited time, and of this stream and no other.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream;
use oncebox_inbox::{Consumer, Outcome};
use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::{sync::Semaphore, time::Instant};

use crate::inbox::{
    consumer::{Running, consumer, publish, settled},
    support::{Does, LIMIT, effects, inbox, insert, stream_environment},
};

/// Waits for a permit when `n` is 1; every effect counts.
fn first_waits() -> (Does, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let handler = Does::new({
        let permits = Arc::clone(&permits);
        move |cx, job| {
            let permits = Arc::clone(&permits);
            Box::pin(async move {
                if job.n == 1 {
                    permits.acquire().await?.forget();
                }
                Ok(Outcome::done(insert(cx, &job).await?))
            })
        }
    });
    (handler, permits)
}

async fn impatient(env: &TestEnv) -> Consumer {
    consumer(env).await.ack_wait(Duration::from_millis(600)).hold_max(Duration::from_millis(1200))
}

/// The hard cap of the heartbeats: a handler that hangs does not keep a message for ever.
/// PostgreSQL keeps the other process's copy out as long as the first one's transaction lasts.
#[tokio::test]
async fn a_message_held_for_too_long_is_delivered_elsewhere() {
    let env = stream_environment().await;
    publish(&env.jetstream().await, env.subject("a"), "k", 1, None).await;
    let (handler, permits) = first_waits();
    let (inbox, other) = (inbox(&env), inbox(&env));
    let first = Running::start(impatient(&env).await, inbox.clone(), handler.clone());
    eventually("the handler runs", LIMIT, async || (handler.runs() == 1).then_some(())).await;
    let second = Running::start(impatient(&env).await, other.clone(), handler.clone());
    eventually("the other process has a copy", LIMIT, async || (other.counts().in_flight > 0).then_some(()))
        .await;
    permits.add_permits(1);
    settled(&env).await;
    first.stop().await;
    second.stop().await;
    assert_eq!((handler.runs(), effects(&env).await), (1, 1));
}

/// A recreated stream counts from 1 again: messages of the old one settle nothing of the new one.
#[tokio::test]
async fn a_recreated_stream_is_consumed_from_its_beginning() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    publish(&jetstream, env.subject("a"), "old", 1, None).await;
    let (handler, permits) = first_waits();
    let inbox = inbox(&env);
    let running = Running::start(consumer(&env).await, inbox.clone(), handler.clone());
    eventually("the handler runs", LIMIT, async || (handler.runs() == 1).then_some(())).await;
    jetstream.delete_stream(env.name()).await.unwrap();
    let config = jetstream::stream::Config {
        name: env.name().to_owned(),
        subjects: vec![format!("{}.>", env.name())],
        ..Default::default()
    };
    jetstream.create_stream(config).await.unwrap();
    for n in 2..=5 {
        publish(&jetstream, env.subject("a"), &format!("new-{n}"), n, None).await;
    }
    eventually("the new messages' effects", LIMIT, async || (effects(&env).await == 4).then_some(())).await;
    permits.add_permits(1);
    settled(&env).await;
    running.stop().await;
    assert_eq!(
        (effects(&env).await, inbox.counts().handled),
        (4, 4),
        "what was held of the old one is dropped"
    );
}

/// The consumer's own connection to NATS, through a proxy.
async fn through_proxy(env: &TestEnv) -> (Proxy, Consumer) {
    let url: async_nats::ServerAddr = env.nats_url().parse().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], url.port()).into()).await;
    let client = async_nats::connect(format!("nats://127.0.0.1:{}", proxy.port())).await.unwrap();
    let consumer = Consumer::new(jetstream::new(client), env.name(), "d").ack_wait(Duration::from_secs(2));
    (proxy, consumer)
}

/// A pull that the server never heard of is never answered: the connection is fine, and no message
/// comes. The consumer waits for the answer for as long as a pull may take, and a second, and pulls
/// again: 6 seconds. (The client library gives up after 10.)
#[tokio::test]
async fn a_pull_that_gets_no_answer_is_noticed_and_made_again() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let (proxy, consumer) = through_proxy(&env).await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    let running = Running::start(consumer, inbox.clone(), handler.clone());
    publish(&jetstream, env.subject("a"), "k1", 1, None).await;
    eventually("the first effect", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    proxy.lose_when_client_sends(b"CONSUMER.MSG.NEXT");
    eventually("the next pull is lost", LIMIT, async || (!proxy.is_armed()).then_some(())).await;
    publish(&jetstream, env.subject("a"), "k2", 2, None).await;
    let lost = Instant::now();
    eventually("the second effect", LIMIT, async || (effects(&env).await == 2).then_some(())).await;
    assert!(lost.elapsed() < Duration::from_secs(9), "{:?}", lost.elapsed());
    settled(&env).await;
    running.stop().await;
    assert_eq!((handler.runs(), inbox.counts().handled), (2, 2));
}

/// The server goes silent for longer than a pull may take, with the connection open, and comes
/// back: everything is handled once, also messages that were on their way.
#[tokio::test]
async fn a_server_that_goes_silent_costs_only_time() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let (proxy, consumer) = through_proxy(&env).await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    let running = Running::start(consumer, inbox.clone(), handler.clone());
    let send = async |n: i64| publish(&jetstream, env.subject("a"), &format!("k{n}"), n, None).await;
    for n in 0..10 {
        send(n).await;
    }
    // Before it has begun nothing is on its way to it.
    eventually("the first effects", LIMIT, async || (effects(&env).await == 10).then_some(())).await;
    proxy.stall(true);
    for n in 10..40 {
        send(n).await;
    }
    tokio::time::sleep(Duration::from_secs(8)).await;
    proxy.stall(false);
    eventually("all effects", LIMIT, async || (effects(&env).await == 40).then_some(())).await;
    settled(&env).await;
    running.stop().await;
    assert_eq!((handler.runs(), inbox.counts().dead), (40, 0));
}

/// Of both settings the user's word counts, else a value that follows from the concurrency.
#[tokio::test]
async fn ack_wait_and_max_ack_pending_are_derived_unless_they_are_set() {
    let env = stream_environment().await;
    let stream = env.stream().await;
    let fresh = async || Consumer::new(env.jetstream().await, env.name(), "d").concurrency(64);
    let set = fresh().await.ack_wait(Duration::from_secs(7)).max_ack_pending(50);
    for (consumer, ack_wait, pending) in [(fresh().await, 6, 4096), (set, 7, 50), (fresh().await, 6, 4096)] {
        let running = Running::start(consumer, inbox(&env), Does::effect());
        eventually("it is brought up to date", LIMIT, async || {
            let config = stream.consumer_info("d").await.ok()?.config;
            let found = (config.ack_wait, config.max_ack_pending);
            (found == (Duration::from_secs(ack_wait), pending)).then_some(())
        })
        .await;
        running.stop().await;
    }
}
