//! Where a message and its steps are: every state, the keys below a key and no others, messages
//! that are no longer there.

use async_nats::jetstream::stream::Stream;
use oncebox_relay::Values;
use oncebox_tests::TestEnv;
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::relay::{
    process::{run, run_ok},
    support::{connect, drain, fresh_stream, stream_config, values_of, with},
};

/// A stream that takes subjects below `taken`; a message to another is dead after the first
/// attempt.
async fn start(env: &TestEnv) -> (Stream, Client, Values) {
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken.>"))).await;
    (stream, env.pg().await, with(&values_of(env), [("attempts-max", "1")]))
}

async fn enqueue(client: &impl tokio_postgres::GenericClient, key: &str, subject: &str, order: Option<&str>) {
    let sql = "SELECT oncebox.enqueue($1, $2, 'p', '{}', $3)";
    client.execute(sql, &[&key, &subject, &order]).await.unwrap();
}

async fn trace(env: &TestEnv, key: &str) -> Value {
    serde_json::from_str(&run_ok(env.database_url(), &["trace", key, "--json"]).await).unwrap()
}

/// Each message as `key state`, and the message that it waits for or the state of its replay.
fn states(trace: &Value) -> Vec<String> {
    let messages = trace["messages"].as_array().unwrap().iter();
    let line = |message: &Value| {
        let texts = [
            &message["key"],
            &message["state"],
            &message["parked"]["behind"],
            &message["replay"]["number"],
            &message["replay"]["state"],
        ];
        let words = texts.iter().filter(|text| !text.is_null());
        words.map(|text| text.to_string().replace('"', "")).collect::<Vec<_>>().join(" ")
    };
    messages.map(line).collect()
}

/// The operators' actions: action, operator, note and key of each.
fn audited(trace: &Value) -> Vec<Value> {
    let rows = trace["audit"].as_array().unwrap().iter();
    rows.map(|row| json!([row["action"], row["operator"], row["note"], row["key"]])).collect()
}

#[tokio::test]
async fn every_state_is_told_for_a_key_and_all_below_it() {
    let env = TestEnv::new().await;
    let (_stream, client, values) = start(&env).await;
    let (lost, taken) = (env.subject("lost"), env.subject("taken.a"));
    let mut late = env.pg().await;
    let late = late.transaction().await.unwrap();
    enqueue(&late, "o-1:late", &taken, Some("l")).await;
    enqueue(&client, "o-1", &taken, None).await;
    enqueue(&client, "o-1:ship", &lost, Some("k")).await;
    for key in ["o-1:ship:#0", "o-1:ship:#1"] {
        enqueue(&client, key, &taken, Some("k")).await;
    }
    enqueue(&client, "o-1:given-up", &lost, None).await;
    // Neighbours in the order of bytes, and one that other collations sort among them.
    for key in ["o-1-a", "o-10:pay", "o-1;x", "o-1a", "O-1:ship"] {
        enqueue(&client, key, &taken, None).await;
    }
    drain(&mut connect(&values).await.worker()).await;
    run_ok(
        env.database_url(),
        &["outbox", "dead", "discard", "--key", "o-1:given-up", "--by", "mina", "--note", "N"],
    )
    .await;
    let mut patient = connect(&values_of(&env)).await.worker();
    enqueue(&client, "o-1:mail", &lost, None).await;
    drain(&mut patient).await;
    enqueue(&client, "o-1:pay", &taken, Some("l")).await;
    assert!(!states(&trace(&env, "o-1").await).iter().any(|line| line.contains("late")), "not committed");
    drain(&mut patient).await;
    late.commit().await.unwrap();
    enqueue(&client, "o-1:zip", &taken, None).await;

    let mut expected = [
        "o-1 settled",
        "o-1:given-up discarded",
        "o-1:late due",
        "o-1:mail parked",
        "o-1:pay settled",
        "o-1:ship dead",
        "o-1:ship:#0 waiting o-1:ship",
        "o-1:ship:#1 waiting o-1:ship",
        "o-1:zip due",
    ];
    let told = trace(&env, "o-1").await;
    assert_eq!(states(&told), expected);
    assert_eq!(audited(&told), [json!(["discard", "mina", "N", "o-1:given-up"])]);
    let mail = &told["messages"][3];
    assert_eq!(mail["subject"], json!(lost));
    // A busy machine has the time for a second one.
    assert!(mail["parked"]["attempts"].as_i64().unwrap() >= 1, "{mail}");
    assert!(mail["parked"]["reason"].as_str().unwrap().contains("no stream takes"), "{mail}");
    assert!(mail["parked"]["next_attempt_at"].is_string(), "{mail}");
    assert_eq!(states(&trace(&env, "o-1:ship").await), expected[5..8]);

    // Retried, it is the one that they wait for; the late one is settled, and a replay has a state
    // of its own.
    drain(&mut patient).await;
    run_ok(env.database_url(), &["outbox", "dead", "retry", "--key", "o-1:ship"]).await;
    run_ok(env.database_url(), &["outbox", "replay", "--key", "o-1:pay", "--request", "again"]).await;
    (expected[2], expected[4], expected[8]) =
        ("o-1:late settled", "o-1:pay settled 1 parked", "o-1:zip settled");
    expected[5] = "o-1:ship parked";
    assert_eq!(states(&trace(&env, "o-1").await), expected);
    drain(&mut patient).await;
    expected[4] = "o-1:pay settled 1 done";
    let told = trace(&env, "o-1").await;
    assert_eq!(states(&told), expected);
    assert_eq!(told["messages"][4]["replay"]["request"], "again");
    let actions: Vec<Value> = audited(&told).iter().map(|row| row[0].clone()).collect();
    assert_eq!(actions, ["replay", "retry", "discard"], "newest first");

    let table = run_ok(env.database_url(), &["trace", "o-1"]).await;
    assert!(table.starts_with("KEY ") && table.contains("behind o-1:ship"), "{table}");
    assert!(table.contains("replay 1 of request again done") && table.contains("mina"), "{table}");
}

