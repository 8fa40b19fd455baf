//! Parked messages and replays can be given up before they die; messages after them go on in order.

use async_nats::jetstream::stream::Stream;
use oncebox_relay::Values;
use oncebox_tests::{TestEnv, eventually};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, run, run_ok},
    support::{LIMIT, connect, count, drain, fresh_stream, stored, stream_config, values_of, with},
};

/// A stream that takes subjects below `taken`, and no other for now.
async fn start(env: &TestEnv) -> (Stream, Client, Values) {
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken.>"))).await;
    (stream, env.pg().await, values_of(env))
}

/// The stream takes only subjects below this.
async fn take(env: &TestEnv, subject: &str) {
    env.jetstream().await.update_stream(stream_config(env.name(), &env.subject(subject))).await.unwrap();
}

async fn enqueue(client: &Client, key: &str, subject: &str, order: &str) {
    let sql = "SELECT oncebox.enqueue($1, $2, 'p', '{}', $3)";
    client.execute(sql, &[&key, &subject, &order]).await.unwrap();
}

/// Each line of a list: key, state, number of the replay.
async fn list(url: &str, arguments: &[&str]) -> Vec<String> {
    let output = run_ok(url, &[arguments, &["--json"]].concat()).await;
    let line = |line: &str| {
        let message: Value = serde_json::from_str(line).unwrap();
        format!(
            "{} {} {}",
            message["key"].as_str().unwrap(),
            message["state"].as_str().unwrap(),
            message["replay"]
        )
    };
    output.lines().map(line).collect()
}

/// A message in a trace: its state, and its replay's.
async fn traced(url: &str, key: &str) -> (Value, Value) {
    let trace: Value = serde_json::from_str(&run_ok(url, &["trace", key, "--json"]).await).unwrap();
    (trace["messages"][0]["state"].clone(), trace["messages"][0]["replay"]["state"].clone())
}

/// The cause is mended, and the pause would be long.
#[tokio::test]
async fn parked_messages_are_tried_now_and_those_behind_them_follow() {
    let env = TestEnv::new().await;
    let (stream, client, values) = start(&env).await;
    let (url, mut worker) = (env.database_url(), connect(&values).await.worker());
    for (key, order) in [("a", "line"), ("b", "line"), ("c", "other")] {
        enqueue(&client, key, &env.subject("lost"), order).await;
    }
    drain(&mut worker).await;
    let later = "UPDATE oncebox.parked SET next_attempt_at = now() + interval '1 h' WHERE next_attempt_at IS NOT NULL";
    client.batch_execute(later).await.unwrap();
    take(&env, "lost").await;
    drain(&mut worker).await;
    assert_eq!(stored(&stream).await.len(), 0, "their pause is not over");
    check_nothing(url, &["outbox", "parked", "retry", "--key", "b"], "b").await;

    let dry = run_ok(url, &["outbox", "parked", "retry", "--ordering-key", "line", "--dry-run"]).await;
    assert!(dry.starts_with("would retry 1 message\n"), "b waits behind a: {dry}");
    let token = dry.split_once("--confirm ").unwrap().1.trim();
    let retry = ["outbox", "parked", "retry", "--ordering-key", "line", "--confirm", token, "--by", "mina"];
    assert_eq!(run_ok(url, &retry).await, "asked the relays to try again 1 message\n");
    drain(&mut worker).await;
    let keys: Vec<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
    assert_eq!(keys, ["a", "b"]);
    let audit = "SELECT string_agg(concat_ws(' ', action, operator, key), ',') FROM oncebox.audit";
    assert_eq!(client.query_one(audit, &[]).await.unwrap().get::<_, String>(0), "retry mina a");
}

/// A command that finds nothing says so, and exits with 1.
async fn check_nothing(url: &str, arguments: &[&str], part: &str) {
    let (code, _, log) = run(url, arguments).await;
    assert_eq!(code, 1, "{arguments:?}: {log}");
    assert!(log.contains(part), "{arguments:?}: {log}");
}

