//! A stream that has no room for large messages gets the small ones: those that never fit hold
//! nobody else back.

use async_nats::jetstream::stream::{Config, DiscardPolicy, Stream};
use oncebox_tests::{TestEnv, eventually};
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
    let mut worker = connect(&values_of(&env)).await.worker();
    eventually("all small ones arrive", LIMIT, async || {
        drain(&mut worker).await;
        holds(&stream, &small).await
    })
    .await;
    assert_eq!(assert_delivered(&stored(&stream).await, &small), 0);
    // Each message that is stored after it was parked leaves a receipt of its own.
    let late: i64 = client.query_one("SELECT count(*) FROM oncebox.late_receipt", &[]).await.unwrap().get(0);
    assert_eq!(late, 0, "no small one was parked on the way");
}

#[tokio::test]
async fn small_messages_that_wait_behind_those_that_never_fit_are_tried() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), bounded(&env)).await;
    let other = format!("{}_other", env.name());
    let other = fresh_stream(env.nats_url(), stream_config(&other, &env.subject("other"))).await;
    let filler = vec![b'x'; usize::try_from(STREAM_BYTES).unwrap() - 200];
    env.jetstream().await.publish(env.subject("bounded"), filler.into()).await.unwrap().await.unwrap();
    let client = env.pg().await;
    // More in each lane than are tried for others.
    enqueue_large(&env, &client, 160).await;
    let small = enqueue(&client, &env.subject("bounded"), "small-", 0..64, 0).await;
    // Others wait behind them, so that all is parked.
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
    eventually("all small ones arrive", LIMIT * 2, async || {
        drain(&mut worker).await;
        holds(&stream, &small).await
    })
    .await;
    assert_eq!(assert_delivered(&stored(&stream).await, &small), 0);
}
