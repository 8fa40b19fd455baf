//! Dead messages: an operator lists, shows, retries and discards them, while relays run.

use async_nats::jetstream::stream::Stream;
use oncebox_relay::{Values, parts::Worker};
use oncebox_tests::{TestEnv, eventually};
use serde_json::Value;
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, run, run_ok},
    support::{
        LIMIT, Running, assert_delivered, connect, drain, enqueue, fresh_stream, stored, stream_config,
        values_of, with,
    },
};

/// A stream that takes subjects below `taken`; a message to one below `lost` is dead after the
/// first attempt.
async fn with_dead(env: &TestEnv) -> (Stream, Client, Values) {
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken.>"))).await;
    (stream, env.pg().await, with(&values_of(env), [("attempts-max", "1")]))
}

/// The operator mends the stream.
async fn take_all(env: &TestEnv) {
    env.jetstream().await.update_stream(stream_config(env.name(), &env.subject(">"))).await.unwrap();
}

async fn drain_until_stored(worker: &mut Worker, stream: &Stream, count: usize) {
    eventually("messages are stored", LIMIT, async || {
        drain(worker).await;
        (stream.get_info().await.unwrap().state.messages >= count as u64).then_some(())
    })
    .await;
}

/// One message with an ordering key.
async fn enqueue_ordered(client: &Client, key: &str, subject: &str, ordering_key: &str) -> String {
    let sql = "SELECT oncebox.enqueue($1, $2, 'p', '{\"trace\": \"t\"}', $3)";
    client.execute(sql, &[&key, &subject, &ordering_key]).await.unwrap();
    key.to_owned()
}

fn keys(output: &str) -> Vec<String> {
    let key = |line: &str| serde_json::from_str::<Value>(line).unwrap()["key"].as_str().unwrap().to_owned();
    output.lines().map(key).collect()
}

/// An operator's action: action, operator, note, key, reason.
async fn audit(client: &Client) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', action, operator, note, key, database_user = session_user,
                                happened_at > now() - interval '1 minute', reason <> '')
               FROM oncebox.audit ORDER BY id";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn count(client: &Client, table_and_condition: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM oncebox.{table_and_condition}");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

/// The keys of the dead messages that are listed.
async fn list(url: &str, arguments: &[&str]) -> Vec<String> {
    keys(&run_ok(url, &[&["outbox", "dead", "list", "--json"], arguments].concat()).await)
}

async fn assert_nothing(url: &str, arguments: &[&str]) {
    let (code, output, log) = run(url, &[&["outbox", "dead", "list", "--json"], arguments].concat()).await;
    assert_eq!((code, output.as_str()), (1, ""), "{arguments:?}: {log}");
}

async fn check_lists(env: &TestEnv, lost: &str, dead: &[String]) {
    let url = env.database_url();
    assert_eq!(list(url, &[]).await, dead, "in the order of their ids");
    assert_eq!(list(url, &["--limit", "3"]).await, dead[..3]);
    assert_eq!(list(url, &["--key", "two-first"]).await, ["two-first"]);
    assert_nothing(url, &["--key", "two-1"]).await; // it waits, it is not dead
    assert_eq!(list(url, &["--ordering-key", "two"]).await, ["two-first"]);
    assert_eq!(list(url, &["--subject", &env.subject("lost.*.x")]).await.len(), 23);
    assert_eq!(list(url, &["--subject", &env.subject("lost.b.>")]).await.len(), 20);
    assert_eq!(list(url, &["--subject", lost, "--reason", "NO STREAM takes"]).await.len(), 3);
    assert_nothing(url, &["--subject", &env.subject("lost.*")]).await;
    assert_nothing(url, &["--reason", "%"]).await; // no wildcard
    let table = run_ok(url, &["outbox", "dead", "list", "--ordering-key", "one"]).await;
    assert!(table.starts_with("ID ") && table.contains("one-first  "), "{table}");
    assert_eq!(table.lines().count(), 2, "{table}");
    let shown = run_ok(url, &["outbox", "dead", "show", "one-first", "--payload", "--json"]).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&shown["state"], &shown["behind"], &shown["payload"]),
        (&"dead".into(), &5.into(), &"p".into())
    );
    assert_eq!(shown["headers"]["trace"], "t");
    let shown = run_ok(url, &["outbox", "dead", "show", "one-1"]).await;
    assert!(shown.contains("waiting") && !shown.contains("payload  "), "{shown}");
}

