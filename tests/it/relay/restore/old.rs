//! Databases as a dump may find them: half settled with late rows, and in the middle of a drain.

use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Postgres, TestEnv};
use tokio_postgres::GenericClient;

use crate::relay::support::{client, connect, drain, enqueue, fresh_stream, stream_config, values, with};

pub(super) struct Dump {
    pub(super) name: &'static str,
    pub(super) sql: Vec<u8>,
    pub(super) subject: String,
    /// Keys of the messages that were committed and not settled.
    pub(super) due: Vec<String>,
    /// Lowest and highest transaction id in the log.
    pub(super) first_xact: i64,
    pub(super) last_xact: i64,
}

/// Settled messages; late rows, some committed, some still in flight when the dump is made; a
/// backlog above `high`.
pub(super) async fn half_settled(server: &Postgres, env: &TestEnv) -> Dump {
    let url = create(server, env, "half").await;
    let subject = env.subject("restored");
    let mut worker = connect(&values(&url, env.nats_url())).await.worker();
    let producer = client(&url).await;
    let (mut first, mut second) = (client(&url).await, client(&url).await);
    enqueue(&**producer, &subject, "settled-", 0..150, 5).await;
    let late = first.transaction().await.unwrap();
    let mut due = enqueue(&*late, &subject, "late-", 0..40, 3).await;
    let in_flight = second.transaction().await.unwrap();
    enqueue(&*in_flight, &subject, "in-flight-", 0..10, 0).await;
    enqueue(&**producer, &subject, "settled-", 150..300, 5).await;
    assert_eq!(drain(&mut worker).await, 300);
    enqueue_each(&**producer, &subject, "settled-", 300, 40).await;
    assert_eq!(drain(&mut worker).await, 40);
    late.commit().await.unwrap();
    due.extend(enqueue_each(&**producer, &subject, "backlog-", 0, 200).await);
    let dump = dump(server, "half", &url, subject, due).await;
    in_flight.rollback().await.unwrap();
    dump
}

/// A lane frozen in a drain, with a row below `after` that became visible after `target`, and a
/// backlog.
pub(super) async fn frozen_drain(server: &Postgres, env: &TestEnv) -> Dump {
    let url = create(server, env, "frozen").await;
    let subject = env.subject("restored");
    let values = values(&url, env.nats_url());
    let producer = client(&url).await;
    let (mut first, mut second) = (client(&url).await, client(&url).await);
    // "straggler-key0" must share the lane of "late-key0".
    let prefix = prefix_in_lane_of(&**producer, "late-key0").await;
    let later = second.transaction().await.unwrap();
    let mut due = enqueue(&*later, &subject, &prefix, 0..5, 1).await;
    let late = first.transaction().await.unwrap();
    let late_keys = enqueue(&*late, &subject, "late-", 0..50, 1).await;
    enqueue(&**producer, &subject, "settled-", 0..100, 10).await;
    assert_eq!(drain(&mut connect(&values).await.worker()).await, 100);
    late.commit().await.unwrap();
    connect(&with(&values, [("batch-messages", "7")])).await.worker().run_once().await.unwrap();
    let frozen =
        producer.query("SELECT after FROM oncebox.lane_cursor WHERE target IS NOT NULL", &[]).await.unwrap();
    assert_eq!(frozen.len(), 1, "one lane is frozen in a drain");
    due.extend_from_slice(&late_keys[7..]);
    later.commit().await.unwrap();
    due.extend(enqueue_each(&**producer, &subject, "backlog-", 0, 100).await);
    dump(server, "frozen", &url, subject, due).await
}

async fn create(server: &Postgres, env: &TestEnv, name: &str) -> String {
    fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject(">"))).await;
    client(&server.url("postgres")).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    let url = server.url(name);
    migrate(&mut *client(&url).await, &SchemaName::default(), Lanes::default()).await.unwrap();
    url
}

/// A transaction for each message, so that the log has many transaction ids.
async fn enqueue_each(
    client: &impl GenericClient,
    subject: &str,
    prefix: &str,
    from: i32,
    count: i32,
) -> Vec<String> {
    let mut keys = Vec::new();
    for n in from..from + count {
        keys.extend(enqueue(client, subject, prefix, n..n + 1, 5).await);
    }
    keys
}

async fn prefix_in_lane_of(client: &impl GenericClient, ordering_key: &str) -> String {
    let sql = "SELECT 'straggler' || n || '-' FROM generate_series(1, 10000) AS n
               WHERE oncebox.lane_of('straggler' || n || '-key0') = oncebox.lane_of($1) LIMIT 1";
    client.query_one(sql, &[&ordering_key]).await.unwrap().get(0)
}

async fn dump(server: &Postgres, name: &'static str, url: &str, subject: String, due: Vec<String>) -> Dump {
    let output = tokio::process::Command::new(server.bin("pg_dump"))
        .args(["--no-owner", "--no-privileges", url])
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sql = "SELECT min(xact::text::bigint), max(xact::text::bigint) FROM oncebox.message";
    let row = client(url).await.query_one(sql, &[]).await.unwrap();
    Dump { name, sql: output.stdout, subject, due, first_xact: row.get(0), last_xact: row.get(1) }
}