#[tokio::test]
async fn a_late_message_is_settled_once_its_part_of_a_drain_is() {
    let env = TestEnv::new().await;
    let (_stream, client, values) = start(&env).await;
    let mut late = env.pg().await;
    let late = late.transaction().await.unwrap();
    for n in 0..5 {
        enqueue(&late, &format!("late:#{n}"), &env.subject("taken.a"), Some("k")).await;
    }
    enqueue(&client, "last", &env.subject("taken.a"), Some("k")).await;
    // One lane and two messages a pass: the five are drained in parts.
    let mut worker = connect(&with(&values, [("batch-messages", "2")])).await.worker();
    drain(&mut worker).await;
    late.commit().await.unwrap();
    worker.run_once().await.unwrap();
    let draining = "SELECT count(*) FROM oncebox.lane_cursor WHERE target IS NOT NULL";
    assert_eq!(client.query_one(draining, &[]).await.unwrap().get::<_, i64>(0), 1);
    let told = states(&trace(&env, "late").await);
    let expected = ["settled", "settled", "due", "due", "due"];
    assert_eq!(told, [0, 1, 2, 3, 4].map(|n| format!("late:#{n} {}", expected[n])));
}

#[tokio::test]
async fn limits_unknown_keys_bad_keys_and_what_was_deleted() {
    let env = TestEnv::new().await;
    let (_stream, client, values) = start(&env).await;
    let url = env.database_url();
    for n in 0..5 {
        enqueue(&client, &format!("r:#{n}"), &env.subject("taken.a"), None).await;
    }
    enqueue(&client, "gone", &env.subject("lost"), None).await;
    drain(&mut connect(&values).await.worker()).await;

    let (code, cut, log) = run(url, &["trace", "r", "--limit", "3", "--json"]).await;
    let cut: Value = serde_json::from_str(&cut).unwrap();
    assert_eq!((code, cut["is_cut"].as_bool(), states(&cut).len()), (0, Some(true), 3));
    assert!(log.contains("--limit"), "{log}");
    let whole = trace(&env, "r").await;
    assert_eq!((whole["is_cut"].as_bool(), states(&whole).len()), (Some(false), 5));
    let table = run_ok(url, &["trace", "r"]).await;
    assert!(!table.contains("no message"), "steps without a root are how most keys look: {table}");

    let (code, output, log) = run(url, &["trace", "nobody"]).await;
    assert_eq!((code, output.as_str()), (1, ""), "{log}");
    assert!(log.contains("\"nobody\"") && log.contains("retention"), "{log}");
    enqueue(&client, "order%3A4711:pay", &env.subject("taken.a"), None).await;
    for key in ["order:4711", "order:4711:pay"] {
        let (code, _, log) = run(url, &["trace", key]).await;
        let meant = key.replacen(':', "%3A", 1);
        assert!(code == 1 && log.contains(&format!("there is \"{meant}\"")), "{log}");
    }
    for (arguments, part) in [
        (&["trace", "a b"][..], "is not ROOT"),
        (&["trace", "r", "--limit", "0"], "1..=100000"),
        (&["trace"], "required"),
    ] {
        let (code, output, log) = run(url, arguments).await;
        assert_eq!((code, output.as_str()), (64, ""), "{arguments:?}: {log}");
        assert!(log.contains(part), "{arguments:?}: {log}");
    }

    // The record outlives the message.
    run_ok(url, &["outbox", "dead", "discard", "--key", "gone"]).await;
    client.execute("DELETE FROM oncebox.message_0 WHERE key = 'gone'", &[]).await.unwrap();
    let told = run_ok(url, &["trace", "gone"]).await;
    assert!(told.contains("no message has the key: none") && told.contains("discard"), "{told}");
}

#[tokio::test]
async fn the_relays_role_sees_all_but_the_audit_table() {
    let env = TestEnv::new().await;
    let (_stream, client, _) = start(&env).await;
    enqueue(&client, "m", &env.subject("taken.a"), None).await;
    for (role, sees_audit) in [("relay", false), ("operator", true)] {
        let (url, name) = env.login(&format!("oncebox_{role}")).await;
        let told: Value = serde_json::from_str(&run_ok(&url, &["trace", "m", "--json"]).await).unwrap();
        assert_eq!(
            (states(&told), told["audit"].is_array()),
            (vec!["m due".to_owned()], sees_audit),
            "{role}"
        );
        let table = run_ok(&url, &["trace", "m"]).await;
        assert_eq!(table.contains("may not read the audit table"), !sees_audit, "{table}");
        client.batch_execute(&format!("DROP ROLE {name}")).await.unwrap();
    }
}
