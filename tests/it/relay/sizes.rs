//! A stream that has no room for large messages gets the small ones: those that never fit hold no
//! others back.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, Stream};
use oncebox_relay::parts::Worker;
use oncebox_tests::{TestEnv, eventually};
use tokio::time::Instant;
use tokio_postgres::Client;

use crate::relay::support::{
    LIMIT, assert_delivered, connect, count, drain, enqueue, fresh_stream, stored, stream_config, values_of,
};

const STREAM_BYTES: i64 = 60_000;

fn bounded(env: &TestEnv) -> Config {
    let config = stream_config(env.name(), &env.subject("bounded"));
    Config { discard: DiscardPolicy::New, max_bytes: STREAM_BYTES, ..config }
}

/// Messages that are larger than the stream may become.
async fn enqueue_large(env: &TestEnv, client: &Client, messages: i32) {
    let sql = "SELECT count(oncebox.enqueue('large-' || n, $1, convert_to(repeat('x', $2), 'UTF8')))
               FROM generate_series(1, $3::int) AS n";
    let bytes = i32::try_from(STREAM_BYTES).unwrap() + 1;
    client.query_one(sql, &[&env.subject("bounded"), &bytes, &messages]).await.unwrap();
}

/// Messages of `bytes` bytes whose keys fall into lane 0; returns the keys.
async fn enqueue_in_one_lane(
    env: &TestEnv,
    client: &Client,
    prefix: &str,
    messages: i64,
    bytes: i64,
) -> Vec<String> {
    let sql = "SELECT k.key, oncebox.enqueue(k.key, $1, convert_to(repeat('x', $2::bigint::int), 'UTF8'))
               FROM (
                 SELECT $3::text || n AS key FROM generate_series(1, 10000) AS n
                 WHERE oncebox.lane_of($3::text || n) = 0 ORDER BY n LIMIT $4
               ) AS k";
    let rows = client.query(sql, &[&env.subject("bounded"), &bytes, &prefix, &messages]).await.unwrap();
    assert_eq!(rows.len() as i64, messages, "lane 0 has so many keys");
    rows.iter().map(|row| row.get(0)).collect()
}

/// A relay delivers all of them, each once.
async fn arrive(worker: &mut Worker, stream: &Stream, expected: &[String]) {
    eventually("all small ones arrive", LIMIT * 2, async || {
        drain(worker).await;
        holds(stream, expected).await
    })
    .await;
    assert_eq!(assert_delivered(&stored(stream).await, expected), 0);
}

/// The stream has no room even for small messages.
async fn fill(env: &TestEnv) {
    let filler = vec![b'x'; usize::try_from(STREAM_BYTES).unwrap() - 200];
    env.jetstream().await.publish(env.subject("bounded"), filler.into()).await.unwrap().await.unwrap();
}

async fn parked(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM oncebox.parked", &[]).await.unwrap().get(0)
}

async fn holds(stream: &Stream, expected: &[String]) -> Option<()> {
    (count(stream).await >= expected.len()).then_some(())
}

#[tokio::test]
async fn messages_that_never_fit_hold_nobody_back() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), bounded(&env)).await;
    let client = env.pg().await;
    enqueue_large(&env, &client, 32).await;
    let small = enqueue(&client, &env.subject("bounded"), "small-", 0..100, 10).await;
    arrive(&mut connect(&values_of(&env)).await.worker(), &stream, &small).await;
    // Each message that is stored after it was parked leaves a receipt of its own.
    let late: i64 = client.query_one("SELECT count(*) FROM oncebox.late_receipt", &[]).await.unwrap().get(0);
    assert_eq!(late, 0, "no small one was parked on the way");
}

/// The large ones fill more than one read, so nothing else of the lane is read beside them.
#[tokio::test]
async fn a_lane_goes_on_past_messages_that_never_fit() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), bounded(&env)).await;
    let client = env.pg().await;
    enqueue_in_one_lane(&env, &client, "large-", 40, STREAM_BYTES + 1).await;
    let small = enqueue_in_one_lane(&env, &client, "small-", 40, 20).await;
    arrive(&mut connect(&values_of(&env)).await.worker(), &stream, &small).await;
}

/// One of the smallest is refused while the stream is full, and set aside; those after the large
/// ones are as small.
#[tokio::test]
async fn a_lane_goes_on_when_its_smallest_was_refused_before() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), bounded(&env)).await;
    fill(&env).await;
    let client = env.pg().await;
    let mut small = enqueue_in_one_lane(&env, &client, "first-", 1, 20).await;
    enqueue_in_one_lane(&env, &client, "large-", 40, STREAM_BYTES + 1).await;
    small.extend(enqueue_in_one_lane(&env, &client, "small-", 40, 20).await);
    let mut worker = connect(&values_of(&env)).await.worker();
    let started = Instant::now();
    eventually("the lane is tried for some seconds", LIMIT, async || {
        drain(&mut worker).await;
        (started.elapsed() > Duration::from_secs(6)).then_some(())
    })
    .await;
    assert_eq!(count(&stream).await, 1, "it is full");
    stream.purge().await.unwrap();
    arrive(&mut worker, &stream, &small).await;
}

#[tokio::test]
async fn small_messages_that_wait_behind_those_that_never_fit_are_tried() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), bounded(&env)).await;
    let other = format!("{}_other", env.name());
    let other = fresh_stream(env.nats_url(), stream_config(&other, &env.subject("other"))).await;
    fill(&env).await;
    let client = env.pg().await;
    // More in each lane than are tried for others.
    enqueue_large(&env, &client, 160).await;
    let small = enqueue(&client, &env.subject("bounded"), "small-", 0..64, 0).await;
    // Others wait for them, so that all is parked.
    let others = enqueue(&client, &env.subject("other"), "other-", 0..200, 0).await;
    let mut worker = connect(&values_of(&env)).await.worker();
    eventually("the others get past", LIMIT, async || {
        drain(&mut worker).await;
        holds(&other, &others).await
    })
    .await;
    assert_eq!(count(&stream).await, 1, "it is full");
    assert!(parked(&client).await >= 160);
    stream.purge().await.unwrap();
    arrive(&mut worker, &stream, &small).await;
}
