//! A broker at the end of a narrow or a long line: messages arrive as fast as it lets them, and it
//! never counts as away.

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use oncebox_tests::{Proxy, TestEnv, eventually};

use crate::relay::{
    process::Process,
    support::{
        assert_delivered, enqueue, fresh_stream, stored, stream_config, through_proxy, values_of, with,
    },
};

const LIMIT: Duration = Duration::from_secs(120);
const MESSAGES: i32 = 4_000;

/// A backlog over a slow line with a deadline of one second for acknowledgements.
async fn deliver(bytes_per_second: u64, delay: Duration) {
    deliver_in(&TestEnv::new().await, bytes_per_second, delay, "").await;
}

/// The same from a database for whose new sessions this SQL sets something.
async fn deliver_in(env: &TestEnv, bytes_per_second: u64, delay: Duration, sql: &str) {
    // A window too short to hide copies: a message sent twice is stored twice.
    let mut config = stream_config(env.name(), &env.subject(">"));
    config.duplicate_window = Duration::from_millis(100);
    let stream: Stream = fresh_stream(env.nats_url(), config).await;
    let port = env.nats_url().rsplit(':').next().unwrap().parse().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).await;
    let client = env.pg().await;
    let keys = enqueue(&client, &env.subject("a"), "m-", 0..MESSAGES, 0).await;
    client.batch_execute(sql).await.unwrap();
    let url = format!("nats://127.0.0.1:{}", proxy.port());
    let settings = [("nats-url", &*url), ("http-listen", "127.0.0.1:0"), ("ack-timeout-seconds", "1")];
    proxy.slow(bytes_per_second, delay);
    let relay = Process::relay(&with(&values_of(env), settings));
    eventually("all arrive", LIMIT, async || {
        (stream.get_info().await.unwrap().state.messages >= keys.len() as u64).then_some(())
    })
    .await;
    eventually("all are settled", LIMIT, async || {
        (relay.metric("oncebox_published_total").await >= f64::from(MESSAGES)).then_some(())
    })
    .await;
    assert_eq!(relay.metric("oncebox_nats_reconnects_total").await, 0.0, "{}", relay.log());
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("NATS is away"), "{log}");
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0, "nothing was sent twice");
}

#[tokio::test]
async fn a_narrow_line_is_slow_and_never_away() {
    // Less than a thousandth of the relay's speed; all at once it would take ten seconds.
    deliver(100_000, Duration::ZERO).await;
}

#[tokio::test]
async fn a_long_line_is_slow_and_never_away() {
    deliver(0, Duration::from_millis(100)).await;
}

/// A pass over a slow line takes some seconds. When a limit of the database ends it, all of it is
/// sent again, and again.
#[tokio::test]
async fn a_limit_on_transactions_is_not_for_those_of_the_relay() {
    let sql = "DO $$ BEGIN
                 IF current_setting('server_version_num')::integer >= 170000 THEN
                   EXECUTE format('ALTER DATABASE %I SET transaction_timeout = ''1s''', current_database());
                 END IF;
               END $$";
    deliver_in(&TestEnv::new().await, 100_000, Duration::ZERO, sql).await;
}

/// PostgreSQL ends a session that is idle in its transaction for 20 s: a relay that works says that
/// it is there.
#[tokio::test]
async fn a_pass_may_take_longer_than_a_session_may_idle() {
    const LARGE: i32 = 28;
    let env = TestEnv::new().await;
    let mut config = stream_config(env.name(), &env.subject(">"));
    config.duplicate_window = Duration::from_millis(100);
    let stream: Stream = fresh_stream(env.nats_url(), config).await;
    let (proxy, url) = through_proxy(env.nats_url()).await;
    let client = env.pg().await;
    let sql = "SELECT count(oncebox.enqueue('m-' || n, $1, convert_to(repeat('x', 100000), 'UTF8')))
               FROM generate_series(0, $2::int - 1) AS n";
    client.execute(sql, &[&env.subject("a"), &LARGE]).await.unwrap();
    // All in one pass, which takes 28 s.
    proxy.slow(100_000, Duration::ZERO);
    let settings = [
        ("nats-url", &*url),
        ("batch-lanes", "16"),
        ("batch-bytes", "8388608"),
        ("ack-timeout-seconds", "15"),
        ("workers", "1"),
    ];
    let relay = Process::relay(&with(&values_of(&env), settings));
    eventually("all arrive", LIMIT, async || {
        (stream.get_info().await.unwrap().state.messages >= u64::try_from(LARGE).unwrap()).then_some(())
    })
    .await;
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("PostgreSQL failed a pass"), "{log}");
    let keys: Vec<String> = (0..LARGE).map(|n| format!("m-{n}")).collect();
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0, "nothing was sent twice");
}
