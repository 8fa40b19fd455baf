//! Producers with two-phase commit: PREPARE TRANSACTION refuses a transaction that has sent a
//! NOTIFY, so they never do.

use std::time::{Duration, SystemTime};

use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Postgres, TestEnv, eventually};
use tokio::time::{Instant, timeout};
use tokio_postgres::GenericClient;

use crate::relay::support::{
    LIMIT, Running, assert_delivered, await_messages, client, enqueue, stored, values, with,
};

/// Waits until a relay pauses for long.
pub(crate) async fn asleep(client: &impl GenericClient) {
    let now: SystemTime = client.query_one("SELECT clock_timestamp()", &[]).await.unwrap().get(0);
    let sql = "SELECT FROM pg_stat_activity WHERE application_name = 'oncebox relay'
               AND query ~ '^-- (Look whether|Mark the relay)' AND state_change > $1
               AND state_change < clock_timestamp() - interval '40 ms' LIMIT 1";
    eventually("it sleeps", LIMIT, async || client.query_opt(sql, &[&now]).await.unwrap()).await;
}

/// A server with two-phase commit, and an outbox in its database `postgres`.
pub(crate) async fn server() -> Postgres {
    let server = Postgres::start_with(&[("max_prepared_transactions", "32")]).await.unwrap();
    let mut migrating = client(&server.url("postgres")).await;
    migrate(&mut migrating, &SchemaName::default(), Lanes::default()).await.unwrap();
    server
}

/// Beside a relay that has gone to sleep before each of them, or believes so.
#[tokio::test]
async fn prepared_transactions_never_fail_beside_a_sleeping_relay() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let server = server().await;
    let url = server.url("postgres");
    let producer = client(&url).await;
    let relay = Running::start(&values(&url, env.nats_url()));
    let mut expected = Vec::new();
    for n in 0..100 {
        if n % 10 == 0 {
            expected.extend(enqueue(&**producer, &env.subject("a"), "one-phase-", n..n + 1, 3).await);
            await_messages(&stream, expected.len()).await;
            asleep(&**producer).await;
        }
        // However the mark got there: after a restart with another setting, perhaps.
        producer.execute("SELECT setval('oncebox.relay_asleep', 1)", &[]).await.unwrap();
        producer.batch_execute("BEGIN").await.unwrap();
        let keys = enqueue(&**producer, &env.subject("a"), "prepared-", n..n + 1, 3).await;
        let prepared = producer.batch_execute(&format!("PREPARE TRANSACTION 'p-{n}'")).await;
        prepared.unwrap_or_else(|error| {
            panic!("transaction {n} is refused: {}", oncebox_connect::error::error_chain(&error))
        });
        producer.batch_execute(&format!("COMMIT PREPARED 'p-{n}'")).await.unwrap();
        expected.extend(keys);
    }
    await_messages(&stream, expected.len()).await;
    relay.stop().await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// No producer wakes it, so it looks often, however long its pauses are elsewhere.
#[tokio::test]
async fn a_relay_that_nobody_wakes_looks_often() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let server = server().await;
    let url = server.url("postgres");
    let producer = client(&url).await;
    // Jitter included, its workers would pause for half a minute at least.
    let changes = [("poll-max-milliseconds", "60000")];
    let relay = Running::start(&with(&values(&url, env.nats_url()), changes));
    for round in 0..3 {
        asleep(&**producer).await;
        let enqueued = Instant::now();
        enqueue(&**producer, &env.subject("a"), "m-", round..round + 1, 0).await;
        let delivered = await_messages(&stream, usize::try_from(round).unwrap() + 1);
        timeout(Duration::from_secs(20), delivered).await.expect("found by a poll");
        println!("delivered {:?} after it was enqueued", enqueued.elapsed());
    }
    relay.stop().await;
}
