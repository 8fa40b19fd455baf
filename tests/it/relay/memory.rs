//! A relay's memory is bounded, however large the messages are.

use std::time::Duration;

use oncebox_tests::{Nats, Program, Proxy, TestEnv, eventually};
use tokio_postgres::Client;

use crate::relay::support::{LIMIT, count, fresh_stream, stream_config};

const MIB: u64 = 1024 * 1024;
/// A relay has to do with any messages. One that is not optimised holds some more than others.
const BOUND: u64 = 96 * MIB;
const ACK_TIMEOUT: Duration = Duration::from_secs(15);

async fn enqueue(client: &Client, prefix: &str, messages: i32, bytes: i32) {
    let sql = "SELECT oncebox.enqueue($1::text || n, 'large', convert_to(repeat('x', $2::int), 'UTF8'))
               FROM generate_series(1, $3::int) AS n";
    client.query(sql, &[&prefix, &bytes, &messages]).await.unwrap();
}

async fn relay(env: &TestEnv, nats_url: String, ack_timeout: Duration) -> Program {
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", nats_url),
        ("ONCEBOX_HTTP_LISTEN", "off".to_owned()),
        ("ONCEBOX_ACK_TIMEOUT_SECONDS", ack_timeout.as_secs().to_string()),
    ];
    Program::start("oncebox", &["relay"], &environment).await.unwrap()
}

async fn peak(mut relay: Program) -> u64 {
    relay.stop().await.unwrap();
    assert!(relay.memory_peak() > 0);
    relay.memory_peak()
}

#[tokio::test]
async fn large_messages_in_all_lanes_fit_into_what_a_relay_may_hold() {
    let env = TestEnv::new().await;
    let nats = Nats::start_with("max_payload: 9000000\nmax_pending: 20000000").await.unwrap();
    let stream = fresh_stream(&nats.url(), stream_config("LARGE", "large")).await;
    let client = env.pg().await;
    // The largest that there are, and the largest that come with their rows.
    enqueue(&client, "eight-", 48, 8 * 1024 * 1024).await;
    enqueue(&client, "one-", 96, 1024 * 1024).await;
    let lanes: i64 =
        client.query_one("SELECT count(DISTINCT lane) FROM oncebox.message", &[]).await.unwrap().get(0);
    assert!(lanes > 12, "{lanes}");
    let relay = relay(&env, nats.url(), ACK_TIMEOUT).await;
    eventually("all arrive", LIMIT * 4, async || (count(&stream).await == 144).then_some(())).await;
    let peak = peak(relay).await;
    assert!(peak < BOUND, "{} MiB", peak / MIB);
}

/// They go to the bucket in pieces; `bench large` does the same with a hundred.
#[tokio::test]
async fn a_payload_that_goes_to_a_bucket_is_never_held_whole() {
    let env = TestEnv::new().await;
    let nats = Nats::start().await.unwrap();
    let stream = fresh_stream(&nats.url(), stream_config("REFERENCES", "large")).await;
    let client = env.pg().await;
    enqueue(&client, "large-", 6, 64 * 1024 * 1024).await;
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", nats.url()),
        ("ONCEBOX_HTTP_LISTEN", "off".to_owned()),
        ("ONCEBOX_OBJECT_STORE", "payloads".to_owned()),
    ];
    let relay = Program::start("oncebox", &["relay"], &environment).await.unwrap();
    eventually("all arrive", LIMIT * 4, async || (count(&stream).await == 6).then_some(())).await;
    let peak = peak(relay).await;
    assert!(peak < BOUND, "{} MiB", peak / MIB);
}

#[tokio::test]
async fn what_the_server_does_not_take_is_dead_and_never_read_by_the_relay() {
    let env = TestEnv::new().await;
    let nats = Nats::start_with("max_payload: 65536").await.unwrap();
    let stream = fresh_stream(&nats.url(), stream_config("SMALL", "large")).await;
    let client = env.pg().await;
    enqueue(&client, "eight-", 4, 8 * 1024 * 1024).await;
    enqueue(&client, "some-", 40, 100_000).await;
    enqueue(&client, "small-", 10, 1_000).await;
    client.query("SELECT pg_stat_force_next_flush()", &[]).await.unwrap();
    let before = toast_reads(&client).await;
    let relay = relay(&env, nats.url(), ACK_TIMEOUT).await;
    let sql = "SELECT count(*) FROM oncebox.parked WHERE dead_at IS NOT NULL AND error LIKE '%max_payload%'";
    eventually("the large ones are dead", LIMIT, async || {
        let dead: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        (dead == 44 && count(&stream).await == 10).then_some(())
    })
    .await;
    peak(relay).await;
    // Once, by PostgreSQL itself, so that each dead one carries itself: with an index's page or
    // two.
    let blocks = "SELECT pg_relation_size(reltoastrelid) / 8192 FROM pg_class WHERE oid = 'oncebox.message_0'::regclass";
    let blocks: i64 = client.query_one(blocks, &[]).await.unwrap().get(0);
    let read = toast_reads(&client).await - before;
    assert!(read <= blocks + 4 * 44, "{read} blocks of {blocks} read of payloads");
}

