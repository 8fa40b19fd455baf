//! Two relays put one object, since one of them was suspended; and tries of relays that have died
//! fill the bucket.

use std::{pin::pin, time::Duration};

use async_nats::jetstream;
use futures_util::poll;
use oncebox_tests::{TestEnv, eventually};
use tokio::time::{Instant, sleep, timeout};

use super::{
    large::{bucket, enqueue_bytes, in_bucket, with_bucket},
    process::{Process, run_ok},
    support::{LIMIT, connect, count, drain, fresh_stream, stream_config, through_proxy, with},
};
use crate::inbox::support::stream_environment;

async fn all_is_whole(env: &TestEnv) {
    let verify = ["outbox", "verify", "--nats-url", env.nats_url(), "--stream", env.name()];
    run_ok(env.database_url(), &verify).await;
}

/// The first relay has read a payload, and stores its chunks when another has put the object. It
/// has not heard that its session was ended, as after a suspension; or it has, in the middle.
#[tokio::test]
async fn a_try_that_was_overtaken_harms_no_other_and_leaves_nothing() {
    let env = stream_environment().await;
    let client = env.pg().await;
    for (bytes, hears) in [(150_000, false), (5 << 20, true)] {
        enqueue_bytes(&env, &client, &format!("k-{bytes}"), bytes).await;
        let (proxy, url) = through_proxy(env.database_url()).await;
        let mut first = connect(&with(&with_bucket(&env), [("database-url", &*url)])).await.worker();
        let claimed = first.claim().await.unwrap().expect("something is due");
        let mut publishing = pin!(first.publish(claimed));
        let reads =
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                     AND state = 'idle in transaction' AND query LIKE '%substring(m.payload%'";
        let reader = eventually("a piece is read", LIMIT, async || {
            assert!(poll!(publishing.as_mut()).is_pending());
            sleep(Duration::from_millis(20)).await;
            client.query_opt(reads, &[]).await.unwrap().map(|row| row.get::<_, i32>(0))
        });
        let reader = reader.await;
        proxy.stall(!hears);
        client.query_one("SELECT pg_terminate_backend($1)", &[&reader]).await.unwrap();
        let mut second = connect(&with_bucket(&env)).await.worker();
        eventually("another delivers", LIMIT, async || (drain(&mut second).await > 0).then_some(())).await;
        let before = in_bucket(&env).await;
        // The answer that it waits for then never comes.
        let _ = timeout(Duration::from_secs(5), publishing).await;
        assert_eq!(in_bucket(&env).await, before, "{bytes}");
        all_is_whole(&env).await;
    }
    assert_eq!(env.messages().await.len(), 2);
}

/// The bucket has room for an object, and not for the chunks of dead tries beside it.
#[tokio::test]
async fn chunks_of_dead_tries_give_way_in_a_full_bucket() {
    let env = stream_environment().await;
    let client = env.pg().await;
    enqueue_bytes(&env, &client, "k", 5 << 20).await;
    let mut dead = connect(&with_bucket(&env)).await.worker();
    let mut stored = bucket(&env).await.cached_info().config.clone();
    stored.max_bytes = 7 << 20;
    env.jetstream().await.update_stream(stored).await.unwrap();
    let claimed = dead.claim().await.unwrap().expect("something is due");
    {
        let mut publishing = pin!(dead.publish(claimed));
        eventually("most chunks are there", LIMIT, async || {
            let _ = poll!(publishing.as_mut());
            (in_bucket(&env).await >= 24).then_some(())
        })
        .await;
    }
    drop(dead);
    let mut relay = connect(&with_bucket(&env)).await.worker();
    eventually("it is delivered", LIMIT, async || (drain(&mut relay).await > 0).then_some(())).await;
    assert_eq!(in_bucket(&env).await, super::large::ONE_OBJECT);
    all_is_whole(&env).await;
}

/// It is suspended for longer than the window for duplicates while it stores payloads.
#[tokio::test]
async fn a_relay_that_was_suspended_sends_no_large_message_again() {
    const MESSAGES: usize = 100;
    let env = stream_environment().await;
    let mut config: jetstream::stream::Config = stream_config(env.name(), &env.subject(">"));
    config.duplicate_window = Duration::from_secs(1);
    let stream = fresh_stream(env.nats_url(), config).await;
    let client = env.pg().await;
    let values = with(&with_bucket(&env), [("large-payload-bytes", "1000")]);
    let (proxy, url) = through_proxy(env.database_url()).await;
    let first = Process::relay(&with(&values, [("database-url", &*url)]));
    first.await_log("this relay is the leader").await;
    let sql =
        "SELECT count(oncebox.enqueue('k-' || n, $1, convert_to(repeat('x', 200000), 'UTF8'), '{}', 'one'))
               FROM generate_series(1, $2::int) AS n";
    client.query_one(sql, &[&env.subject("a"), &i32::try_from(MESSAGES).unwrap()]).await.unwrap();
    // Ten payloads are stored, and no message is sent.
    let storing = async || (in_bucket(&env).await >= 30).then_some(());
    eventually("it stores payloads", LIMIT, storing).await;
    first.signal("STOP").await;
    let (stopped, sent) = (Instant::now(), count(&stream).await);
    assert!(sent < MESSAGES, "it was too fast to be suspended");
    let second = Process::relay(&values);
    eventually("another goes on", Duration::from_secs(60), async || {
        (count(&stream).await >= MESSAGES).then_some(())
    })
    .await;
    sleep(Duration::from_secs(22).saturating_sub(stopped.elapsed())).await;
    let before = count(&stream).await;
    // It does not hear that its session was ended.
    proxy.stall(true);
    first.signal("CONT").await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(count(&stream).await, before, "it sends what another has sent");
    proxy.stall(false);
    for relay in [first, second] {
        relay.signal("TERM").await;
        assert!(relay.ended().await.0.success());
    }
    all_is_whole(&env).await;
}