#[tokio::test]
async fn dead_messages_are_selected_retried_and_discarded_and_their_ordering_keys_go_on_in_order() {
    let env = TestEnv::new().await;
    let (stream, client, values) = with_dead(&env).await;
    let (lost, taken) = (env.subject("lost.a.x"), env.subject("taken"));
    let mut dead = enqueue(&client, &env.subject("lost.b.x"), "free-", 0..20, 0).await;
    for key in ["one", "two", "three"] {
        dead.push(enqueue_ordered(&client, &format!("{key}-first"), &lost, key).await);
        for n in 1..6 {
            enqueue_ordered(&client, &format!("{key}-{n}"), &format!("{taken}.{key}"), key).await;
        }
    }
    let mut worker = connect(&values).await.worker();
    drain(&mut worker).await;
    assert_eq!(stored(&stream).await, []);

    let url = env.database_url();
    check_lists(&env, &lost, &dead).await;

    // Counting changes nothing.
    let all = ["outbox", "dead", "discard", "--all", "--dry-run", "--log", "error"];
    let told = run_ok(url, &all).await;
    let (counted, token) = told.split_once('\n').unwrap();
    assert_eq!(counted, "would discard 23 messages");
    assert!(token.starts_with("to discard these rows and no other: --confirm 1-"), "{token}");
    let some = run_ok(url, &[&all[..], &["--limit", "4"]].concat()).await;
    assert!(some.starts_with("would discard 4 messages\n"), "no more than the limit: {some}");
    assert_eq!(drain(&mut worker).await, 0);
    assert_eq!(list(url, &[]).await, dead);
    assert_eq!(audit(&client).await, [""; 0]);

    let by = ["--by", "mina", "--note", "INC-7"];
    let discard = ["outbox", "dead", "discard", "--ordering-key", "one"];
    assert!(run_ok(url, &[&discard[..], &by].concat()).await.starts_with("discarded 1 message\n"));
    let limited =
        ["outbox", "dead", "discard", "--subject", &env.subject("lost.b.>"), "--limit", "4", "--json"];
    let done: Value = serde_json::from_str(&run_ok(url, &limited).await).unwrap();
    let undo = &done["undo"];
    let discarded = serde_json::json!({ "action": "discard", "messages": 4, "dry_run": false, "undo": undo });
    assert!(done == discarded && undo.is_i64(), "{done}");
    let mut expected: Vec<String> = (1..6).map(|n| format!("one-{n}")).collect();
    drain_until_stored(&mut worker, &stream, 5).await;
    assert_eq!(
        assert_delivered(&stored(&stream).await, &expected),
        0,
        "what waited behind went on, in order"
    );

    take_all(&env).await;
    let retry = ["outbox", "dead", "retry", "--subject", &env.subject("lost.a.>"), "--reason", "stream"];
    assert_eq!(run_ok(url, &retry).await, "retried 2 messages\n");
    for key in ["two", "three"] {
        expected.push(format!("{key}-first"));
        expected.extend((1..6).map(|n| format!("{key}-{n}")));
    }
    drain_until_stored(&mut worker, &stream, 17).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "in order, the first one first");
    assert_eq!(run_ok(url, &["outbox", "dead", "retry", "--all"]).await, "retried 16 messages\n");
    assert_eq!(list(url, &[]).await, [""; 0]);
    drain_until_stored(&mut worker, &stream, 33).await;
    let audit = audit(&client).await;
    assert_eq!(audit.len(), 1 + 4 + 2 + 16, "{audit:#?}");
    assert_eq!(audit[0], "discard mina INC-7 one-first t t t");
    assert!(audit.contains(&"retry two-first t t t".to_owned()), "{audit:#?}");
    // The four that were given up are not among the stored ones, and never will be.
    let stored_keys: Vec<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
    let discarded = dead.iter().filter(|key| !stored_keys.contains(key)).count();
    assert_eq!((discarded, count(&client, "discarded").await), (5, 5));
    assert_eq!(drain(&mut worker).await, 0);
}