async fn ids_of(stream: &Stream) -> Vec<i64> {
    stored(stream).await.iter().map(|message| message.id).collect()
}

#[tokio::test]
async fn a_parked_message_is_discarded_and_its_ordering_key_goes_on_in_order() {
    let env = TestEnv::new().await;
    let (stream, client, values) = start(&env).await;
    let (url, taken) = (env.database_url(), env.subject("taken.a"));
    enqueue(&client, "typo", &env.subject("lost"), "k").await;
    for key in ["b", "c", "d", "e"] {
        enqueue(&client, key, &taken, "k").await;
    }
    let mut worker = connect(&values).await.worker();
    drain(&mut worker).await;
    let all = ["typo parked 0", "b waiting 0", "c waiting 0", "d waiting 0", "e waiting 0"];
    assert_eq!(list(url, &["outbox", "parked", "list"]).await, all);
    assert_eq!(list(url, &["outbox", "parked", "list", "--subject", &env.subject("lost")]).await, all[..1]);
    assert_eq!(list(url, &["outbox", "parked", "list", "--reason", "no stream"]).await, all[..1]);
    let shown = run_ok(url, &["outbox", "parked", "show", "typo", "--json"]).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["state"], &shown["behind"]), (&json!("parked"), &json!(4)));
    assert_eq!(traced(url, "typo").await.0, shown["state"], "both say the same");
    check_nothing(url, &["outbox", "dead", "discard", "--key", "typo"], "is parked").await;
    check_nothing(url, &["outbox", "replay", "cancel", "--key", "typo"], "is parked").await;

    let dry = ["outbox", "parked", "discard", "--all", "--dry-run"];
    let told = run_ok(url, &dry).await;
    assert!(told.starts_with("would discard 5 messages\n") && told.contains("--confirm 1-"), "{told}");
    let discard = ["outbox", "parked", "discard", "--key", "typo", "--by", "mina", "--note", "INC-8"];
    assert!(run_ok(url, &discard).await.starts_with("discarded 1 message\n"));
    // From the middle: those before and after it keep their order.
    assert!(
        run_ok(url, &["outbox", "parked", "discard", "--key", "c"])
            .await
            .starts_with("discarded 1 message\n")
    );
    // Even before a relay has looked: they need no stream any more.
    let subjects = &super::status::status(url).await["subjects"];
    assert!(
        subjects.as_array().unwrap().iter().all(|seen| seen["subject"] != *env.subject("lost")),
        "{subjects}"
    );
    drain(&mut worker).await;
    assert_eq!(ids_of(&stream).await, [2, 4, 5], "in order, without what was given up");
    assert_eq!(traced(url, "typo").await.0, "discarded");
    // Not by an operator, nor by a relay, even when a stream takes it.
    take(&env, ">").await;
    check_nothing(url, &["outbox", "replay", "--key", "typo"], "is discarded").await;
    check_nothing(url, &["outbox", "parked", "discard", "--key", "typo"], "is discarded").await;
    drain(&mut worker).await;
    assert_eq!(count(&stream).await, 3);
    let audit = "SELECT concat_ws(' ', action, operator, note, key) FROM oncebox.audit ORDER BY id";
    let audit: Vec<String> = client.query(audit, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(audit, ["discard mina INC-8 typo", "discard c"]);
}

#[tokio::test]
async fn a_parked_message_is_discarded_only_under_its_lanes_lock() {
    let env = TestEnv::new().await;
    let (_stream, client, values) = start(&env).await;
    enqueue(&client, "typo", &env.subject("lost"), "k").await;
    drain(&mut connect(&values).await.worker()).await;
    // A pass that has the lane settles the message, while the command waits for the lane.
    let mut relay = env.pg().await;
    let pass = relay.transaction().await.unwrap();
    pass.execute("SELECT FROM oncebox.lane FOR UPDATE", &[]).await.unwrap();
    let discard = ["outbox", "parked", "discard", "--key", "typo"];
    let command = Process::start(&discard, [("DATABASE_URL", env.database_url())]);
    let waiting =
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("it waits for the lane", LIMIT, async || client.query_opt(waiting, &[]).await.unwrap()).await;
    pass.execute("DELETE FROM oncebox.parked", &[]).await.unwrap();
    pass.commit().await.unwrap();
    let (ended, log) = command.ended().await;
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(log.contains("no parked message is selected"), "{log}");
    let discarded = client.query_one("SELECT count(*) FROM oncebox.discarded", &[]).await.unwrap();
    assert_eq!(discarded.get::<_, i64>(0), 0, "it was stored: it is not said to be given up");
}

