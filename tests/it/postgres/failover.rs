//! Several addresses of one database: the relay works on the one that takes writes, and follows it.

use oncebox_relay::{Config, Relay};
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Postgres, Proxy, Stop, TestEnv, eventually};
use tokio_postgres::{Client, NoTls};

use crate::relay::support::{
    LIMIT, Running, assert_delivered, await_messages, connect, drain, enqueue, stored, turn_the_ring, values,
};

async fn client(env: &TestEnv, postgres: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&postgres.url("postgres"), NoTls).await.unwrap();
    env.keep(async move { drop(connection.await) });
    client
}

fn url(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("postgres://postgres@{}/postgres?target_session_attrs=read-write", hosts.join(","))
}

#[tokio::test]
async fn the_relay_follows_a_promoted_standby() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let mut primary = Postgres::start().await.unwrap();
    let mut admin = client(&env, &primary).await;
    migrate(&mut admin, &SchemaName::default(), Lanes::default()).await.unwrap();
    let standby = primary.start_standby().await.unwrap();
    // Committed rows are on both: the test is of the relay, not of asynchronous replication.
    let sql = "ALTER SYSTEM SET synchronous_standby_names = '*'";
    admin.batch_execute(sql).await.unwrap();
    admin.batch_execute("ALTER SYSTEM SET synchronous_commit = 'remote_apply'").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    eventually("the standby is synchronous", LIMIT, async || {
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        (admin.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(())
    })
    .await;
    // The standby comes first: it is passed over, because it takes no writes.
    let relay = Running::start(&values(&url(&[standby.port(), primary.port()]), env.nats_url()));
    let mut keys = enqueue(&admin, &env.subject("a"), "before-", 0..200, 5).await;
    await_messages(&stream, 200).await;
    keys.extend(enqueue(&admin, &env.subject("a"), "between-", 0..2_000, 5).await);
    primary.stop(Stop::Kill).await;
    let promoted = client(&env, &standby).await;
    promoted.batch_execute("SELECT pg_promote()").await.unwrap();
    promoted.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.unwrap();
    promoted.batch_execute("ALTER SYSTEM RESET synchronous_commit; ").await.unwrap();
    promoted.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    keys.extend(enqueue(&promoted, &env.subject("a"), "after-", 0..200, 5).await);
    eventually("all is delivered", LIMIT, async || {
        let present: std::collections::HashSet<String> =
            stored(&stream).await.into_iter().map(|message| message.key).collect();
        (present.len() == keys.len()).then_some(())
    })
    .await;
    assert_delivered(&stored(&stream).await, &keys);
    relay.stop().await;
}

/// A reader of a standby holds all segments. The ring of the primary turns, the standby lags and
/// ends the reader, and has all in the end.
#[tokio::test]
async fn a_snapshot_that_a_standby_holds_stops_no_turn() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let primary = Postgres::start().await.unwrap();
    let mut admin = client(&env, &primary).await;
    migrate(&mut admin, &SchemaName::default(), Lanes::default()).await.unwrap();
    let standby = primary.start_standby().await.unwrap();
    let setting = client(&env, &standby).await;
    for sql in ["max_standby_streaming_delay = '1s'", "hot_standby_feedback = on"] {
        setting.batch_execute(&format!("ALTER SYSTEM SET {sql}")).await.unwrap();
    }
    setting.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let mut worker = connect(&values(&primary.url("postgres"), env.nats_url())).await.worker();
    admin.batch_execute("SET statement_timeout = '5s'").await.unwrap();
    let mut keys = enqueue(&admin, &env.subject("a"), "before-", 0..20, 5).await;
    let logged = "SELECT count(*) FROM oncebox.message";
    let reader = client(&env, &standby).await;
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    reader.query_one(logged, &[]).await.unwrap();
    let mut emptied = 0;
    for n in 0..20 {
        keys.extend(enqueue(&admin, &env.subject("a"), &format!("{n}-"), 0..20, 5).await);
        drain(&mut worker).await;
        turn_the_ring(&admin).await;
        let rows = admin.query("SELECT FROM oncebox.empty_segment(0)", &[]).await.unwrap();
        emptied += rows.len();
    }
    assert!(emptied > 16, "{emptied} segments were emptied, twice round the ring");
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
    let expected: i64 = admin.query_one(logged, &[]).await.unwrap().get(0);
    eventually("the standby has the log of the primary", LIMIT, async || {
        let count = client(&env, &standby).await.query_one(logged, &[]).await.ok()?;
        (count.get::<_, i64>(0) == expected).then_some(())
    })
    .await;
    let held = reader.query_one(logged, &[]).await;
    assert!(held.is_err(), "PostgreSQL ends a reader in the way of the standby");
}

#[tokio::test]
async fn a_server_that_turns_read_only_is_left_and_one_that_hangs_is_passed_over() {
    let env = TestEnv::new().await;
    let (first, second) = (Postgres::start().await.unwrap(), Postgres::start().await.unwrap());
    let (mut first_admin, mut second_admin) = (client(&env, &first).await, client(&env, &second).await);
    for admin in [&mut first_admin, &mut second_admin] {
        migrate(admin, &SchemaName::default(), Lanes::default()).await.unwrap();
    }
    let read_only = "ALTER SYSTEM SET default_transaction_read_only = on";
    second_admin.batch_execute(read_only).await.unwrap();
    second_admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    // Accepts, and says nothing.
    let mute = Proxy::start(([127, 0, 0, 1], first.port()).into()).await;
    mute.stall(true);
    let values = values(&url(&[mute.port(), second.port(), first.port()]), env.nats_url());
    let stream = env.stream().await;
    let relay = Running::start(&values);
    enqueue(&first_admin, &env.subject("a"), "first-", 0..50, 0).await;
    await_messages(&stream, 50).await;

    first_admin.batch_execute(read_only).await.unwrap();
    first_admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    second_admin.batch_execute("ALTER SYSTEM RESET default_transaction_read_only").await.unwrap();
    second_admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    // The old sessions of this test may not see it yet.
    let second_admin = client(&env, &second).await;
    second_admin.batch_execute("SET default_transaction_read_only = off").await.unwrap();
    enqueue(&second_admin, &env.subject("a"), "second-", 0..50, 0).await;
    await_messages(&stream, 100).await;
    relay.stop().await;
    // None takes writes.
    second_admin.batch_execute(read_only).await.unwrap();
    second_admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let config = Config::from_values(&crate::relay::support::values(
        &url(&[second.port(), first.port()]),
        env.nats_url(),
    ));
    let config = config.unwrap();
    eventually("it is said", LIMIT, async || {
        let error = Relay::connect(config.clone()).await.err()?;
        oncebox_connect::error::error_chain(&error).contains("does not allow writes").then_some(())
    })
    .await;
}