#[tokio::test]
async fn a_retried_message_behind_a_dead_one_waits_and_costs_nothing_meanwhile() {
    let env = TestEnv::new().await;
    let (stream, client, values) = with_dead(&env).await;
    let (lost, taken) = (env.subject("lost"), env.subject("taken.a"));
    // Two dead ones in one ordering key: a relay that skips left them.
    let mut skipping = connect(&with(&values, [("on-dead", "skip")])).await.worker();
    for key in ["a", "b"] {
        enqueue_ordered(&client, key, &lost, "k").await;
        drain(&mut skipping).await;
    }
    let mut worker = connect(&values).await.worker();
    for key in ["c", "d"] {
        enqueue_ordered(&client, key, &taken, "k").await;
    }
    drain(&mut worker).await;
    assert_eq!(count(&client, "parked WHERE dead_at IS NULL").await, 2, "c and d wait behind a and b");
    take_all(&env).await;
    let url = env.database_url();
    run_ok(url, &["outbox", "dead", "retry", "--key", "b"]).await;
    drain(&mut worker).await;
    assert_eq!(stored(&stream).await, [], "a is dead and blocks b");
    assert_eq!(count(&client, "parked WHERE next_attempt_at IS NOT NULL").await, 0, "nothing polls for b");
    // Given up, a lets the others go on in order; so does a retried one.
    run_ok(url, &["outbox", "dead", "discard", "--key", "a"]).await;
    drain(&mut worker).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &["b", "c", "d"].map(str::to_owned)), 0);
    assert_eq!(count(&client, "parked").await, 0);
}

#[tokio::test]
async fn a_dead_message_in_the_middle_stops_what_follows_a_retried_one() {
    let env = TestEnv::new().await;
    let (stream, client, values) = with_dead(&env).await;
    let mut skipping = connect(&with(&values, [("on-dead", "skip")])).await.worker();
    for key in ["a", "b"] {
        enqueue_ordered(&client, key, &env.subject("lost"), "k").await;
        drain(&mut skipping).await;
    }
    enqueue_ordered(&client, "c", &env.subject("taken.a"), "k").await;
    let mut worker = connect(&values).await.worker();
    drain(&mut worker).await;
    take_all(&env).await;
    run_ok(env.database_url(), &["outbox", "dead", "retry", "--key", "a"]).await;
    drain(&mut worker).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &["a".to_owned()]), 0, "b is dead and blocks c");
    run_ok(env.database_url(), &["outbox", "dead", "retry", "--key", "b"]).await;
    drain(&mut worker).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &["a", "b", "c"].map(str::to_owned)), 0);
}

