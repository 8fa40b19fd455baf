//! A key that is used again, two turns of the ring after the message that had it.

use oncebox_tests::{
    TestEnv,
    adversity::{WAITS_FOR, await_pause, pause_in},
};
use serde_json::Value;
use tokio_postgres::{Client, error::SqlState};

use crate::relay::{
    process::{run, run_ok},
    support::{connect, drain, enqueue, turn_the_ring, values_of},
};

const FORMS: [&str; 3] = [
    "SELECT oncebox.enqueue($1, $2, $3)",
    "SELECT id FROM oncebox.enqueue_all(ARRAY[$1::text], ARRAY[$2::text], ARRAY[$3::bytea])",
    "SELECT oncebox.enqueue_at($1, $2, $3, now() + interval '1 hour')",
];

/// The ring turns. It is as full as it can be, so older messages are kept for long.
async fn turn(client: &Client) {
    let next = "SELECT oncebox.empty_segment(0) FROM oncebox.segment
                WHERE number = (pg_sequence_last_value('oncebox.turn') + 1) % 8 AND NOT is_empty";
    client.execute(next, &[]).await.unwrap();
    turn_the_ring(client).await;
}

/// Eight times, so that the newer message is in a segment before that of the older one, too.
#[tokio::test]
async fn a_message_is_compared_with_the_newest_of_its_key() {
    let env = TestEnv::new().await;
    env.stream().await;
    let client = env.pg().await;
    let mut worker = connect(&values_of(&env)).await.worker();
    let subject = env.subject("a");
    for (n, form) in FORMS.iter().cycle().take(8 * FORMS.len()).enumerate() {
        let key = format!("k-{n}");
        let send = async |payload: &[u8]| client.query_one(*form, &[&key, &subject, &payload]).await;
        let taken = async |payload: &[u8]| send(payload).await.unwrap().get::<_, Option<i64>>(0);
        client.query_one(FORMS[0], &[&key, &subject, &b"old".as_slice()]).await.unwrap();
        drain(&mut worker).await;
        turn(&client).await;
        turn(&client).await;
        assert!(taken(b"new").await.is_some(), "{form}: the key is free again");
        assert_eq!(taken(b"new").await, None, "{form}: the same message");
        let refused = send(b"old").await.unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::from_code("OB001")), "{form}: {refused:?}");
        drain(&mut worker).await;
    }
}

/// A delayed message that has the key is cancelled between the look for the key and the comparison.
/// An older message that is still kept has no part in either.
#[tokio::test]
async fn a_key_that_is_cancelled_meanwhile_is_free_whatever_an_older_message_says() {
    let env = TestEnv::new().await;
    env.stream().await;
    let (client, other, watcher) = (env.pg().await, env.pg().await, env.pg().await);
    let mut worker = connect(&values_of(&env)).await.worker();
    pause_in(&client, "check_enqueued").await.unwrap();
    for (n, form) in FORMS.iter().enumerate() {
        let (key, subject) = (format!("k-{n}"), env.subject("a"));
        client.query_one(FORMS[0], &[&key, &subject, &b"old".as_slice()]).await.unwrap();
        drain(&mut worker).await;
        turn(&client).await;
        turn(&client).await;
        let delayed = client.query_one(FORMS[2], &[&key, &subject, &b"new".as_slice()]).await.unwrap();
        assert!(delayed.get::<_, Option<i64>>(0).is_some());
        client.query_one("SELECT pg_advisory_lock($1)", &[&WAITS_FOR]).await.unwrap();
        let retry = async { other.query_one(*form, &[&key, &subject, &b"old".as_slice()]).await };
        let cancel = async {
            await_pause(&watcher).await.unwrap();
            client.query_one("SELECT oncebox.cancel_delayed($1)", &[&key]).await.unwrap();
            client.query_one("SELECT pg_advisory_unlock($1)", &[&WAITS_FOR]).await.unwrap();
        };
        match tokio::join!(retry, cancel).0 {
            Ok(row) => assert!(row.get::<_, Option<i64>>(0).is_some(), "{form}: nothing was enqueued"),
            Err(error) => {
                assert!(form.contains("enqueue_all"), "{form}: {error:?}");
                assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
            }
        }
    }
}

/// The comparison costs more than the INSERT.
#[tokio::test]
async fn a_new_message_is_compared_with_none_in_any_form() {
    let env = TestEnv::new().await;
    let (client, other) = (env.pg().await, env.pg().await);
    pause_in(&client, "check_enqueued").await.unwrap();
    client.query_one("SELECT pg_advisory_lock($1)", &[&WAITS_FOR]).await.unwrap();
    other.batch_execute("SET lock_timeout = '5s'").await.unwrap();
    for (n, form) in FORMS.iter().enumerate() {
        let id = other.query_one(*form, &[&format!("k-{n}"), &"s", &b"p".as_slice()]).await;
        assert!(id.expect(form).get::<_, Option<i64>>(0).is_some(), "{form}");
    }
}

#[tokio::test]
async fn operators_see_both_messages_of_a_key_and_act_on_the_one_that_is_meant() {
    let env = TestEnv::new().await;
    env.stream().await;
    let client = env.pg().await;
    let mut worker = connect(&values_of(&env)).await.worker();
    let json = |text: String| serde_json::from_str::<Value>(&text).unwrap();
    let ids = async |key: &str| {
        let trace = json(run_ok(env.database_url(), &["trace", key, "--json"]).await);
        let messages = trace["messages"].as_array().unwrap().clone();
        messages.iter().map(|message| message["id"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    // In the last segment and the first one.
    for _ in 0..6 {
        turn(&client).await;
    }
    enqueue(&client, &env.subject("a"), "s-", 0..5, 0).await;
    enqueue(&client, "nowhere.x", "p-", 0..1, 0).await;
    drain(&mut worker).await;
    turn(&client).await;
    turn(&client).await;
    enqueue(&client, &env.subject("b"), "s-", 0..5, 0).await;
    enqueue(&client, &env.subject("b"), "p-", 0..1, 0).await;
    drain(&mut worker).await;

    let (of_settled, of_parked) = (ids("s-0").await, ids("p-0").await);
    assert!(of_settled.len() == 2 && of_settled.is_sorted_by(|a, b| a > b), "{of_settled:?}");
    assert_eq!(of_parked.len(), 2);
    // All twelve but the parked one are in the stream, each as its own row has it.
    let verify = ["outbox", "verify", "--json", "--nats-url", env.nats_url(), "--stream", env.name()];
    let (code, output, log) = run(env.database_url(), &verify).await;
    let summary = json(output.lines().last().unwrap().to_owned());
    assert_eq!(code, 0, "{output} {log}");
    assert_eq!(
        (summary["messages"].as_i64(), summary["unlogged"].as_i64()),
        (Some(11), Some(0)),
        "{summary}"
    );
    let shown = json(run_ok(env.database_url(), &["outbox", "dead", "show", "p-0", "--json"]).await);
    assert_eq!(shown["id"].as_i64(), Some(of_parked[1]), "{shown}");
    let discard = ["outbox", "parked", "discard", "--key", "p-0"];
    assert!(run_ok(env.database_url(), &discard).await.starts_with("discarded 1 message\n"));
}
