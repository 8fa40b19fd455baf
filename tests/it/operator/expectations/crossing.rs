//! Expected arrival beside the rest: large payloads, replays, delayed messages, turns of the log,
//! copies of a database, and many databases in one relay.

use std::{fmt::Write as _, fs, time::Duration};

use oncebox_tests::{TestEnv, eventually};
use tempfile::TempDir;
use tokio::time::sleep;
use tokio_postgres::Client;

use super::{enqueue, expect, handle, missing};
use crate::{
    inbox::{
        consumer::{Running, consumer},
        support::{Does, inbox, stream_environment},
    },
    relay::{
        large::{drained, enqueue_bytes},
        process::{Process, run_ok},
        support::{LIMIT, a_month, connect, drain, maintain, turn_the_ring, values_of},
    },
};

/// An expectation of an inbox that has registered, and the first mark of it: messages that are
/// enqueued from now on are judged.
async fn expected(env: &TestEnv, client: &Client, subject: &str, scope: &str) {
    client.execute("SELECT oncebox.register_scope($1)", &[&scope]).await.unwrap();
    expect(env, &format!("add --subject {subject} --handled-by {scope} --within 1s")).await;
    maintain(&mut connect(&values_of(env)).await.maintainer()).await;
}

async fn until_missing(env: &TestEnv, wanted: &[&str]) {
    let mut maintainer = connect(&values_of(env)).await.maintainer();
    eventually(&format!("{wanted:?} are missing"), LIMIT, async || {
        maintain(&mut maintainer).await;
        (missing(env).await == wanted).then_some(())
    })
    .await;
}

/// A message whose payload is in the Object Store arrives as any other, also by a replay.
#[tokio::test]
async fn a_large_payload_is_missing_until_a_replay_of_it_is_handled() {
    let env = stream_environment().await;
    let client = env.pg().await;
    let inbox = inbox(&env);
    expected(&env, &client, &env.subject("large"), "tests:effect").await;
    enqueue_bytes(&env, &client, "large", 5 << 20).await;
    drained(&env).await;
    env.stream().await.purge().await.unwrap();
    until_missing(&env, &["large"]).await;
    run_ok(env.database_url(), &["outbox", "replay", "--key", "large", "--request", "again"]).await;
    drained(&env).await;
    let running = Running::start(consumer(&env).await, inbox, Does::effect());
    until_missing(&env, &[]).await;
    // A replay of a message that was handled is not expected again.
    run_ok(env.database_url(), &["outbox", "replay", "--key", "large", "--request", "once-more"]).await;
    drained(&env).await;
    sleep(Duration::from_secs(2)).await;
    until_missing(&env, &[]).await;
    running.stop().await;
}

/// The time of a delayed message runs from the moment at which it is moved into the log.
#[tokio::test]
async fn a_delayed_message_is_expected_from_its_time_on() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let subject = env.subject("placed");
    expected(&env, &client, &subject, "billing:charge").await;
    let later = "SELECT oncebox.enqueue_at('later', $1, 'p', clock_timestamp() + interval '1 hour')";
    client.execute(later, &[&subject]).await.unwrap();
    enqueue(&client, &["now"], &subject).await;
    until_missing(&env, &["now"]).await;
    client.batch_execute("UPDATE oncebox.delayed SET not_before = clock_timestamp()").await.unwrap();
    let relay = connect(&values_of(&env)).await;
    relay.mover().run_once().await.unwrap();
    until_missing(&env, &["now", "later"]).await;
}

