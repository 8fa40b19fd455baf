//! Faults of the schema itself, which look like an empty outbox: the doctor, the status, a relay's
//! readiness and its log tell them; `migrate` repairs the rows that are missing.

use oncebox_connect::error::error_chain;
use oncebox_relay::{Config, Relay, RelayError};
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Postgres, TestEnv, adversity, eventually};
use serde_json::Value;
use tokio_postgres::Client;

use super::{doctor::run_with, status::assert_finds};
use crate::relay::{
    process::Process,
    support::{LIMIT, assert_delivered, client, connect, drain, enqueue, stored, values, values_of, with},
};

/// The doctor's findings of one check, as texts; and its exit code.
async fn diagnosed(url: &str, nats_url: &str, check: &str) -> (i32, Vec<String>) {
    oncebox_tests::diagnosed(&[("DATABASE_URL", url), ("NATS_URL", nats_url)], check).await.unwrap()
}

async fn status(url: &str) -> Value {
    let (code, output, log) = run_with(&["status", "--json"], &[("DATABASE_URL", url)]).await;
    assert_eq!(code, 0, "{output}{log}");
    serde_json::from_str(&output).unwrap()
}

async fn assert_diagnosed(url: &str, nats_url: &str, check: &str, part: &str) {
    let (code, found) = diagnosed(url, nats_url, check).await;
    assert!(found.len() == 1 && found[0].contains(part), "{check}: {found:?}");
    assert!(code == 1 || ["notify-queue", "leader", "turn"].contains(&check), "{check}: {found:?}");
}

