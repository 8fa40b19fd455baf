//! A payload that breaks the contract of its subject is dead at once, however it comes, and holds
//! nothing but its ordering key. Contracts that cannot be read stop the start.

use std::path::{Path, PathBuf};

use oncebox_relay::Values;
use oncebox_tests::{TestEnv, eventually};
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::{
    inbox::support::stream_environment,
    relay::{
        process::{Process, run, run_ok},
        support::{LIMIT, assert_delivered, await_messages, connect, count, drain, stored, values_of, with},
    },
};

/// Contracts for the subjects `orders`, of an amount, and `money.*`, by a file beside.
fn contracts(env: &TestEnv, most: u32) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("contracts.json");
    write(env, &path, most);
    std::fs::write(folder.path().join("money.json"), r#"{"type": "integer"}"#).unwrap();
    (folder, path)
}

fn write(env: &TestEnv, path: &Path, most: u32) {
    let (orders, money) = (env.subject("orders"), env.subject("money.*"));
    let text = format!(
        r#"{{"contracts": [
            {{"subject": "{orders}", "consumers": ["billing:charge"], "schema": {{
                "type": "object", "required": ["cents"],
                "properties": {{"cents": {{"type": "integer", "maximum": {most}}}}}}}}},
            {{"subject": "{money}", "schema": {{"$ref": "money.json"}}}}
        ]}}"#
    );
    std::fs::write(path, text).unwrap();
}

fn with_contracts(values: &Values, path: &Path) -> Values {
    with(values, [("contracts", path.to_str().unwrap())])
}

async fn enqueue(client: &Client, key: &str, subject: &str, payload: &str, ordering_key: Option<&str>) {
    let sql = "SELECT oncebox.enqueue($1, $2, convert_to($3, 'UTF8'), '{}', $4)";
    client.query_one(sql, &[&key, &subject, &payload, &ordering_key]).await.unwrap();
}

/// The keys in the stream, in their order.
async fn arrived(env: &TestEnv) -> Vec<String> {
    let messages = env.messages().await;
    let key = |message: &async_nats::jetstream::message::StreamMessage| {
        message.headers.get("Idempotency-Key").unwrap().as_str().to_owned()
    };
    messages.iter().map(key).collect()
}

