//! The functions for batches in SQL: nothing is committed before `settle_batch`, and wrong calls
//! are refused.

use oncebox_tests::TestEnv;
use tokio_postgres::Client;

const CLAIM: &str =
    "SELECT answer FROM oncebox.claim_batch('t:batch', ARRAY['', '', ''], ARRAY['a', 'b', 'a'],
                     ARRAY[sha256('1'), sha256('2'), sha256('1')]) ORDER BY place";

async fn refused(client: &Client, sql: &str, text: &str) {
    let error = client.batch_execute(sql).await.expect_err(sql);
    let said = error.as_db_error().map(|said| format!("{} {}", said.code().code(), said.message()));
    let said = said.unwrap_or_default();
    assert!(said.contains(text), "{sql}: {said}");
    client.batch_execute("ROLLBACK").await.unwrap();
}

async fn keys(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM oncebox.inbox", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn nothing_is_committed_before_the_batch_is_settled() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute("SELECT oncebox.register_scope('t:batch')").await.unwrap();
    let guard = "inbox_batch_is_committed_by_the_inbox_only";
    refused(&client, CLAIM, guard).await;
    client.batch_execute(&format!("BEGIN; {CLAIM}")).await.unwrap();
    refused(&client, "COMMIT", guard).await;
    assert_eq!(keys(&client).await, 0);

    client.batch_execute("BEGIN").await.unwrap();
    let answers: Vec<String> = client.query(CLAIM, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(answers, ["new", "new", "alone"]);
    let settle = "SELECT oncebox.settle_batch('t:batch', ARRAY[''], ARRAY['a'], ARRAY['{\"n\": 1}'], ARRAY['rejected'],
                  released_tenants => ARRAY[''], released_keys => ARRAY['b']); COMMIT";
    client.batch_execute(settle).await.unwrap();
    let row = "SELECT key || ' ' || status || ' ' || convert_from(outcome, 'UTF8') FROM oncebox.inbox";
    assert_eq!(client.query_one(row, &[]).await.unwrap().get::<_, String>(0), "a rejected {\"n\": 1}");
    client.batch_execute("BEGIN").await.unwrap();
    let answers: Vec<String> = client.query(CLAIM, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[1], "new", "it was given back");
    client.batch_execute("ROLLBACK").await.unwrap();
}

/// A restart has the message delivered at once.
#[tokio::test]
async fn a_run_does_not_begin_before_the_pause_of_the_last_one_is_over() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute("SELECT oncebox.register_scope('t:batch')").await.unwrap();
    let text = async |sql: &str| {
        let sql = format!("SELECT oncebox.{sql}::text");
        client.query_one(&sql, &[]).await.unwrap().get::<_, String>(0)
    };
    for pauses in [
        "attempt_failed('t:batch', 'a', pause => 60, pause_max => 60)",
        "snooze('t:batch', 'b', '60 s', 'x')",
    ] {
        text(pauses).await;
    }
    for key in ["a", "b"] {
        assert_eq!(text(&format!("begin_attempt('t:batch', '{key}')")).await, "wait");
        let left: f64 = text(&format!("pause_left('t:batch', '{key}')")).await.parse().unwrap();
        assert!((50.0..=60.0).contains(&left), "{left}");
    }
    let begun = "SELECT coalesce(sum(begun), 0)::bigint FROM oncebox.inbox_attempt";
    assert_eq!(client.query_one(begun, &[]).await.unwrap().get::<_, i64>(0), 0, "nothing is recorded");
    let past =
        "UPDATE oncebox.inbox_attempt SET due_at = now(); UPDATE oncebox.inbox_snooze SET due_at = now()";
    client.batch_execute(past).await.unwrap();
    for key in ["a", "b"] {
        assert_eq!(text(&format!("begin_attempt('t:batch', '{key}')")).await, "run");
    }
}

/// Under a lease the claim counts the attempts.
#[tokio::test]
async fn a_count_of_attempts_that_is_given_is_the_one_that_is_recorded() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let counts = async |failures: &str| {
        let failed = format!("SELECT oncebox.attempt_failed('t:batch', 'a'{failures})");
        client.query_one(&failed, &[]).await.unwrap().get::<_, i64>(0)
    };
    assert_eq!(counts(", failures => 7").await, 7);
    assert_eq!(counts("").await, 8);
    assert_eq!(counts(", failures => 3").await, 3);
}

#[tokio::test]
async fn wrong_calls_are_refused() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute("SELECT oncebox.register_scope('t:batch')").await.unwrap();
    for (call, text) in [
        (
            "claim_batch('t:batch', ARRAY[''], ARRAY['a', 'b'], ARRAY[sha256('1')])",
            "OB011 the batch has 2 keys",
        ),
        ("claim_batch('t:batch', ARRAY[''], ARRAY['a'], ARRAY[NULL::bytea])", "OB005"),
        ("claim_batch('t:batch', ARRAY[''], ARRAY['a b'], ARRAY[sha256('1')])", "OB002"),
        (
            "claim_batch('t:batch', ARRAY[''], ARRAY['a'], ARRAY[sha256('1')], time_limit => '-1 s')",
            "OB011 time_limit",
        ),
        ("settle_batch('t:batch')", "OB010 this transaction has claimed no batch"),
        ("begin_attempt('t:batch', NULL)", "OB002"),
        ("begin_attempt('t:batch', 'a', '', 'S', 1, 'infinity')", "OB011 stored_at"),
    ] {
        refused(&client, &format!("SELECT oncebox.{call}"), text).await;
    }
    client.batch_execute(&format!("BEGIN; {CLAIM}")).await.unwrap();
    let other =
        "SELECT oncebox.settle_batch('t:batch', ARRAY[''], ARRAY['c'], ARRAY['1'], ARRAY['completed'])";
    refused(&client, other, "OB010 1 of the 1 keys").await;
    assert_eq!(keys(&client).await, 0);
}