#[tokio::test]
async fn a_replay_is_cancelled_and_what_waits_behind_it_goes_on() {
    let env = TestEnv::new().await;
    let (stream, client, values) = start(&env).await;
    let (url, gone) = (env.database_url(), env.subject("taken.a"));
    for key in ["m", "n"] {
        enqueue(&client, key, &gone, "k").await;
    }
    let mut worker = connect(&values).await.worker();
    drain(&mut worker).await;
    // The stream of these is gone; a replay of them holds their ordering key.
    take(&env, "other.>").await;
    assert_eq!(
        run_ok(url, &["outbox", "replay", "--key", "m", "--request", "R"]).await,
        "asked the relays to replay 1 message\n"
    );
    assert_eq!(
        run_ok(url, &["outbox", "replay", "--key", "n", "--request", "S"]).await,
        "asked the relays to replay 1 message\n"
    );
    drain(&mut worker).await;
    enqueue(&client, "later", &env.subject("other.a"), "k").await;
    drain(&mut worker).await;
    assert_eq!(count(&stream).await, 2);
    assert_eq!(list(url, &["outbox", "replay", "list"]).await.len(), 2);
    assert_eq!(list(url, &["outbox", "replay", "list", "--request", "R"]).await, ["m parked 1"]);
    assert_eq!(list(url, &["outbox", "parked", "list"]).await, ["later waiting 0"], "a replay is none");
    check_nothing(url, &["outbox", "parked", "discard", "--key", "m"], "its replay 1 is parked").await;
    check_nothing(
        url,
        &["outbox", "replay", "cancel", "--request", "T"],
        "no replay that is still to be sent",
    )
    .await;

    let cancel = ["outbox", "replay", "cancel", "--request", "R"];
    assert_eq!(run_ok(url, &cancel).await, "cancelled 1 replay\n");
    assert_eq!(traced(url, "m").await, (json!("settled"), json!("cancelled")));
    check_nothing(url, &cancel, "nothing was done").await;
    assert_eq!(run_ok(url, &["outbox", "replay", "cancel", "--all"]).await, "cancelled 1 replay\n");
    drain(&mut worker).await;
    assert_eq!(ids_of(&stream).await, [1, 2, 3], "what waited goes on");

    // It can be asked for again.
    take(&env, ">").await;
    run_ok(url, &["outbox", "replay", "--key", "m"]).await;
    assert_eq!(traced(url, "m").await.1, "parked");
    drain(&mut worker).await;
    assert_eq!(ids_of(&stream).await, [1, 2, 3, 1]);
    assert_eq!(traced(url, "m").await, (json!("settled"), json!("done")));
    let audit = "SELECT string_agg(action, ' ' ORDER BY id) FROM oncebox.audit";
    let audit: String = client.query_one(audit, &[]).await.unwrap().get(0);
    assert_eq!(audit, "replay replay cancel cancel replay");
}