/// The dead messages: key, attempts and reason.
async fn dead(client: &Client) -> Vec<(String, i32, String)> {
    let sql = "SELECT m.key, p.attempts, p.error FROM oncebox.parked AS p JOIN oncebox.message AS m USING (lane, id)
               WHERE p.dead_at IS NOT NULL AND p.cause = 'contract' ORDER BY m.key";
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

/// The commonest use of an edit; the contract is asked again.
#[tokio::test]
async fn a_breach_is_mended_by_an_edit_that_keeps_the_contract() {
    let env = stream_environment().await;
    let (client, (folder, path)) = (env.pg().await, contracts(&env, 100));
    for (key, payload) in [("bad", r#"{"cents": "1"}"#), ("behind", r#"{"cents": 2}"#)] {
        enqueue(&client, key, &env.subject("orders"), payload, Some("line")).await;
    }
    let values = with_contracts(&with(&values_of(&env), [("cloud-events-source", "/shop")]), &path);
    let mut worker = connect(&values).await.worker();
    drain(&mut worker).await;
    let new = folder.path().join("new.json");
    for (key, payload, arrives) in [
        ("bad", r#"{"cents": 101}"#, vec![]),
        ("bad:oncebox-edit-1", r#"{"cents": 100}"#, vec!["bad:oncebox-edit-2", "behind"]),
    ] {
        std::fs::write(&new, payload).unwrap();
        let edit = ["outbox", "dead", "edit", key, "--payload", new.to_str().unwrap(), "--note", "INC-7"];
        run_ok(env.database_url(), &edit).await;
        drain(&mut worker).await;
        assert_eq!(arrived(&env).await, arrives);
    }
    let first = &env.messages().await[0];
    let header = |name: &str| first.headers.get(name).unwrap().as_str();
    assert_eq!((header("ce-id"), header("ce-source")), ("bad:oncebox-edit-2", "/shop"));
    assert_eq!(dead(&client).await, []);
}

#[tokio::test]
async fn a_breach_is_dead_at_once_and_holds_only_its_ordering_key() {
    let env = stream_environment().await;
    let (client, (_folder, path)) = (env.pg().await, contracts(&env, 100));
    let (orders, money) = (env.subject("orders"), env.subject("money.eu"));
    for (key, subject, payload, ordering_key) in [
        ("a-good", &orders, r#"{"cents": 1}"#, Some("a")),
        ("a-bad", &orders, r#"{"cents": "SECRET"}"#, Some("a")),
        ("a-behind", &orders, r#"{"cents": 2}"#, Some("a")),
        ("b-good", &orders, r#"{"cents": 3}"#, Some("b")),
        ("c-none", &orders, "{}", None),
        ("d-text", &orders, "SECRET", None),
        ("e-empty", &orders, "", None),
        ("f-good", &money, "5", None),
        ("g-bad", &money, "0.5", None),
        ("h-free", &env.subject("free"), "no contract, no JSON", None),
    ] {
        enqueue(&client, key, subject, payload, ordering_key).await;
    }
    let values = with_contracts(&with(&values_of(&env), [("cloud-events-source", "/shop")]), &path);
    let mut worker = connect(&values).await.worker();
    drain(&mut worker).await;
    let mut here = arrived(&env).await;
    here.sort();
    assert_eq!(here, ["a-good", "b-good", "f-good", "h-free"]);
    let broken = "the payload breaks the contract of its subject: ";
    let no_json = "the payload is not JSON, or nested too deeply (line 1, column ";
    let expected = [
        ("a-bad", "at /cents: the value is not of type \"integer\"".to_owned()),
        ("c-none", "\"cents\" is a required property".to_owned()),
        ("d-text", format!("{no_json}1)")),
        ("e-empty", format!("{no_json}0)")),
        ("g-bad", "the value is not of type \"integer\"".to_owned()),
    ];
    let expected = expected.map(|(key, reason)| (key.to_owned(), 1, format!("{broken}{reason}")));
    assert_eq!(dead(&client).await, expected);
    let shown = run(env.database_url(), &["why", "a-bad"]).await.1;
    assert!(shown.contains("mend the producer") && !shown.contains("SECRET"), "{shown}");

    // Retried, it is checked again; under another contract it arrives, and then the rest.
    enqueue(&client, "i-late", &orders, r#"{"cents": 500}"#, Some("i")).await;
    drain(&mut worker).await;
    assert_eq!(dead(&client).await.len(), 6);
    run_ok(env.database_url(), &["outbox", "dead", "retry", "--key", "i-late"]).await;
    drain(&mut worker).await;
    assert_eq!(dead(&client).await.len(), 6, "it is dead again");
    write(&env, &path, 1_000);
    run_ok(env.database_url(), &["outbox", "dead", "retry", "--key", "i-late"]).await;
    drain(&mut worker).await;
    assert_eq!(dead(&client).await.len(), 6, "a relay reads its contracts when it starts");
    drop(worker);
    run_ok(env.database_url(), &["outbox", "dead", "retry", "--key", "i-late"]).await;
    run_ok(env.database_url(), &["outbox", "dead", "discard", "--key", "a-bad"]).await;
    drain(&mut connect(&with_contracts(&values, &path)).await.worker()).await;
    let here = arrived(&env).await;
    assert!(here.ends_with(&["i-late".to_owned()]) || here.ends_with(&["a-behind".to_owned()]), "{here:?}");
    assert_eq!((here.len(), dead(&client).await.len()), (6, 4));
}

#[tokio::test]
async fn a_delayed_message_and_a_replay_are_checked_when_they_are_sent() {
    let env = stream_environment().await;
    let (client, (_folder, path)) = (env.pg().await, contracts(&env, 100));
    let orders = env.subject("orders");
    let sql = "SELECT oncebox.enqueue_at('late', $1, convert_to('{\"cents\": 101}', 'UTF8'), now() + interval '1 s')";
    client.query_one(sql, &[&orders]).await.unwrap();
    enqueue(&client, "sent", &orders, r#"{"cents": 99}"#, None).await;
    let values = with(&values_of(&env), [("http-listen", "127.0.0.1:0")]);
    let relay = Process::relay(&with_contracts(&values, &path));
    eventually("the delayed one is dead", LIMIT, async || (dead(&client).await.len() == 1).then_some(()))
        .await;
    relay.kill().await;
    assert_eq!(arrived(&env).await, ["sent"]);
    write(&env, &path, 10);
    run_ok(env.database_url(), &["outbox", "replay", "--key", "sent"]).await;
    drain(&mut connect(&with_contracts(&values_of(&env), &path)).await.worker()).await;
    let rows = client.query("SELECT error FROM oncebox.parked WHERE dead_at IS NOT NULL", &[]).await.unwrap();
    let reasons: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        reasons.iter().filter(|reason| reason.contains("at /cents: the value is greater")).count(),
        2,
        "{reasons:?}"
    );
    assert_eq!(arrived(&env).await, ["sent"]);
}

#[tokio::test]
async fn a_large_payload_is_checked_before_it_goes_to_the_bucket() {
    let env = stream_environment().await;
    let (client, (_folder, path)) = (env.pg().await, contracts(&env, 100));
    let sql = "SELECT oncebox.enqueue($1, $2, convert_to('{\"cents\": ' || $3 || ', \"rest\": \"' || repeat('x', $4) || '\"}', 'UTF8'))";
    for (key, cents, bytes) in [("good", "1", 3 << 20), ("bad", "101", 3 << 20), ("huge", "1", 9 << 20)] {
        client.query_one(sql, &[&key, &env.subject("orders"), &cents, &bytes]).await.unwrap();
    }
    let bucket = [("object-store", env.name()), ("large-payload-bytes", "100000")];
    let values = with_contracts(&with(&values_of(&env), bucket), &path);
    drain(&mut connect(&values).await.worker()).await;
    assert_eq!(arrived(&env).await, ["good"]);
    let dead = dead(&client).await;
    let reason = |key: &str| dead.iter().find(|(of, ..)| of == key).map(|(_, _, reason)| reason.as_str());
    assert!(
        reason("bad").unwrap().ends_with("at /cents: the value is greater than the maximum of 100"),
        "{dead:?}"
    );
    assert!(reason("huge").unwrap().contains("of which the relay checks 8388608 at most"), "{dead:?}");
    let bucket = env.jetstream().await.get_stream(format!("OBJ_{}", env.name())).await.unwrap();
    let objects = bucket.cached_info().state.messages;
    assert!(objects < 40, "one object of 3 MiB, not two: {objects} chunks");
}

#[tokio::test]
async fn contracts_that_are_missing_or_wrong_stop_the_start() {
    let env = stream_environment().await;
    let (_folder, path) = contracts(&env, 100);
    for (text, problem) in [
        (None, "No such file"),
        (Some("{"), "EOF while parsing"),
        (
            Some(r#"{"contracts": [{"subject": "a", "schema": {"type": "strin"}}]}"#),
            "/contracts/0/schema/type",
        ),
    ] {
        match text {
            None => std::fs::remove_file(&path).unwrap(),
            Some(text) => std::fs::write(&path, text).unwrap(),
        }
        let relay = Process::relay(&with_contracts(&values_of(&env), &path));
        let (status, log) = relay.ended().await;
        assert_eq!(status.code(), Some(64), "{log}");
        assert!(log.contains("ONCEBOX_CONTRACTS") && log.contains(problem), "{log}");
        let (code, output, _) = run(env.database_url(), &["contract", "check", path.to_str().unwrap()]).await;
        assert!(code == 1 && output.contains(problem), "{output}");
    }
}

/// However often relays die between two steps: no breach is sent, each is dead after one attempt,
/// and the rest arrives in order, also after breaches that are discarded.
#[tokio::test(flavor = "multi_thread")]
async fn relays_that_are_killed_send_no_breach_and_lose_nothing() {
    const ROUNDS: i32 = 6;
    const EACH: i32 = 500;
    let env = stream_environment().await;
    let (client, (_folder, path)) = (env.pg().await, contracts(&env, 100));
    let values = with_contracts(&values_of(&env), &path);
    let stream = env.jetstream().await.get_stream(env.name()).await.unwrap();
    // Of each forty one is bad, and holds the later ones of its ordering key in this round.
    let some = "SELECT count(oncebox.enqueue('m-' || n, $1,
                         convert_to('{\"cents\": ' || CASE WHEN n % 40 = 13 THEN '101' ELSE '1' END || '}', 'UTF8'),
                         '{}', 'o-' || $2::int || '-' || n % 25))
                FROM generate_series($2::int * $3::int, $2::int * $3::int + $3::int - 1) AS n";
    let mut sent = 0;
    for round in 0..ROUNDS {
        let relay = Process::relay(&values);
        client.query_one(some, &[&env.subject("orders"), &round, &EACH]).await.unwrap();
        sent += 120;
        await_messages(&stream, sent).await;
        relay.kill().await;
        sent = count(&stream).await;
    }
    let bad = ROUNDS * EACH / 40;
    let relay = Process::relay(&values);
    let dead = |unlike: &str| {
        format!(
            "SELECT count(*) FROM oncebox.parked WHERE dead_at IS NOT NULL AND (attempts, cause) {unlike} (1, 'contract')"
        )
    };
    // A breach that another one holds is found when that one is gone.
    eventually("all are sent, or dead and discarded", LIMIT, async || {
        let other: i64 = client.query_one(&dead("<>"), &[]).await.unwrap().get(0);
        assert_eq!(other, 0, "dead for another reason, or after more attempts");
        if client.query_one(&dead("="), &[]).await.unwrap().get::<_, i64>(0) > 0 {
            run_ok(env.database_url(), &["outbox", "dead", "discard", "--all", "--yes"]).await;
        }
        (count(&stream).await >= usize::try_from(ROUNDS * EACH - bad).unwrap()).then_some(())
    })
    .await;
    relay.kill().await;
    let good: Vec<String> = (0..ROUNDS * EACH).filter(|n| n % 40 != 13).map(|n| format!("m-{n}")).collect();
    assert_eq!(assert_delivered(&stored(&stream).await, &good), 0, "copies");
    let sql = "SELECT count(*) FROM oncebox.audit WHERE action = 'discard'";
    let waiting: i64 = client.query_one(&dead("="), &[]).await.unwrap().get(0);
    let discarded: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(discarded + waiting, i64::from(bad));
}
