//! Relays under load: killed, cut off from NATS, or two at once.

use std::time::Duration;

use oncebox_tests::{TestEnv, eventually};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::relay::{
    process::Process,
    support::{
        LIMIT, Running, assert_delivered, await_messages, connect, count, drain, enqueue, fresh_stream,
        stored, stream_config, through_proxy, values_of, with,
    },
};

/// Enqueues in transactions of 200, with a pause after each, on a task of its own, which ends with
/// the keys.
fn produce(
    env: &TestEnv,
    client: tokio_postgres::Client,
    count: i32,
    pause: Duration,
) -> JoinSet<Vec<String>> {
    let subject = env.subject("a");
    let mut producing = JoinSet::new();
    producing.spawn(async move {
        let mut keys = Vec::new();
        for from in (0..count).step_by(200) {
            keys.extend(enqueue(&client, &subject, "m-", from..from + 200, 50).await);
            sleep(pause).await;
        }
        keys
    });
    producing
}

#[tokio::test]
async fn a_relay_killed_again_and_again_loses_nothing() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let mut producing = produce(&env, env.pg().await, 20_000, Duration::ZERO);
    for life in 1..=6 {
        let relay = Process::relay(&values_of(&env));
        // It dies while messages are due, in the middle of its work.
        await_messages(&stream, life * 2_500).await;
        relay.kill().await;
    }
    let relay = Process::relay(&values_of(&env));
    let keys = producing.join_next().await.unwrap().unwrap();
    await_messages(&stream, keys.len()).await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    assert_eq!(drain(&mut connect(&values_of(&env)).await.worker()).await, 0, "all settled");
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
}

#[tokio::test]
async fn connections_to_nats_cut_at_random_keep_the_order_of_each_ordering_key() {
    let env = TestEnv::new().await;
    // A window too short to hide copies: a message stored twice is seen twice.
    let mut config = stream_config(env.name(), &env.subject(">"));
    config.duplicate_window = Duration::from_millis(100);
    let stream = fresh_stream(env.nats_url(), config).await;
    let (proxy, url) = through_proxy(env.nats_url()).await;
    let relay = Running::start(&with(&values_of(&env), [("nats-url", &*url), ("batch-messages", "100")]));
    let mut producing = produce(&env, env.pg().await, 12_000, Duration::from_millis(60));
    // A connection that is cut before the relay runs ends it.
    await_messages(&stream, 1).await;
    let until = Instant::now() + Duration::from_secs(12);
    let mut cuts = 0;
    while Instant::now() < until && count(&stream).await < 11_000 {
        sleep(Duration::from_millis(fastrand::u64(5..120))).await;
        proxy.cut();
        cuts += 1;
    }
    let keys = producing.join_next().await.unwrap().unwrap();
    await_messages(&stream, keys.len()).await;
    relay.stop().await;
    drain(&mut connect(&values_of(&env)).await.worker()).await;
    let copies = assert_delivered(&stored(&stream).await, &keys);
    println!("{cuts} cuts, {copies} copies");
    assert!(cuts > 10);
}

async fn published(relay: &Process) -> f64 {
    relay.metric("oncebox_published_total").await
}

#[tokio::test]
async fn two_relays_beside_each_other_publish_nothing_twice() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    // More than one relay's work, so that both are at it, most of the time: which one is the faster
    // is chance. That the second helps when it must is shown in `fleet`.
    let keys = enqueue(&env.pg().await, &env.subject("a"), "m-", 0..20_000, 50).await;
    let values = with(&values_of(&env), [("http-listen", "127.0.0.1:0"), ("batch-messages", "50")]);
    let relays = [Process::relay(&values), Process::relay(&values)];
    await_messages(&stream, keys.len()).await;
    let published = eventually("both have counted their messages", LIMIT, async || {
        let shares = [published(&relays[0]).await, published(&relays[1]).await];
        println!("the relays carried {shares:?} of 20000");
        let total: f64 = shares.iter().sum();
        (total >= 20_000.0).then_some(total)
    })
    .await;
    assert_eq!(published, 20_000.0);
    for relay in relays {
        assert_eq!(relay.metric("oncebox_duplicate_acks_total").await, 0.0);
        relay.signal("TERM").await;
        assert_eq!(relay.ended().await.0.code(), Some(0));
    }
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
}