/// Connections that are given up while their payloads are still on the way must not add up.
#[tokio::test]
async fn what_a_slow_line_has_not_carried_yet_counts_as_held() {
    let env = TestEnv::new().await;
    let nats = Nats::start_with("max_payload: 9000000\nmax_pending: 20000000").await.unwrap();
    let stream = fresh_stream(&nats.url(), stream_config("SLOW", "large")).await;
    let client = env.pg().await;
    enqueue(&client, "eight-", 12, 8 * 1024 * 1024).await;
    let proxy = Proxy::start(([127, 0, 0, 1], nats.port()).into()).await;
    proxy.slow(64 * 1024, Duration::ZERO);
    let relay = relay(&env, format!("nats://127.0.0.1:{}", proxy.port()), Duration::from_secs(1)).await;
    let given_up = async || (proxy.connections() > 6).then_some(());
    eventually("six connections are given up", LIMIT * 4, given_up).await;
    proxy.slow(0, Duration::ZERO);
    eventually("all arrive", LIMIT * 4, async || (count(&stream).await == 12).then_some(())).await;
    let peak = peak(relay).await;
    assert!(peak < BOUND, "{} MiB", peak / MIB);
}

/// A check asks for a message of each lane. The server cuts a connection when more than
/// `max_pending` waits for it: if all were asked for at once, no check would ever come to its end.
#[tokio::test]
async fn large_messages_are_checked_without_a_cut_and_within_the_same_bound() {
    let env = TestEnv::new().await;
    let nats = Nats::start_with("max_payload: 9000000\nmax_pending: 20000000").await.unwrap();
    let stream = fresh_stream(&nats.url(), stream_config("CHECKED", "large")).await;
    let client = env.pg().await;
    enqueue(&client, "eight-", 24, 8 * 1024 * 1024).await;
    let first = relay(&env, nats.url(), ACK_TIMEOUT).await;
    eventually("all arrive", LIMIT * 4, async || (count(&stream).await == 24).then_some(())).await;
    drop(first);
    let proxy = Proxy::start(([127, 0, 0, 1], nats.port()).into()).await;
    proxy.slow(0, Duration::from_millis(1));
    let second = relay(&env, format!("nats://127.0.0.1:{}", proxy.port()), ACK_TIMEOUT).await;
    enqueue(&client, "small-", 1, 8).await;
    eventually("the next one arrives", LIMIT, async || (count(&stream).await == 25).then_some(())).await;
    assert_eq!(proxy.connections(), 1, "the server has cut connections");
    let peak = peak(second).await;
    assert!(peak < BOUND, "{} MiB", peak / MIB);
}

/// JetStream's answer is a third larger than the message, so the server may cut the connection for
/// a single one; that it does so for ever must not keep the relay from delivering.
#[tokio::test]
async fn a_check_that_always_ends_the_connection_stops_no_delivery() {
    let env = TestEnv::new().await;
    let nats = Nats::start_with("max_payload: 9000000\nmax_pending: 9100000").await.unwrap();
    let stream = fresh_stream(&nats.url(), stream_config("CUT", "large")).await;
    let client = env.pg().await;
    enqueue(&client, "eight-", 2, 8 * 1024 * 1024).await;
    let first = relay(&env, nats.url(), ACK_TIMEOUT).await;
    eventually("all arrive", LIMIT, async || (count(&stream).await == 2).then_some(())).await;
    drop(first);
    let proxy = Proxy::start(([127, 0, 0, 1], nats.port()).into()).await;
    let second = relay(&env, format!("nats://127.0.0.1:{}", proxy.port()), ACK_TIMEOUT).await;
    enqueue(&client, "small-", 1, 8).await;
    eventually("the next one arrives", LIMIT, async || (count(&stream).await == 3).then_some(())).await;
    assert!(proxy.connections() > 5, "the check was to end connections");
    peak(second).await;
}

/// Blocks of large payloads that were read, or written, by sessions that have ended.
async fn toast_reads(client: &Client) -> i64 {
    let sql = "SELECT coalesce(toast_blks_read + toast_blks_hit, 0) FROM pg_statio_all_tables
               WHERE schemaname = 'oncebox' AND relname = 'message_0'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}
