//! What a relay holds in memory is bounded, however large the messages are.

use oncebox_tests::{Nats, Program, TestEnv, eventually};

use crate::relay::support::{LIMIT, count, fresh_stream, stream_config};

/// deploy/kubernetes.yaml grants 256 MiB.
const GRANTED: u64 = 256 * 1024 * 1024;
const MESSAGE: i32 = 8 * 1024 * 1024;
const MESSAGES: i32 = 48;

#[tokio::test]
async fn the_largest_messages_in_all_lanes_fit_into_what_the_deployment_grants() {
    let env = TestEnv::new().await;
    let nats = Nats::start_with("max_payload: 9000000\nmax_pending: 20000000").await.unwrap();
    let stream = fresh_stream(&nats.url(), stream_config("LARGE", "large")).await;
    let client = env.pg().await;
    let sql = "SELECT oncebox.enqueue('m-' || n, 'large', convert_to(repeat('x', $1::int), 'UTF8'))
               FROM generate_series(1, $2::int) AS n";
    client.query(sql, &[&MESSAGE, &MESSAGES]).await.unwrap();
    let lanes: i64 =
        client.query_one("SELECT count(DISTINCT lane) FROM oncebox.message", &[]).await.unwrap().get(0);
    assert!(lanes > 12, "{lanes}");
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", nats.url()),
        ("ONCEBOX_HTTP_LISTEN", "off".to_owned()),
    ];
    let mut relay = Program::start("oncebox", &["relay"], &environment).await.unwrap();
    eventually("all arrive", LIMIT * 4, async || (count(&stream).await == 48).then_some(())).await;
    relay.stop().await.unwrap();
    let peak = relay.memory_peak();
    assert!(peak > 0 && peak < GRANTED / 2, "{} MiB", peak / 1024 / 1024);
}
