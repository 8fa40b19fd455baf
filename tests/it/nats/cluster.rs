//! Refusals of a cluster only: no leader for anything, no leader for one stream, copies of a
//! message in process.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, Stream};
use oncebox_tests::{Nats, NatsCluster, TestEnv, eventually};

use crate::{
    nats::refusals::parked,
    relay::{
        process::Process,
        support::{assert_delivered, enqueue, stored, stream_config, values, with},
    },
};

/// Elections take seconds, and a leader notices after many more that it has no followers.
const LIMIT: Duration = Duration::from_secs(120);

fn replicated(name: &str, subject: &str, replicas: usize) -> Config {
    Config { num_replicas: replicas, ..stream_config(name, subject) }
}

/// A relay for which one attempt would be one too many.
fn relay(env: &TestEnv, url: &str) -> Process {
    let settings = [
        ("http-listen", "127.0.0.1:0"),
        ("attempts-max", "1"),
        ("ack-timeout-seconds", "1"),
        ("log", "info,oncebox_relay=debug"),
    ];
    Process::relay(&with(&values(env.database_url(), url), settings))
}

async fn await_messages(stream: &Stream, count: usize) {
    let what = format!("{count} messages in the stream");
    eventually(&what, LIMIT, async || {
        (stream.get_info().await.ok()?.state.messages >= count as u64).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_a_majority_nats_is_away_and_no_attempt_is_spent() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let mut cluster = NatsCluster::start().await.unwrap();
    let stream = cluster.create_stream(replicated("S", "bad.>", 3)).await.unwrap();
    let relay = relay(&env, &cluster.url());
    let mut keys = enqueue(&client, "bad.a", "bad-", 0..500, 5).await;
    await_messages(&stream, keys.len()).await;

    let leader = cluster.leader("S").await.unwrap();
    for follower in (0..3).filter(|node| *node != leader) {
        cluster.nodes_mut()[follower].kill().await;
    }
    keys.extend(enqueue(&client, "bad.a", "bad-", 500..1_000, 5).await);
    // First it takes messages and cannot answer; then it gives up being the leader.
    relay.await_log("NATS is away").await;
    eventually("the cluster says that it has no leader", LIMIT, async || {
        relay.log().contains("(10008)").then_some(())
    })
    .await;
    eventually("not ready", LIMIT, async || (relay.get("/readyz").await.0 == 503).then_some(())).await;
    let parked = parked(&client).await;
    // Copies of messages that it took and could not answer may wait; see the last test.
    assert_eq!((parked.attempts, parked.dead), (0, 0), "{parked:?}");

    for node in cluster.nodes_mut() {
        // The leader still runs.
        if !node.is_running() {
            node.resume().await.unwrap();
        }
    }
    await_messages(&stream, keys.len()).await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
}

#[tokio::test]
async fn a_stream_whose_only_node_is_gone_is_waited_for_and_the_others_flow() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let mut cluster = NatsCluster::start().await.unwrap();
    let good = cluster.create_stream(replicated("GOOD", "good.>", 3)).await.unwrap();
    let bad = cluster.create_stream(replicated("BAD", "bad.>", 1)).await.unwrap();
    let node = cluster.leader("BAD").await.unwrap();
    cluster.nodes_mut()[node].kill().await;
    let relay = relay(&env, &cluster.url());
    let good_keys = enqueue(&client, "good.a", "good-", 0..500, 5).await;
    let bad_keys = enqueue(&client, "bad.a", "bad-", 0..500, 5).await;
    await_messages(&good, good_keys.len()).await;
    eventually("the other stream's messages wait", LIMIT, async || {
        let parked = parked(&client).await;
        assert_eq!(parked.attempts, 0, "{parked:?}");
        (parked.all == 500 && parked.reasons.contains("stream BAD has no leader")).then_some(())
    })
    .await;
    cluster.nodes_mut()[node].resume().await.unwrap();
    await_messages(&bad, bad_keys.len()).await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    assert_eq!(assert_delivered(&stored(&bad).await, &bad_keys), 0);
    assert_eq!(assert_delivered(&stored(&good).await, &good_keys), 0);
}

#[tokio::test]
async fn a_copy_of_what_is_in_process_is_sent_again_later() {
    if Nats::version().unwrap() < (2, 12) {
        println!(
            "left out: nats-server before 2.12 takes the copy, and drops it when it has stored the first"
        );
        return;
    }
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let mut cluster = NatsCluster::start().await.unwrap();
    let stream = cluster.create_stream(replicated("S", "bad.>", 3)).await.unwrap();
    let leader = cluster.leader("S").await.unwrap();
    let url = cluster.nodes_mut()[leader].url();
    let relay = relay(&env, &url);
    let mut keys = enqueue(&client, "bad.a", "bad-", 0..50, 5).await;
    await_messages(&stream, keys.len()).await;
    // Without the others the leader has messages in process for ever.
    for follower in (0..3).filter(|node| *node != leader) {
        cluster.nodes_mut()[follower].suspend(true).await;
    }
    keys.extend(enqueue(&client, "bad.a", "bad-", 50..100, 5).await);
    eventually("a copy is refused", LIMIT, async || {
        let parked = parked(&client).await;
        assert_eq!(parked.attempts, 0, "{parked:?}");
        parked.reasons.contains("(10158)").then_some(())
    })
    .await;
    for follower in (0..3).filter(|node| *node != leader) {
        cluster.nodes_mut()[follower].suspend(false).await;
    }
    await_messages(&stream, keys.len()).await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
}
