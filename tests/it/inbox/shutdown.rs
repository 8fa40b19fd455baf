//! A consumer that is told to end, and its messages.

use std::{sync::Arc, time::Duration};

use async_nats::{ServerAddr, jetstream};
use oncebox_inbox::Consumer;
use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::sync::Notify;

use crate::inbox::{
    consumer::{Running, consumer, publish, settled_after},
    support::{Does, LIMIT, effects, inbox, insert, stream_environment},
};

#[tokio::test]
async fn a_shutdown_lets_handlers_finish_and_gives_the_rest_back() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let (handler, entered, leave) = Does::effect_that_waits();
    for n in 0..5 {
        publish(&jetstream, env.subject("a"), &format!("k{n}"), n, None).await;
    }
    let slow = consumer(&env).await.ack_wait(Duration::from_secs(60)).concurrency(1);
    let running = Running::start(slow.clone(), inbox(&env), handler.clone());
    entered.notified().await;
    running.shutdown.cancel();
    leave.notify_one();
    running.stop().await;
    assert_eq!((handler.runs(), effects(&env).await), (1, 1));
    // The rest was given back: it is there long before ack_wait is over.
    let running = Running::start(slow, inbox(&env), Does::effect());
    settled_after(&env, 5).await;
    running.stop().await;
    assert_eq!(effects(&env).await, 5);
}

#[tokio::test]
async fn a_handler_that_outlasts_the_grace_period_is_cut_off() {
    let env = stream_environment().await;
    publish(&env.jetstream().await, env.subject("a"), "k", 7, None).await;
    let entered = Arc::new(Notify::new());
    let stuck = Does::new({
        let entered = Arc::clone(&entered);
        move |cx, job| {
            let entered = Arc::clone(&entered);
            Box::pin(async move {
                insert(cx, &job).await?;
                entered.notify_one();
                std::future::pending().await
            })
        }
    });
    let consumer = consumer(&env).await.ack_wait(Duration::from_secs(60)).grace(Duration::from_millis(200));
    let running = Running::start(consumer.clone(), inbox(&env), stuck);
    entered.notified().await;
    running.stop().await;
    assert_eq!(effects(&env).await, 0);
    let running = Running::start(consumer, inbox(&env), Does::effect());
    settled_after(&env, 1).await;
    running.stop().await;
    assert_eq!(effects(&env).await, 1);
}

/// JetStream over a slow line, of which nothing else in the test knows.
async fn slow_jetstream(env: &TestEnv) -> (Proxy, jetstream::Context) {
    let url: ServerAddr = env.nats_url().parse().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], url.port()).into()).await;
    proxy.slow(0, Duration::from_millis(100));
    let client = async_nats::connect(format!("nats://127.0.0.1:{}", proxy.port())).await.unwrap();
    (proxy, jetstream::new(client))
}

/// The server has handed messages out that have not arrived when the shutdown comes. They are given
/// back all the same.
#[tokio::test]
async fn a_shutdown_gives_back_what_is_on_its_way() {
    let env = stream_environment().await;
    let (_proxy, slow) = slow_jetstream(&env).await;
    let ack_wait = Duration::from_secs(60);
    let handler = Does::effect();
    let far = Consumer::new(slow, env.name(), "d").ack_wait(ack_wait);
    let running = Running::start(far, inbox(&env), handler.clone());
    let stream = env.stream().await;
    eventually("a pull is under way", LIMIT, async || {
        (stream.consumer_info("d").await.ok()?.num_waiting == 1).then_some(())
    })
    .await;
    for n in 0..5 {
        publish(&env.jetstream().await, env.subject("a"), &format!("k{n}"), n, None).await;
    }
    running.stop().await;
    let near = consumer(&env).await.ack_wait(ack_wait);
    let running = Running::start(near, inbox(&env), handler.clone());
    settled_after(&env, 5).await;
    running.stop().await;
    assert_eq!((handler.runs(), effects(&env).await), (5, 5));
}
