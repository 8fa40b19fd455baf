//! Replays: settled messages are sent again under an id of their own, in order, as often as asked
//! and no more.

use std::collections::HashMap;

use oncebox_tests::{TestEnv, eventually};
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, run, run_ok},
    support::{LIMIT, connect, drain, enqueue, fresh_stream, stored, stream_config, values_of, with},
};

/// The ids by which the broker knows the copies beyond the first `after` messages.
async fn copies(env: &TestEnv, after: usize) -> Vec<String> {
    stored(&env.stream().await).await.split_off(after).into_iter().map(|message| message.key).collect()
}

async fn parked(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM oncebox.parked", &[]).await.unwrap().get(0)
}

async fn would_replay(url: &str, selectors: &[&str], count: u32) {
    let (code, output, log) = run(url, &[&["outbox", "replay", "--dry-run"], selectors].concat()).await;
    assert_eq!(code, i32::from(count == 0), "{selectors:?}: {log}");
    let noun = if count == 1 { "message" } else { "messages" };
    assert!(output.starts_with(&format!("would replay {count} {noun}\n")), "{selectors:?}: {output}");
}

#[tokio::test]
async fn settled_messages_are_replayed_by_key_subject_time_and_id() {
    let env = TestEnv::new().await;
    env.stream().await;
    let client = env.pg().await;
    let values = values_of(&env);
    let mut worker = connect(&values).await.worker();
    enqueue(&client, &env.subject("a.x"), "a-", 0..30, 3).await;
    drain(&mut worker).await;
    let sql = "SELECT max(id), to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM oncebox.message";
    let row = client.query_one(sql, &[]).await.unwrap();
    let (last_a, between) = (row.get::<_, i64>(0).to_string(), row.get::<_, String>(1));
    enqueue(&client, &env.subject("b.x"), "b-", 0..20, 0).await;
    drain(&mut worker).await;
    // Not settled: nothing of these is replayed.
    enqueue(&client, &env.subject("b.x"), "due-", 0..5, 0).await;

    let url = env.database_url();
    let (a, b) = (env.subject("a.>"), env.subject("*.x"));
    for (selectors, count) in [
        (&["--all"][..], 50),
        (&["--key", "a-7"], 1),
        (&["--key", "due-1"], 0),
        (&["--key", "nobody"], 0),
        (&["--subject", &a], 30),
        (&["--subject", &b], 50),
        (&["--subject", &b, "--since", &between], 20),
        (&["--until", &between], 30),
        (&["--to-id", &last_a], 30),
        (&["--from-id", &last_a], 21),
        (&["--from-id", &last_a, "--to-id", &last_a], 1),
        (&["--all", "--limit", "12"], 12),
    ] {
        would_replay(url, selectors, count).await;
    }
    assert_eq!(parked(&client).await, 0, "counting changes nothing");

    // Twice the same key: each time a new number.
    for number in 1..3 {
        let output = run_ok(url, &["outbox", "replay", "--key", "a-7", "--by", "mina"]).await;
        assert_eq!(output, "asked the relays to replay 1 message\n");
        drain(&mut worker).await;
        assert_eq!(copies(&env, 54 + number).await, [format!("a-7;r={number}")]);
    }
    let raw = env.messages().await.pop().unwrap();
    assert_eq!(raw.headers.get("Idempotency-Key").unwrap().as_str(), "a-7", "the inbox knows it");
    // Not while the first is still to be sent.
    run_ok(url, &["outbox", "replay", "--key", "b-3"]).await;
    let (code, _, log) = run(url, &["outbox", "replay", "--key", "b-3"]).await;
    assert!(code == 1 && log.contains("its replay 1 is"), "{log}");
    drain(&mut worker).await;
    assert_eq!(copies(&env, 57).await, ["b-3;r=1"]);

    // All of a subject, each ordering key in order, and later messages after its replays.
    run_ok(url, &["outbox", "replay", "--subject", &a]).await;
    enqueue(&client, &env.subject("a.x"), "a-", 30..33, 3).await;
    drain(&mut worker).await;
    let after: Vec<_> = stored(&env.stream().await).await.split_off(58);
    assert_eq!(after.len(), 33);
    let mut last: HashMap<_, i64> = HashMap::new();
    for message in &after {
        let before = last.insert(message.ordering_key.clone().unwrap(), message.id).unwrap_or(0);
        assert!(before < message.id, "{after:#?}");
    }
    assert_eq!(after.iter().filter(|message| message.key.ends_with(";r=1")).count(), 29);
    assert!(after.iter().any(|message| message.key == "a-7;r=3"));
    assert_eq!(parked(&client).await, 0);
    let sql = "SELECT count(*), count(operator) FROM oncebox.audit WHERE action = 'replay'";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (33, 2));
}

