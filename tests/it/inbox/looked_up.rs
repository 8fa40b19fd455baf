//! Copies looked up in SQL, many at once: only a key that has ended is answered.

use oncebox_tests::TestEnv;
use tokio_postgres::Client;

/// The answers for the payloads `1` of these keys.
async fn look_up(client: &Client, keys: &[&str]) -> Vec<String> {
    let sql = "SELECT coalesce(l.answer, '-')
               FROM unnest(oncebox.look_up_copies(
                 't:copies', array_fill(''::text, ARRAY[cardinality($1::text[])]), $1::text[],
                 array_fill(oncebox.inbox_fingerprint('1'), ARRAY[cardinality($1::text[])])
               )) WITH ORDINALITY AS l (answer, place)
               ORDER BY l.place";
    client.query(sql, &[&keys]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn claim(client: &Client, key: &str, payload: &str, then: &str) {
    let claim = format!(
        "BEGIN DEFERRABLE; SELECT oncebox.claim('t:copies', '{key}', '{payload}'); SELECT oncebox.{then}; COMMIT"
    );
    client.batch_execute(&claim).await.unwrap();
}

#[tokio::test]
async fn a_copy_is_answered_only_when_its_key_has_ended() {
    let env = TestEnv::new().await;
    let (client, other) = (env.pg().await, env.pg().await);
    let register = "SELECT oncebox.register_scope('t:copies', retention => '1 day')";
    client.batch_execute(register).await.unwrap();
    claim(&client, "done", "1", "settle('t:copies', 'done', NULL, '', 'completed')").await;
    claim(&client, "refused", "1", "settle('t:copies', 'refused', '2', '', 'rejected')").await;
    claim(&client, "other", "2", "settle('t:copies', 'other', NULL, '', 'completed')").await;
    claim(&client, "tried", "1", "settle('t:copies', 'tried', NULL, '', 'completed')").await;
    claim(&client, "old", "1", "settle('t:copies', 'old', NULL, '', 'completed')").await;
    let more = "SELECT oncebox.attempt_failed('t:copies', 'tried');
                UPDATE oncebox.inbox SET created_at = now() - interval '2 days' WHERE key = 'old';
                SELECT oncebox.bury('t:copies', 'dead', '1', 'broken', 's')";
    client.batch_execute(more).await.unwrap();
    other.batch_execute("BEGIN DEFERRABLE; SELECT oncebox.claim('t:copies', 'held', '1')").await.unwrap();

    let keys = ["refused", "done", "other", "tried", "old", "dead", "held", "new", "done"];
    let expected = ["rejected", "replayed", "-", "-", "-", "-", "-", "-", "replayed"];
    assert_eq!(look_up(&client, &keys).await, expected);
    assert_eq!(look_up(&other, &["held", "done"]).await, ["-", "replayed"], "its own claim is not committed");
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(look_up(&client, &["held"]).await, ["replayed"]);
    assert_eq!(look_up(&client, &[]).await, [""; 0]);
}

#[tokio::test]
async fn wrong_lookups_are_refused() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    for arguments in [
        "ARRAY[''], ARRAY['a', 'b'], ARRAY[sha256('1')]",
        "array_fill(''::text, ARRAY[1001]), array_fill('a'::text, ARRAY[1001]), array_fill(sha256('1'), ARRAY[1001])",
        "NULL, NULL, NULL",
    ] {
        let sql = format!("SELECT oncebox.look_up_copies('t:copies', {arguments})");
        let error = client.batch_execute(&sql).await.expect_err(&sql);
        assert_eq!(error.code().map(|code| code.code()), Some("OB011"), "{sql}");
    }
}
