//! No message is lost when a relay dies between two steps of a pass, or does not learn whether its
//! commit happened.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use async_nats::jetstream::{self, stream::Stream};
use oncebox_relay::parts::Pass;
use oncebox_tests::{Proxy, TestEnv, eventually};

use crate::relay::support::{
    LIMIT, Stored, assert_delivered, connect, drain, enqueue, fresh_stream, stored, stream_config, values_of,
    with,
};

/// The moment at which a relay died.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Died {
    BeforePublish,
    BeforeSettle,
    BeforeCommit,
    AfterCommit,
}

async fn die(env: &TestEnv, when: Died) {
    let mut worker = connect(&with(&values_of(env), [("batch-lanes", "16")])).await.worker();
    let claimed = worker.claim().await.unwrap().expect("something is due");
    if when == Died::BeforePublish {
        return;
    }
    let published = worker.publish(claimed).await;
    if when == Died::BeforeSettle {
        return;
    }
    let settled = worker.settle(published).await.unwrap();
    if when == Died::AfterCommit {
        settled.commit().await.unwrap();
    }
}

#[tokio::test]
async fn whatever_step_a_relay_dies_at_the_next_one_goes_on() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let mut expected = Vec::new();
    for (number, when) in [Died::BeforePublish, Died::BeforeSettle, Died::BeforeCommit, Died::AfterCommit]
        .into_iter()
        .enumerate()
    {
        expected.extend(enqueue(&client, &env.subject("a"), &format!("{number}-"), 0..60, 5).await);
        die(&env, when).await;
        let in_stream = stored(&stream).await.len();
        assert_eq!(in_stream, if when == Died::BeforePublish { 0 } else { expected.len() }, "{when:?}");
        // A settlement counts exactly if it was committed, so the next relay sends all messages
        // again, or none.
        let again = if when == Died::AfterCommit { 0 } else { 60 };
        let mut worker = connect(&values_of(&env)).await.worker();
        // PostgreSQL may not have noticed yet that the client is gone.
        let mut settled = 0;
        eventually("the next relay has all lanes", LIMIT, async || {
            settled += drain(&mut worker).await;
            (settled == again && locked_lanes(&env).await == 0).then_some(())
        })
        .await;
        assert_eq!(drain(&mut worker).await, 0, "{when:?}");
    }
    assert_eq!(
        assert_delivered(&stored(&stream).await, &expected),
        0,
        "stored once within the duplicate window"
    );
}

async fn locked_lanes(env: &TestEnv) -> i64 {
    let sql = "SELECT count(*) FROM oncebox.lane WHERE lane NOT IN (SELECT lane FROM oncebox.lane FOR UPDATE SKIP LOCKED)";
    env.pg().await.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn copies_beyond_the_duplicate_window_keep_key_and_order() {
    let env = TestEnv::new().await;
    let mut config = stream_config(env.name(), &env.subject(">"));
    config.duplicate_window = Duration::from_millis(100);
    let stream = fresh_stream(env.nats_url(), config).await;
    let keys = enqueue(&env.pg().await, &env.subject("a"), "m", 0..90, 4).await;
    die(&env, Died::BeforeSettle).await;
    await_window_passed(&env).await;
    let mut worker = connect(&values_of(&env)).await.worker();
    eventually("sent again", LIMIT, async || (drain(&mut worker).await > 0).then_some(())).await;
    drain(&mut worker).await;
    let stored = stored_without_probes(&stream).await;
    assert_eq!(assert_delivered(&stored, &keys), keys.len(), "every message has one copy");
    let mut by_ordering_key: HashMap<&str, Vec<&Stored>> = HashMap::new();
    for message in &stored {
        by_ordering_key.entry(message.ordering_key.as_deref().unwrap()).or_default().push(message);
    }
    for (ordering_key, messages) in by_ordering_key {
        let (first, second) = messages.split_at(messages.len() / 2);
        assert_eq!(first, second, "{ordering_key}: the copies are the same, in the same order");
    }
}

/// Waits until the duplicate window has passed. The server forgets ids in the order of arrival:
/// when it has forgotten a probe, it has forgotten everything before it.
async fn await_window_passed(env: &TestEnv) {
    let context = env.jetstream().await;
    let message = || jetstream::message::PublishMessage::build().message_id("probe");
    let probe = async || {
        let publish = context.send_publish(env.subject("probe"), message()).await.unwrap();
        publish.await.unwrap()
    };
    assert!(!probe().await.duplicate);
    eventually("the duplicate window has passed", LIMIT, async || (!probe().await.duplicate).then_some(()))
        .await;
}

async fn stored_without_probes(stream: &Stream) -> Vec<Stored> {
    stream.purge().filter(stream.cached_info().config.name.clone() + ".probe").await.unwrap();
    stored(stream).await
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_loses_no_message() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let config: tokio_postgres::Config = env.database_url().parse().unwrap();
    let port = config.get_ports()[0];
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], port))).await;
    let url = env.database_url().replacen(&format!(":{port}/"), &format!(":{}/", proxy.port()), 1);
    let mut worker =
        connect(&with(&values_of(&env), [("database-url", &url), ("batch-lanes", "16")])).await.worker();
    let client = env.pg().await;
    // The first acknowledgement of a stream has it noted, in a transaction of its own.
    let mut expected = enqueue(&client, &env.subject("a"), "first-", 0..1, 0).await;
    drain(&mut worker).await;
    for (number, committed) in [true, false, true].into_iter().enumerate() {
        expected.extend(enqueue(&client, &env.subject("a"), &format!("{number}-"), 0..50, 3).await);
        // The zero byte ends a simple query. Without it the needle would also match "READ
        // COMMITTED" in a BEGIN.
        proxy.cut_when_client_sends(b"COMMIT\0", committed);
        worker.run_once().await.expect_err("the answer is lost");
        assert!(!proxy.is_armed(), "it was the commit that failed");
        // The same worker recovers, and sends only uncommitted messages again.
        let mut settled = 0;
        eventually("the worker recovers", LIMIT, async || {
            loop {
                match worker.run_once().await {
                    Ok(Pass::Settled { messages, .. }) => settled += messages,
                    Ok(_) => return (locked_lanes(&env).await == 0).then_some(()),
                    Err(_) => return None,
                }
            }
        })
        .await;
        settled += drain(&mut worker).await;
        assert_eq!(settled, if committed { 0 } else { 50 }, "committed: {committed}");
    }
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}
