//! Old letters, old keys and old messages beside an edit: each command says how they ended.

use oncebox_tests::TestEnv;
use serde_json::Value;
use tokio_postgres::Client;

use super::{
    canary::{begin, stands, take_steps},
    edit::text,
    status::start,
};
use crate::{
    inbox::support::{SCOPE, stream_environment},
    relay::{
        process::{run, run_ok},
        support::{connect, drain, enqueue, stored, values_of, with},
    },
};

async fn bury(client: &Client, key: &str, subject: &str) {
    let sql = "SELECT oncebox.bury($1, $2, '{\"n\": 1}', 'no table', $3, jsonb_build_object('Idempotency-Key', $2::text))";
    assert_eq!(client.query_one(sql, &[&SCOPE, &key, &subject]).await.unwrap().get::<_, &str>(0), "dead");
}

/// As a consumer does it: the inbox handles the edit before an operator retries the old letter.
async fn handle_edit(client: &Client) {
    client.batch_execute("BEGIN DEFERRABLE").await.unwrap();
    let claim = format!("SELECT answer FROM oncebox.claim('{SCOPE}', 'k:oncebox-edit-1', 'new')");
    assert_eq!(text(client, &claim).await, "new");
    client.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn a_letter_whose_edit_came_in_its_place_is_shown_so_and_no_canary_takes_it() {
    let env = stream_environment().await;
    let (client, url) = (env.pg().await, env.database_url());
    for key in ["k", "late", "other"] {
        bury(&client, key, &env.subject("a")).await;
    }
    handle_edit(&client).await;
    let listed = run_ok(url, &["inbox", "dead", "list", "--json"]).await;
    let edits: Vec<Value> =
        listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["edit"].take()).collect();
    assert_eq!(edits, [Value::from("k:oncebox-edit-1 came in its place"), Value::Null, Value::Null]);
    let shown = run_ok(url, &["inbox", "dead", "list"]).await;
    assert!(shown.contains("k:oncebox-edit-1 came in its place; no table"), "{shown}");

    begin(url, &["--all"]).await;
    let relay = connect(&values_of(&env)).await;
    take_steps(&relay).await;
    assert_eq!(stands(&client).await, "running 1 1 0 0 1", "the first is passed over");
    // The edit of the one that was retried is handled before that.
    client.batch_execute("BEGIN DEFERRABLE").await.unwrap();
    let claim = format!("SELECT answer FROM oncebox.claim('{SCOPE}', 'late:oncebox-edit-1', 'new')");
    assert_eq!(text(&client, &claim).await, "new");
    client.batch_execute("COMMIT").await.unwrap();
    take_steps(&relay).await;
    assert_eq!(stands(&client).await, "running 0 1 0 0 2", "it is no failure");

    let (code, _, log) =
        run(url, &["inbox", "dead", "retry", "--key", "k", "--nats-url", env.nats_url()]).await;
    assert!(code == 0 && log.contains("1 dead letter taken out that nobody handles"), "{log}");
    let (code, _, log) = run(url, &["inbox", "dead", "list", "--key", "k"]).await;
    assert_eq!(code, 1, "{log}");
}

/// The stream has lost the edit of a letter: its file is sent again, and no inbox acts twice.
#[tokio::test]
async fn a_lost_edit_is_enqueued_again_under_its_own_key() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    bury(&client, "k", "a.b").await;
    handle_edit(&client).await;
    let again = "SELECT oncebox.enqueue('k:oncebox-edit-1', $1, 'new')";
    client.execute(again, &[&env.subject("a")]).await.unwrap();
    drain(&mut connect(&values_of(&env)).await.worker()).await;
    let sent = stored(&stream).await;
    assert_eq!(sent.iter().map(|message| &*message.key).collect::<Vec<_>>(), ["k:oncebox-edit-1"]);
    client.batch_execute("BEGIN DEFERRABLE").await.unwrap();
    let claim = format!("SELECT answer FROM oncebox.claim('{SCOPE}', 'k:oncebox-edit-1', 'new')");
    assert_eq!(text(&client, &claim).await, "replayed");
}

#[tokio::test]
async fn a_trace_shows_each_edit_of_a_letter() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    let edit = async |payload: &str| {
        let sql = format!(
            "SELECT e.key FROM oncebox.dead_letter AS d,
               oncebox.edit_letter(d.id, d.headers, '{payload}', oncebox.content_digest(d.headers, d.payload), 'mina', 'n') AS e"
        );
        text(&client, &sql).await
    };
    bury(&client, "k", "a.b").await;
    assert_eq!(edit("one").await, "k:oncebox-edit-1");
    bury(&client, "k:oncebox-edit-1", "a.b").await;
    assert_eq!(edit("two").await, "k:oncebox-edit-2");
    for key in ["k", "k:oncebox-edit-1", "k:oncebox-edit-2"] {
        let trace = run_ok(url, &["trace", key, "--json"]).await;
        let trace: Value = serde_json::from_str(&trace).unwrap();
        let edits: Vec<&str> =
            trace["audit"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
        assert_eq!(edits, ["k:oncebox-edit-1", "k"], "{key}");
    }
    let (code, _, log) =
        run(url, &["inbox", "dead", "retry", "--key", "k", "--nats-url", env.nats_url()]).await;
    assert!(code == 1 && log.contains("its key is \"k:oncebox-edit-2\" now"), "{log}");
}

#[tokio::test]
async fn an_old_key_and_a_parked_message_are_told_from_dead_ones() {
    let env = TestEnv::new().await;
    let (_stream, client, values) = start(&env).await;
    let url = env.database_url();
    enqueue(&client, &env.subject("lost.a"), "dead-", 0..1, 0).await;
    drain(&mut connect(&with(&values, [("attempts-max", "1")])).await.worker()).await;
    enqueue(&client, &env.subject("lost.a"), "parked-", 0..1, 0).await;
    drain(&mut connect(&values).await.worker()).await;
    let edit = |key| ["outbox", "dead", "edit", key, "--header", "a=b", "--note", "INC-7"];
    let (code, _, log) = run(url, &edit("parked-0")).await;
    assert!(code == 1 && log.contains("is parked, and only dead messages are edited"), "{log}");
    assert!(log.contains("outbox parked retry --key 'parked-0'"), "{log}");
    run_ok(url, &edit("dead-0")).await;
    for command in [&["outbox", "dead", "retry", "--key", "dead-0"][..], &edit("dead-0")] {
        let (code, _, log) = run(url, command).await;
        assert!(code == 1 && log.contains("its key is \"dead-0:oncebox-edit-1\" now"), "{command:?}: {log}");
    }
}
