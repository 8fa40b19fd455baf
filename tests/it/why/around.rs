//! Obstacles of the schema, of another database, of a cluster and of the bucket: made, named, and
//! mended by the remedy where a command can.

use async_nats::jetstream::stream::Config;
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{NatsCluster, Postgres, TestEnv, adversity};

use super::support::{Scene, assert_held, why};
use crate::{
    operator::{doctor::run_with, status::named},
    relay::support::{LIMIT, client, connect, drain, fresh_stream, stream_config, with},
};

/// The only answer of the command, asked as this login.
async fn answer(url: &str, nats_url: &str, more: &[&str]) -> serde_json::Value {
    let (_, told) = why(url, nats_url, &[&["order-1"], more].concat()).await;
    told["answers"][0].clone()
}

#[tokio::test]
async fn policies_that_hide_rows_and_their_statement() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    let (login, role) = scene.env.login("oncebox_operator").await;
    scene.pg.batch_execute("ALTER TABLE oncebox.lane ENABLE ROW LEVEL SECURITY").await.unwrap();
    let environment = [("DATABASE_URL", login.as_str()), ("NATS_URL", scene.env.nats_url())];
    for command in [&["why", "order-1"][..], &["status"]] {
        let (code, output, log) = run_with(command, &environment).await;
        let told = output + &log;
        assert!(code != 0 && told.contains("row level security holds for this database user"), "{told}");
        let remedy = "ALTER TABLE SCHEMA.TABLE DISABLE ROW LEVEL SECURITY";
        assert!(told.contains(remedy) && told.contains("lane"), "{told}");
    }
    scene.pg.batch_execute("ALTER TABLE oncebox.lane DISABLE ROW LEVEL SECURITY").await.unwrap();
    // The message is there, and is not seen.
    scene.pg.batch_execute("ALTER TABLE oncebox.message_0 ENABLE ROW LEVEL SECURITY").await.unwrap();
    let (code, output, log) = run_with(&["why", "order-1"], &environment).await;
    let told = output + &log;
    assert!(code != 0 && told.contains("row level security holds") && told.contains("message_0"), "{told}");
    assert!(!told.contains("never enqueued"), "{told}");
    scene.pg.batch_execute("ALTER TABLE oncebox.message_0 DISABLE ROW LEVEL SECURITY").await.unwrap();
    assert_eq!(answer(&login, scene.env.nats_url(), &[]).await["outcome"], "on-its-way");
    scene.pg.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
}

#[tokio::test]
async fn a_schema_that_was_renamed_gets_its_name_back() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    scene.pg.batch_execute("ALTER SCHEMA oncebox RENAME TO moved").await.unwrap();
    let (url, nats_url) = (scene.env.database_url(), scene.env.nats_url());
    let environment = [("DATABASE_URL", url), ("NATS_URL", nats_url)];
    let (code, output, log) = run_with(&["why", "order-1", "--schema", "moved"], &environment).await;
    assert!(code != 0 && log.contains("it was renamed") && log.contains("`oncebox doctor`"), "{output}{log}");
    let remedy = "ALTER SCHEMA moved RENAME TO oncebox";
    let (_, found, _) = run_with(&["doctor", "--schema", "moved"], &environment).await;
    assert!(found.contains(remedy), "{found}");
    scene.pg.batch_execute(remedy).await.unwrap();
    assert_eq!(answer(url, nats_url, &[]).await["outcome"], "on-its-way");
}

/// Relays refuse to start there.
#[tokio::test]
async fn a_subscription_that_writes_the_log_holds_all_messages() {
    let env = TestEnv::new().await;
    let server = Postgres::start_with(&[("wal_level", "logical")]).await.unwrap();
    let mut old = client(&server.url("postgres")).await;
    old.batch_execute("CREATE DATABASE new").await.unwrap();
    let mut new = client(&server.url("new")).await;
    for client in [&mut old, &mut new] {
        migrate(client, &SchemaName::default(), Lanes::default()).await.unwrap();
    }
    new.batch_execute("SELECT oncebox.enqueue('order-1', 'orders.placed', '1')").await.unwrap();
    adversity::subscribe(&old, &server.url("postgres"), &new).await.unwrap();
    let url = format!("{}?application_name=oncebox%20relay", server.url("new"));
    let _relay = client(&url).await;
    let found = answer(&server.url("new"), env.nats_url(), &[]).await;
    assert_held(
        &found,
        "schema",
        &["the subscription moved writes into table message"],
        &["docs/upgrade.md"],
    );
    new.batch_execute("DROP SUBSCRIPTION moved").await.unwrap();
}

#[tokio::test]
async fn a_stream_whose_server_is_gone_waits_for_it() {
    let env = TestEnv::new().await;
    let pg = env.pg().await;
    let mut cluster = NatsCluster::start().await.unwrap();
    let config = Config { num_replicas: 1, ..stream_config("BAD", "bad.>") };
    cluster.create_stream(config).await.unwrap();
    let node = cluster.leader("BAD").await.unwrap();
    pg.batch_execute("SELECT oncebox.enqueue('order-1', 'bad.a', '1')").await.unwrap();
    let _relay = client(&named(&env, "oncebox%20relay")).await;
    cluster.nodes_mut()[node].kill().await;
    let left = cluster.nodes()[(node + 1) % 3].url();
    // The servers that are left notice it after a while, and may have to choose a leader first.
    let found = oncebox_tests::eventually("it has no leader", LIMIT, async || {
        Some(answer(env.database_url(), &left, &[]).await).filter(|found| found["station"] == "stream")
    });
    let remedy = ["bring back the servers that hold it"];
    assert_held(&found.await, "stream", &["stream BAD has no leader"], &remedy);
    cluster.nodes_mut()[node].resume().await.unwrap();
    let found = oncebox_tests::within("it has a leader", 2 * LIMIT, async || {
        let found = answer(env.database_url(), &left, &[]).await;
        Ok((found["station"] != "stream" && found["station"] != "nats").then_some(()))
    });
    let is_mended = found.await.is_ok();
    assert!(is_mended, "{}", answer(env.database_url(), &left, &[]).await);
}

/// A large message, whose payload goes to a bucket that takes nothing.
#[tokio::test]
async fn a_bucket_that_is_sealed_is_named() {
    let scene = Scene::new().await;
    let bucket = format!("OBJ_{}", scene.env.name());
    let subjects = ["C", "M"].map(|kind| format!("$O.{}.{kind}.>", scene.env.name()));
    let config = Config { subjects: subjects.to_vec(), allow_rollup: true, ..stream_config(&bucket, "") };
    fresh_stream(scene.env.nats_url(), config.clone()).await;
    scene.env.jetstream().await.update_stream(Config { sealed: true, ..config }).await.unwrap();
    let large = "SELECT oncebox.enqueue('order-1', $1, convert_to(repeat('x', 3000000), 'UTF8'))";
    scene.pg.execute(large, &[&scene.taken]).await.unwrap();
    let values = with(&scene.values, [("object-store", scene.env.name())]);
    drain(&mut connect(&values).await.worker()).await;
    scene.assert_held("order-1", "outbox", &["set aside", "10109"], &["--object-store", "seal"]).await;
}