#[tokio::test]
async fn a_command_that_is_killed_leaves_whole_batches_done_and_goes_on_when_run_again() {
    let env = TestEnv::new().await;
    let (_stream, client, values) = with_dead(&env).await;
    enqueue(&client, &env.subject("lost"), "m-", 0..800, 0).await;
    drain(&mut connect(&values).await.worker()).await;
    assert_eq!(count(&client, "parked WHERE dead_at IS NOT NULL").await, 800);
    // A pass under way in one lane; the others are done before it and after it.
    let mut relay = env.pg().await;
    let pass = relay.transaction().await.unwrap();
    pass.execute("SELECT FROM oncebox.lane WHERE lane = 7 FOR UPDATE", &[]).await.unwrap();
    let discard = ["outbox", "dead", "discard", "--all"];
    let command = Process::start(&discard, [("DATABASE_URL", env.database_url())]);
    let waiting =
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("it waits for the lane", LIMIT, async || client.query_opt(waiting, &[]).await.unwrap()).await;
    command.kill().await;
    pass.rollback().await.unwrap();
    let lanes_left = "SELECT count(DISTINCT lane) FROM oncebox.parked";
    eventually("the killed command's session ends", LIMIT, async || {
        client.query_opt(waiting, &[]).await.unwrap().is_none().then_some(())
    })
    .await;
    let left: i64 = client.query_one(lanes_left, &[]).await.unwrap().get(0);
    assert!((8..=9).contains(&left), "lanes 0 to 6 are done, 7 perhaps: {left} are left");
    let gone = 800 - count(&client, "parked").await;
    assert_eq!((count(&client, "audit").await, count(&client, "discarded").await), (gone, gone));
    run_ok(env.database_url(), &discard).await;
    assert_eq!((count(&client, "parked").await, count(&client, "audit").await), (0, 800));
    let (code, output, log) = run(env.database_url(), &discard).await;
    assert_eq!((code, output.as_str()), (1, "discarded 0 messages\n"), "{log}");
}

#[tokio::test]
async fn a_sleeping_relay_notices_a_retry() {
    let env = TestEnv::new().await;
    let (stream, client, values) = with_dead(&env).await;
    enqueue(&client, &env.subject("lost"), "m-", 0..10, 0).await;
    drain(&mut connect(&values).await.worker()).await;
    take_all(&env).await;
    let slow = [("poll-min-milliseconds", "59000"), ("poll-max-milliseconds", "60000")];
    let relay = Running::start(&with(&values, slow));
    let listening =
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    eventually("it listens", LIMIT, async || client.query_opt(listening, &[]).await.unwrap()).await;
    eventually("it wakes up", LIMIT, async || {
        run(env.database_url(), &["outbox", "dead", "retry", "--all"]).await;
        (stream.get_info().await.unwrap().state.messages == 10).then_some(())
    })
    .await;
    relay.stop().await;
}

#[tokio::test]
async fn bad_arguments_change_nothing_and_exit_64() {
    let env = TestEnv::new().await;
    let url = env.database_url();
    for (arguments, part) in [
        (&["outbox", "dead", "retry"][..], "required"),
        (&["outbox", "dead", "discard", "--all", "--key", "k"], "cannot be used"),
        (&["outbox", "dead", "retry", "--subject", "a..b"], "empty token"),
        (&["outbox", "dead", "retry", "--subject", "a.>.b"], "only at the end"),
        (&["outbox", "dead", "list", "--limit", "0"], "1..=100000"),
        (&["outbox", "dead", "list", "--limit", "many"], "invalid"),
        (&["outbox", "dead", "retry", "--all", "--by", ""], "1 to 255 bytes"),
        (&["outbox", "dead", "retry", "--all", "--schema", "My Schema"], "--schema"),
        (&["outbox", "dead", "shew"], "show"),
        (&["outbox", "dead"], "Usage"),
    ] {
        let (code, output, log) = run(url, arguments).await;
        assert_eq!((code, output.as_str()), (64, ""), "{arguments:?}: {log}");
        assert!(log.contains(part), "{arguments:?}: {log}");
    }
    let (code, _, log) = run("postgres://me:secret@127.0.0.1:1/x", &["outbox", "dead", "list"]).await;
    assert_eq!(code, 69, "{log}");
    assert!(!log.contains("secret"), "{log}");
    let (code, output, log) = run(url, &["outbox", "dead", "show", "nobody"]).await;
    assert_eq!((code, output.as_str()), (1, ""), "{log}");
    assert!(log.contains("no parked or dead message has the key \"nobody\""), "{log}");
    assert_eq!(run_ok(url, &["outbox", "dead", "list", "--json"]).await, "");
    let (code, output, log) = run(url, &["outbox", "dead", "retry", "--key", "nobody"]).await;
    assert_eq!((code, output.as_str()), (1, "retried 0 messages\n"), "{log}");
}