#[tokio::test]
async fn a_dead_replay_is_listed_by_a_key_that_every_command_takes() {
    let env = TestEnv::new().await;
    let (stream, client, values) = start(&env).await;
    let url = env.database_url();
    for key in ["m", "n"] {
        enqueue(&client, key, &env.subject("taken.a"), key).await;
    }
    let mut worker = connect(&with(&values, [("attempts-max", "1")])).await.worker();
    drain(&mut worker).await;
    take(&env, "other.>").await;
    run_ok(url, &["outbox", "replay", "--all"]).await;
    drain(&mut worker).await;
    let table = run_ok(url, &["outbox", "dead", "list"]).await;
    let keys: Vec<&str> = table.lines().skip(1).map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    let numbers: Vec<&str> =
        table.lines().skip(1).map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!((keys.as_slice(), numbers.as_slice()), (&["m", "n"][..], &["1", "1"][..]), "{table}");
    let shown: Value =
        serde_json::from_str(&run_ok(url, &["outbox", "dead", "show", keys[0], "--json"]).await).unwrap();
    assert_eq!((&shown["state"], &shown["replay"]), (&json!("dead"), &json!(1)));
    assert_eq!(traced(url, keys[0]).await, (json!("settled"), json!("dead")));
    assert_eq!(run_ok(url, &["outbox", "dead", "retry", "--key", keys[0]]).await, "retried 1 message\n");
    assert!(
        run_ok(url, &["outbox", "dead", "discard", "--key", keys[1]])
            .await
            .starts_with("discarded 1 message\n")
    );
    assert_eq!(traced(url, "n").await, (json!("settled"), json!("cancelled")), "it was not sent");
    take(&env, ">").await;
    drain(&mut worker).await;
    assert_eq!(count(&stream).await, 3);
}

#[tokio::test]
async fn a_command_that_finds_nothing_says_so_and_exits_with_1() {
    let env = TestEnv::new().await;
    let (_stream, client, values) = start(&env).await;
    let url = env.database_url();
    enqueue(&client, "due", &env.subject("taken.a"), "k").await;
    for (arguments, part) in [
        (&["outbox", "dead", "list", "--key", "nobody"][..], "no message has the key \"nobody\""),
        (&["outbox", "dead", "retry", "--key", "nobody"], "no message has the key"),
        (&["outbox", "dead", "discard", "--all"], "no dead message is selected"),
        (&["outbox", "dead", "discard", "--all", "--dry-run"], "no dead message is selected"),
        (&["outbox", "dead", "discard", "--key", "due"], "is due"),
        (&["outbox", "dead", "show", "due"], "oncebox inbox dead list"),
        (&["outbox", "parked", "list", "--ordering-key", "k"], "no parked message is selected"),
        (&["outbox", "parked", "discard", "--subject", "a"], "no parked message is selected"),
        (&["outbox", "replay", "--key", "due"], "is due"),
        (&["outbox", "replay", "--all"], "no settled message is selected"),
        (&["outbox", "replay", "list", "--key", "due"], "is due"),
        (&["outbox", "replay", "cancel", "--all"], "no replay that is still to be sent is selected"),
        (&["inbox", "dead", "list", "--key", "due"], "no dead letter is selected"),
        (&["inbox", "dead", "discard", "--all"], "no dead letter is selected"),
        (&["trace", "nobody"], "no message has the key"),
    ] {
        check_nothing(url, arguments, part).await;
    }
    for list in [
        ["outbox", "dead", "list"],
        ["outbox", "parked", "list"],
        ["outbox", "replay", "list"],
        ["inbox", "dead", "list"],
    ] {
        run_ok(url, &list).await;
    }
    // A request that is done already is not an error: it may be repeated after a failure.
    drain(&mut connect(&values).await.worker()).await;
    for _ in 0..2 {
        run_ok(url, &["outbox", "replay", "--all", "--request", "R"]).await;
    }
    for (arguments, part) in [
        (&["outbox", "replay", "cancel"][..], "required"),
        (&["outbox", "replay", "--key", "due", "cancel", "--all"], "cancel"),
        (&["outbox", "parked", "discard"], "required"),
        (&["outbox", "parked"], "Usage"),
    ] {
        let (code, output, log) = run(url, arguments).await;
        assert_eq!((code, output.as_str()), (64, ""), "{arguments:?}: {log}");
        assert!(log.contains(part), "{arguments:?}: {log}");
    }
}