/// The tables of the outbox, without the one that a test's cleaner leaves alone most of the time.
async fn tables(pg: &Client) -> Vec<String> {
    let sql = "SELECT relname::text FROM pg_class WHERE relnamespace = 'oncebox'::regnamespace AND relkind = 'r' ORDER BY 1";
    pg.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// C7: no command panics if any table is emptied; the doctor names it, and `migrate` repairs it.
#[tokio::test]
async fn an_outbox_whose_tables_were_emptied_is_found_and_repaired() {
    let env = TestEnv::new().await;
    let (url, pg, stream) = (env.database_url().to_owned(), env.pg().await, env.stream().await);
    let servers = [("DATABASE_URL", &*url), ("NATS_URL", env.nats_url())];
    let tables = tables(&pg).await;
    assert!(tables.len() > 30, "{tables:?}");
    let emptied = tables.iter().map(String::as_str).chain(["cursor, oncebox.lane"]).chain([""]);
    for (round, emptied) in emptied.enumerate() {
        let all = tables.join(", oncebox.");
        let names = if emptied.is_empty() { &all } else { emptied };
        pg.batch_execute(&format!("TRUNCATE oncebox.{names} CASCADE")).await.unwrap();
        for command in [
            &["status"][..],
            &["doctor"],
            &["outbox", "dead", "list"],
            &["outbox", "delayed", "list"],
            &["saga", "list"],
            &["trace", "k"],
        ] {
            let (code, output, log) = run_with(command, &servers).await;
            assert!(
                code != 101 && !log.contains("panicked"),
                "{command:?} without {names}: {code} {output}{log}"
            );
        }
        for (table, check) in [("cursor", "cursors"), ("lane", "lanes"), ("outbox", "identity")] {
            if emptied == table {
                assert_diagnosed(&url, env.nats_url(), check, "oncebox migrate").await;
                let relay = Relay::connect(Config::from_values(&values_of(&env)).unwrap()).await;
                if let Ok(relay) = relay {
                    relay.maintainer().run_once().await.unwrap();
                }
            }
        }
        let (code, output, log) = run_with(&["migrate"], &servers).await;
        assert_eq!(code, 0, "without {names}: {output}{log}");
        let key = format!("after-{round}-");
        let keys = enqueue(&pg, &env.subject("a"), &key, 0..4, 0).await;
        drain(&mut connect(&values_of(&env)).await.worker()).await;
        let delivered: Vec<_> =
            stored(&stream).await.into_iter().filter(|found| found.key.starts_with(&key)).collect();
        assert_delivered(&delivered, &keys);
        let (_, lanes) = diagnosed(&url, env.nats_url(), "lanes").await;
        let (_, cursors) = diagnosed(&url, env.nats_url(), "cursors").await;
        assert!(lanes.is_empty() && cursors.is_empty(), "without {names}: {lanes:?} {cursors:?}");
    }
}

/// C7, C4: a relay that cannot deliver is not ready.
#[tokio::test]
async fn a_relay_without_cursors_is_not_ready() {
    let env = TestEnv::new().await;
    let (pg, _stream) = (env.pg().await, env.stream().await);
    pg.batch_execute("TRUNCATE oncebox.cursor").await.unwrap();
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    let told = eventually("it is not ready", LIMIT, async || {
        let (status, text) = relay.get("/readyz").await;
        (status == 503 && text.contains("no cursor")).then_some(text)
    })
    .await;
    assert!(told.contains("16 of 16"), "{told:?}");
    relay.await_log("oncebox migrate").await;
    relay.kill().await;
}

/// C4: a policy that hides rows from the relay's role is an error, and named.
#[tokio::test]
async fn row_level_security_stops_the_relay_instead_of_hiding_messages() {
    let env = TestEnv::new().await;
    let (pg, _stream) = (env.pg().await, env.stream().await);
    let (url, login) = env.login("oncebox_relay").await;
    enqueue(&pg, &env.subject("a"), "m-", 0..3, 0).await;
    for table in ["message_0", "lane", "cursor", "parked", "receipt"] {
        pg.batch_execute(&format!("ALTER TABLE oncebox.{table} ENABLE ROW LEVEL SECURITY")).await.unwrap();
        assert_diagnosed(&url, env.nats_url(), "row-security", table).await;
        pg.batch_execute(&format!("ALTER TABLE oncebox.{table} DISABLE ROW LEVEL SECURITY")).await.unwrap();
    }
    let relay = connect(&values(&url, env.nats_url())).await;
    // Through the view of all segments it sees them all; then it reads the one table.
    relay.maintainer().run_once().await.unwrap();
    assert_eq!(drain(&mut relay.worker()).await, 3);
    enqueue(&pg, &env.subject("a"), "n-", 0..3, 0).await;
    pg.batch_execute("ALTER TABLE oncebox.message_0 ENABLE ROW LEVEL SECURITY").await.unwrap();
    let refused = relay.worker().run_once().await.unwrap_err();
    assert!(error_chain(&refused).contains("row-level security"), "{}", error_chain(&refused));
    pg.batch_execute("ALTER TABLE oncebox.message_0 DISABLE ROW LEVEL SECURITY").await.unwrap();
    assert_eq!(drain(&mut relay.worker()).await, 3);
    pg.batch_execute(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await.unwrap();
}

/// A log that grows: its turn should have ended long ago.
#[tokio::test]
async fn a_turn_that_does_not_end_is_found() {
    let env = TestEnv::new().await;
    let (pg, _stream, url) = (env.pg().await, env.stream().await, env.database_url());
    let begun = async |minutes: i32| {
        let sql = "UPDATE oncebox.segment SET began_at = now() - make_interval(mins => $1) WHERE number = 0";
        pg.execute(sql, &[&minutes]).await.unwrap();
    };
    let relay = "INSERT INTO oncebox.relay (retention_seconds, dead_blocks) VALUES (7200, true)";
    for (minutes, relay) in [(65, ""), (55, relay)] {
        begun(minutes).await;
        pg.batch_execute(relay).await.unwrap();
        assert_eq!(diagnosed(url, env.nats_url(), "turn").await.1, Vec::<String>::new(), "{minutes} {relay}");
    }
    begun(65).await;
    assert_diagnosed(url, env.nats_url(), "turn", "a transaction that has enqueued is open").await;
    pg.batch_execute("UPDATE oncebox.segment SET is_empty = false, is_live = true WHERE number = 1")
        .await
        .unwrap();
    assert_diagnosed(url, env.nats_url(), "turn", "message_1, the next one, holds messages that are due")
        .await;
    assert_finds(&status(url).await, &["does not end", "message_0 takes messages since", "relays try again"]);
}

/// C13: faults that hold no message up yet, and faults that fail every enqueue.
#[tokio::test]
async fn a_sequence_a_schema_or_a_right_that_was_changed_is_found() {
    let env = TestEnv::new().await;
    let (pg, _stream, url) = (env.pg().await, env.stream().await, env.database_url());
    pg.batch_execute("ALTER SEQUENCE oncebox.message_id_seq CACHE 2").await.unwrap();
    assert_diagnosed(url, env.nats_url(), "sequence-cache", "CACHE 1").await;
    assert_finds(&status(url).await, &["CACHE 2", "overtake", "CACHE 1"]);
    pg.batch_execute("ALTER SEQUENCE oncebox.message_id_seq CACHE 1").await.unwrap();

    let stranger = format!("{}_app", env.name());
    pg.batch_execute(&format!("CREATE ROLE {stranger}; GRANT DELETE ON oncebox.message_0 TO {stranger}"))
        .await
        .unwrap();
    assert_diagnosed(url, env.nats_url(), "grants", &format!("{stranger}: DELETE on message")).await;
    let environment = [("DATABASE_URL", url), ("NATS_URL", env.nats_url())];
    assert_eq!(run_with(&["migrate"], &environment).await.0, 0);
    assert_eq!(
        diagnosed(url, env.nats_url(), "grants").await.1,
        Vec::<String>::new(),
        "taken back by migrate"
    );
    pg.batch_execute(&format!("DROP OWNED BY {stranger}; DROP ROLE {stranger}")).await.unwrap();

    let mut other = client(url).await;
    let thief = "SELECT pg_advisory_lock(hashtextextended('oncebox leader: oncebox', 0))";
    other.batch_execute(&format!("SET application_name = 'thief'; {thief}")).await.unwrap();
    assert_finds(&status(url).await, &["thief", "agree on a leader", "end that session"]);
    other.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();

    pg.batch_execute("ALTER SCHEMA oncebox RENAME TO moved").await.unwrap();
    let (code, output, log) = run_with(&["doctor", "--json", "--schema", "moved"], &environment).await;
    assert!(
        code == 1 && output.contains("\"renamed\"") && output.contains("RENAME TO oncebox"),
        "{output}{log}"
    );
    pg.batch_execute("ALTER SCHEMA moved RENAME TO oncebox").await.unwrap();
    migrate(&mut other, &SchemaName::default(), Lanes::default()).await.unwrap();
}

/// C5: a row that a subscription applied late is neither due nor settled.
#[tokio::test]
async fn messages_of_another_cluster_that_were_applied_late_are_counted() {
    let env = TestEnv::new().await;
    let (pg, _stream) = (env.pg().await, env.stream().await);
    enqueue(&pg, &env.subject("a"), "m-", 0..40, 0).await;
    drain(&mut connect(&values_of(&env)).await.worker()).await;
    assert_eq!(
        diagnosed(env.database_url(), env.nats_url(), "foreign-messages").await.1,
        Vec::<String>::new()
    );
    let late = "INSERT INTO oncebox.message_0 (id, lane, xact, key, subject, payload)
                OVERRIDING SYSTEM VALUE
                SELECT high - 1, lane, '4000000000', 'late-' || lane, $1, 'p' FROM oncebox.lane_cursor WHERE high > 2";
    let delete =
        "DELETE FROM oncebox.message_0 WHERE (lane, id) IN (SELECT lane, high - 1 FROM oncebox.lane_cursor)";
    pg.batch_execute(delete).await.unwrap();
    let applied = pg.execute(late, &[&env.subject("a")]).await.unwrap();
    assert!(applied > 0);
    assert_diagnosed(env.database_url(), env.nats_url(), "foreign-messages", &applied.to_string()).await;
    assert_finds(
        &status(env.database_url()).await,
        &["another cluster", "not delivered", "Moving to another cluster"],
    );
}

/// C5: a relay beside a subscription would take its late rows for settled.
#[tokio::test]
async fn a_relay_refuses_to_start_where_a_subscription_writes_the_log() {
    let env = TestEnv::new().await;
    let _stream = env.stream().await;
    let server = Postgres::start_with(&[("wal_level", "logical")]).await.unwrap();
    let mut old = client(&server.url("postgres")).await;
    old.batch_execute("CREATE DATABASE new").await.unwrap();
    let mut new = client(&server.url("new")).await;
    for client in [&mut old, &mut new] {
        migrate(client, &SchemaName::default(), Lanes::default()).await.unwrap();
    }
    adversity::subscribe(&old, &server.url("postgres"), &new).await.unwrap();
    let values = values(&server.url("new"), env.nats_url());
    let refused = Relay::connect(Config::from_values(&values).unwrap()).await.unwrap_err();
    assert!(
        matches!(&refused, RelayError::Subscribed(text) if text.contains("subscription moved")),
        "{refused}"
    );
    assert_diagnosed(&server.url("new"), env.nats_url(), "subscription", "docs/upgrade.md").await;
    new.batch_execute("DROP SUBSCRIPTION moved").await.unwrap();
    Relay::connect(Config::from_values(&values).unwrap()).await.unwrap();
}

/// C2: a queue that is full fails the COMMIT of everybody who notifies.
#[tokio::test]
async fn a_full_notify_queue_fails_no_producer() {
    let env = TestEnv::new().await;
    let _stream = env.stream().await;
    // Older servers have a queue of 8 GiB, which no test fills.
    if Postgres::version().unwrap() < (17, 0) {
        return;
    }
    let server = Postgres::start_with(adversity::SMALL_NOTIFY_QUEUE).await.unwrap();
    let mut producer = client(&server.url("postgres")).await;
    migrate(&mut producer, &SchemaName::default(), Lanes::default()).await.unwrap();
    let (_listener, full) = adversity::fill_notify_queue(&server.url("postgres"), &producer).await.unwrap();
    assert_eq!(full.code().map(|code| code.code().to_owned()).as_deref(), Some("54000"), "{full:?}");
    for n in 0..3 {
        producer.execute("SELECT setval('oncebox.relay_asleep', 1)", &[]).await.unwrap();
        enqueue(&**producer, &env.subject("a"), "m-", n..n + 1, 0).await;
    }
    assert_diagnosed(&server.url("postgres"), env.nats_url(), "notify-queue", "idle in transaction").await;
}

/// C13: a command does not wait for a standby that is gone.
#[tokio::test]
async fn commands_do_not_wait_for_a_synchronous_standby() {
    let env = TestEnv::new().await;
    let _stream = env.stream().await;
    let server = Postgres::start().await.unwrap();
    let mut producer = client(&server.url("postgres")).await;
    migrate(&mut producer, &SchemaName::default(), Lanes::default()).await.unwrap();
    enqueue(&**producer, &env.subject("a"), "m-", 0..3, 0).await;
    drain(&mut connect(&values(&server.url("postgres"), env.nats_url())).await.worker()).await;
    producer.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'gone'").await.unwrap();
    producer.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let url = server.url("postgres");
    eventually("the setting is there", LIMIT, async || {
        let (_, found) = diagnosed(&url, env.nats_url(), "synchronous-standby").await;
        found.first().filter(|found| found.contains("gone")).map(drop)
    })
    .await;
    let (code, output, log) =
        run_with(&["outbox", "replay", "--key", "m-1"], &[("DATABASE_URL", &url)]).await;
    assert!(code == 0, "{output}{log}");
}