/// Each turn of the log has a message that is never handled; retention deletes the turns, and
/// missing messages stay missing.
#[tokio::test]
async fn turns_of_the_log_hide_no_missing_message() {
    let env = stream_environment().await;
    let client = env.pg().await;
    let subject = env.subject("placed");
    let values = values_of(&env);
    expected(&env, &client, &subject, "billing:charge").await;
    let mut worker = connect(&values).await.worker();
    for turn in 0..3 {
        let keys: Vec<String> = (0..100).map(|n| format!("{turn}-{n}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        enqueue(&client, &keys, &subject).await;
        for key in &keys[1..] {
            handle(&client, key, "").await;
        }
        drain(&mut worker).await;
        turn_the_ring(&client).await;
    }
    let all = ["0-0", "1-0", "2-0"];
    until_missing(&env, &all).await;
    assert!(a_month(&client, &values).await >= 200, "retention deletes the turns");
    until_missing(&env, &all).await;
    handle(&client, "1-0", "").await;
    until_missing(&env, &["0-0", "2-0"]).await;
}

/// A copy that became an outbox of its own does not miss the messages that the original misses.
#[tokio::test]
async fn an_adopted_copy_misses_nothing_of_its_original() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let subject = env.subject("placed");
    expected(&env, &client, &subject, "billing:charge").await;
    enqueue(&client, &["forgotten"], &subject).await;
    until_missing(&env, &["forgotten"]).await;
    // As relays see it in a copy in the same cluster.
    let copied = "INSERT INTO oncebox.home (system_identifier, database_oid, database_name, address)
                  SELECT c.system_identifier, d.oid::bigint, d.datname, ''
                  FROM pg_control_system() AS c, pg_database AS d WHERE d.datname = 'postgres';
                  SELECT oncebox.adopt(false, true, 'mina', NULL)";
    client.batch_execute(copied).await.unwrap();
    assert!(missing(&env).await.is_empty(), "the original misses it");
    let list = expect(&env, "list").await;
    assert!(list.contains("billing:charge") && !list.contains("forgotten"), "{list}");
    maintain(&mut connect(&values_of(&env)).await.maintainer()).await;
    enqueue(&client, &["own"], &subject).await;
    until_missing(&env, &["own"]).await;
}

/// Each of ten databases expects its messages in the inbox of the next.
#[tokio::test]
async fn ten_databases_of_one_relay_are_judged_each_by_itself() {
    let directory = TempDir::new().unwrap();
    let (mut envs, mut file) = (Vec::new(), String::new());
    for n in 0..10 {
        let env = TestEnv::new().await;
        env.stream().await;
        let (url, nats) = (env.database_url(), env.nats_url());
        let added = write!(
            file,
            "[[database]]\nname = \"d{n}\"\nurl = {url:?}\nnats_url = {nats:?}\nretention = \"64s\"\n"
        );
        added.unwrap();
        let next = (n + 1) % 10;
        let add = format!(
            "add --subject {} --handled-by billing:d{n} --within 1s --in d{next}",
            env.subject("placed")
        );
        expect(&env, &add).await;
        envs.push(env);
    }
    let path = directory.path().join("fleet.toml");
    fs::write(&path, file).unwrap();
    let relay =
        Process::start(&["relay", "--config", path.to_str().unwrap(), "--http-listen", "127.0.0.1:0"], []);
    let looked = "SELECT FROM oncebox.expectation_mark";
    for env in &envs {
        let client = env.pg().await;
        eventually("a relay has looked", LIMIT, async || {
            (!client.query(looked, &[]).await.unwrap().is_empty()).then_some(())
        })
        .await;
    }
    for (n, env) in envs.iter().enumerate() {
        enqueue(&env.pg().await, &["handled", "forgotten"], &env.subject("placed")).await;
        let settled = format!(
            "BEGIN DEFERRABLE; SELECT oncebox.claim('billing:d{n}', 'handled', 'p');
             SELECT oncebox.settle('billing:d{n}', 'handled'); COMMIT"
        );
        envs[(n + 1) % 10].pg().await.batch_execute(&settled).await.unwrap();
    }
    for env in &envs {
        eventually("one is missing", LIMIT, async || (missing(env).await == ["forgotten"]).then_some(()))
            .await;
    }
    relay.signal("TERM").await;
}
