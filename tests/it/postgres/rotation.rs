//! The password for PostgreSQL is replaced in its file, under a running relay.

use std::fs;

use oncebox_relay::Values;
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Postgres, TestEnv, eventually};
use tokio_postgres::{Client, NoTls};

use crate::relay::support::{LIMIT, Running, await_messages, count, enqueue, values, with};

const HBA: &str = "host all postgres 127.0.0.1/32 trust
host all relay 127.0.0.1/32 scram-sha-256
";

async fn rotated(admin: &Client, env: &TestEnv, values: &Values, write: impl Fn(&str)) {
    let stream = env.stream().await;
    let stored = count(&stream).await;
    let relay = Running::start(values);
    enqueue(admin, &env.subject("a"), &format!("before{stored}-"), 0..1, 0).await;
    await_messages(&stream, stored + 1).await;
    admin.batch_execute("ALTER ROLE relay PASSWORD 'second'").await.unwrap();
    write("second");
    let sessions = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'relay'";
    assert!(admin.query_one(sessions, &[]).await.unwrap().get::<_, i64>(0) > 0);
    enqueue(admin, &env.subject("a"), &format!("after{stored}-"), 0..1, 0).await;
    await_messages(&stream, stored + 2).await;
    relay.stop().await;
    admin.batch_execute("ALTER ROLE relay PASSWORD 'first'").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_replaced_in_its_file_is_used_for_the_next_connection() {
    let env = TestEnv::new().await;
    let server = Postgres::start().await.unwrap();
    let (mut admin, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.unwrap();
    env.keep(async move { drop(connection.await) });
    migrate(&mut admin, &SchemaName::default(), Lanes::default()).await.unwrap();
    let role = "CREATE ROLE relay LOGIN PASSWORD 'first' IN ROLE oncebox_postgres_relay";
    admin.batch_execute(role).await.unwrap();
    server.write("pg_hba.conf", HBA).unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let plain = format!("postgres://relay@127.0.0.1:{}/postgres", server.port());
    eventually("the server demands a password", LIMIT, async || {
        tokio_postgres::connect(&plain, NoTls).await.err().map(drop)
    })
    .await;

    let directory = tempfile::tempdir().unwrap();
    let (password, url) = (directory.path().join("password"), directory.path().join("url"));
    let write = |text: &str| fs::write(&password, format!("{text}\n")).unwrap();
    write("first");
    let by_password =
        with(&values(&plain, env.nats_url()), [("database-password-file", password.to_str().unwrap())]);
    rotated(&admin, &env, &by_password, write).await;

    let write = |text: &str| fs::write(&url, plain.replace("relay@", &format!("relay:{text}@"))).unwrap();
    write("first");
    let mut by_url = with(&values(&plain, env.nats_url()), [("database-url-file", url.to_str().unwrap())]);
    by_url.remove("database-url");
    rotated(&admin, &env, &by_url, write).await;
}