#[tokio::test]
async fn what_was_never_stored_is_not_replayed() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken"))).await;
    let client = env.pg().await;
    let mut worker = connect(&with(&values_of(&env), [("attempts-max", "1")])).await.worker();
    enqueue(&client, &env.subject("lost"), "lost-", 0..4, 0).await;
    enqueue(&client, &env.subject("taken"), "taken-", 0..3, 0).await;
    drain(&mut worker).await;
    let url = env.database_url();
    run_ok(url, &["outbox", "dead", "discard", "--limit", "2", "--all"]).await;
    // Two are dead, two were given up.
    assert_eq!(run_ok(url, &["outbox", "replay", "--all"]).await, "asked the relays to replay 3 messages\n");
    env.jetstream().await.update_stream(stream_config(env.name(), &env.subject(">"))).await.unwrap();
    drain(&mut worker).await;
    let mut keys: Vec<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
    keys.sort();
    assert_eq!(keys, ["taken-0", "taken-0;r=1", "taken-1", "taken-1;r=1", "taken-2", "taken-2;r=1"]);
}

#[tokio::test]
async fn a_replay_that_fails_is_dead_and_discarding_it_leaves_the_message_alone() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("a"))).await;
    let client = env.pg().await;
    let mut worker = connect(&with(&values_of(&env), [("attempts-max", "1")])).await.worker();
    enqueue(&client, &env.subject("a"), "m-", 0..2, 0).await;
    drain(&mut worker).await;
    env.jetstream().await.update_stream(stream_config(env.name(), &env.subject("b"))).await.unwrap();
    let url = env.database_url();
    run_ok(url, &["outbox", "replay", "--all"]).await;
    drain(&mut worker).await;
    let list = run_ok(url, &["outbox", "dead", "list"]).await;
    assert!(list.contains("  m-0  1 ") && list.contains("  m-1  1 "), "{list}");
    run_ok(url, &["outbox", "dead", "discard", "--key", "m-0"]).await;
    env.jetstream().await.update_stream(stream_config(env.name(), &env.subject(">"))).await.unwrap();
    // The one by a retry, the other by another replay.
    run_ok(url, &["outbox", "dead", "retry", "--key", "m-1"]).await;
    run_ok(url, &["outbox", "replay", "--key", "m-0"]).await;
    drain(&mut worker).await;
    let mut keys: Vec<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
    keys.sort();
    assert_eq!(keys, ["m-0", "m-0;r=2", "m-1", "m-1;r=1"]);
}

#[tokio::test]
async fn a_replay_that_is_cut_off_goes_on_under_its_name_and_sends_nothing_twice() {
    let env = TestEnv::new().await;
    env.stream().await;
    let client = env.pg().await;
    let mut worker = connect(&values_of(&env)).await.worker();
    enqueue(&client, &env.subject("a"), "m-", 0..800, 40).await;
    drain(&mut worker).await;
    let mut other = env.pg().await;
    let pass = other.transaction().await.unwrap();
    pass.execute("SELECT FROM oncebox.lane WHERE lane = 7 FOR UPDATE", &[]).await.unwrap();
    let replay = ["outbox", "replay", "--all", "--request", "INC-7"];
    let command = Process::start(&replay, [("DATABASE_URL", env.database_url())]);
    let waiting =
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("it waits for the lane", LIMIT, async || client.query_opt(waiting, &[]).await.unwrap()).await;
    command.kill().await;
    pass.rollback().await.unwrap();
    eventually("the killed command's session ends", LIMIT, async || {
        client.query_opt(waiting, &[]).await.unwrap().is_none().then_some(())
    })
    .await;
    let asked = parked(&client).await;
    assert!((1..800).contains(&asked), "{asked}");
    // Some of it is sent before the command is run again.
    drain(&mut worker).await;
    run_ok(env.database_url(), &replay).await;
    drain(&mut worker).await;
    let copies = copies(&env, 800).await;
    assert_eq!(copies.len(), 800);
    assert!(copies.iter().all(|id| id.ends_with(";r=1")), "{copies:?}");
    assert_eq!(run_ok(env.database_url(), &replay).await, "asked the relays to replay 0 messages\n");
}

#[tokio::test]
async fn bad_arguments_exit_64() {
    let env = TestEnv::new().await;
    for (arguments, part) in [
        (&["outbox", "replay"][..], "required"),
        (&["outbox", "replay", "--since", "yesterday"], "--since"),
        (&["outbox", "replay", "--from-id", "0"], "--from-id"),
        (&["outbox", "replay", "--all", "--key", "k"], "cannot be used"),
        (&["outbox", "replay", "--all", "--request", ""], "1 to 255 bytes"),
    ] {
        let (code, output, log) = run(env.database_url(), arguments).await;
        assert_eq!((code, output.as_str()), (64, ""), "{arguments:?}: {log}");
        assert!(log.contains(part), "{arguments:?}: {log}");
    }
}
