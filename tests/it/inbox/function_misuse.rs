//! Every wrong call of the inbox's SQL functions: refused with an SQLSTATE that programs can tell,
//! words that people understand, and nothing changed.

use oncebox_tests::TestEnv;
use tokio_postgres::Client;

use crate::inbox::support::environment;

/// A transaction that has claimed a key of its own.
const CLAIMED: &str = "BEGIN DEFERRABLE; SELECT oncebox.claim('s:h', 'k', 'p')";

/// SQLSTATE; words that message or hint must have; statements before it in the session; the call.
const REFUSED: &[(&str, &[&str], &str, &str)] = &[
    // At the wrong place.
    ("OB010", &["BEGIN DEFERRABLE", "commits each statement"], "", "claim('s:h', 'k', 'p')"),
    ("OB010", &["BEGIN DEFERRABLE"], "BEGIN", "claim('s:h', 'k', 'p')"),
    (
        "OB010",
        &["default_transaction_deferrable off"],
        "SET default_transaction_deferrable = on; BEGIN DEFERRABLE",
        "claim('s:h', 'k', 'p')",
    ),
    (
        "OB010",
        &["\"k\"", "\"s:h\"", "claimed by this transaction already"],
        CLAIMED,
        "claim('s:h', 'k', 'p')",
    ),
    (
        "OB010",
        &["claimed by this transaction already"],
        "BEGIN DEFERRABLE; SAVEPOINT a; SELECT oncebox.claim('s:h', 'k', 'p'); RELEASE a",
        "claim('s:h', 'k', 'p')",
    ),
    ("OB010", &["roll the transaction back"], CLAIMED, "bury('s:h', 'k', 'p', 'no', 's')"),
    ("OB010", &["\"k\"", "not claimed by this transaction"], "", "settle('s:h', 'k')"),
    ("OB010", &["\"old\"", "not claimed by this transaction"], "", "settle('s:h', 'old', '1')"),
    ("OB010", &["not claimed by this transaction"], "BEGIN DEFERRABLE", "settle('s:h', 'old')"),
    ("OB010", &["same tenant"], CLAIMED, "settle('s:h', 'k', tenant => 'acme')"),
    ("OB010", &["\"s:other\""], CLAIMED, "settle('s:other', 'k')"),
    (
        "OB010",
        &["settled already"],
        "BEGIN DEFERRABLE; SELECT oncebox.claim('s:h', 'k', 'p'), oncebox.settle('s:h', 'k', '1')",
        "settle('s:h', 'k', '2')",
    ),
    (
        "OB010",
        &["settled already"],
        "BEGIN DEFERRABLE; SELECT oncebox.claim('s:h', 'k', 'p'); SELECT oncebox.settle('s:h', 'k', status => 'rejected')",
        "settle('s:h', 'k')",
    ),
    (
        "OB010",
        &["not claimed by this transaction"],
        "BEGIN DEFERRABLE; SAVEPOINT a; SELECT oncebox.claim('s:h', 'k', 'p'); ROLLBACK TO a",
        "settle('s:h', 'k')",
    ),
    ("OB010", &["not claimed", "null"], CLAIMED, "settle(NULL, 'k')"),
    ("OB010", &["not claimed", "null"], CLAIMED, "settle('s:h', NULL)"),
    (
        "OB010",
        &["\"s:leased\"", "under a lease", "change_inbox_mode"],
        "BEGIN DEFERRABLE",
        "claim('s:leased', 'k', 'p')",
    ),
    ("OB010", &["under a lease"], "", "bury('s:leased', 'k', 'p', 'no', 's')"),
    ("OB010", &["under a lease"], "", "register_scope('s:leased')"),
    // Arguments.
    ("OB011", &["scope null", "1 to 255 bytes"], "BEGIN DEFERRABLE", "claim(NULL, 'k', 'p')"),
    ("OB011", &["scope \"\""], "BEGIN DEFERRABLE", "claim('', 'k', 'p')"),
    ("OB011", &["scope", "255 bytes"], "BEGIN DEFERRABLE", "claim(repeat('ä', 128), 'k', 'p')"),
    ("OB011", &["scope", "control characters"], "BEGIN DEFERRABLE", "claim(E'a\\nb', 'k', 'p')"),
    ("OB011", &["tenant null"], "BEGIN DEFERRABLE", "claim('s:h', 'k', 'p', NULL)"),
    ("OB011", &["tenant", "255 bytes"], "BEGIN DEFERRABLE", "claim('s:h', 'k', 'p', repeat('t', 256))"),
    ("OB011", &["tenant", "control characters"], "BEGIN DEFERRABLE", "claim('s:h', 'k', 'p', U&'a\\0085')"),
    ("OB002", &["key is null"], "BEGIN DEFERRABLE", "claim('s:h', NULL, 'p')"),
    ("OB002", &["key is 0 bytes"], "BEGIN DEFERRABLE", "claim('s:h', '', 'p')"),
    ("OB002", &["\"a b\"", "visible ASCII"], "BEGIN DEFERRABLE", "claim('s:h', 'a b', 'p')"),
    ("OB005", &["payload is null"], "BEGIN DEFERRABLE", "claim('s:h', 'k', NULL)"),
    ("22023", &["hexadecimal"], "BEGIN DEFERRABLE", "claim('s:h', 'k', '\\xzz')"),
    ("42883", &["claim(integer, integer, integer)"], "BEGIN DEFERRABLE", "claim(1, 2, 3)"),
    (
        "42883",
        &["claim(unknown, unknown, unknown, unknown, unknown, unknown)"],
        "",
        "claim('', '', '', '', '1', '')",
    ),
    ("22P02", &["json"], CLAIMED, "settle('s:h', 'k', 'not json')"),
    (
        "OB011",
        &["outcome is 1048577 bytes", "1048576 bytes"],
        CLAIMED,
        "settle('s:h', 'k', to_json(repeat('x', 1048575)))",
    ),
    ("OB011", &["status \"dead\"", "bury()"], CLAIMED, "settle('s:h', 'k', status => 'dead')"),
    ("OB011", &["status null"], CLAIMED, "settle('s:h', 'k', status => NULL)"),
    ("OB003", &["subject is null"], "", "bury('s:h', 'k', 'p', 'no', NULL)"),
    ("OB004", &["headers are a JSON array"], "", "bury('s:h', 'k', 'p', 'no', 's', '[]')"),
    ("OB005", &["payload is null"], "", "bury('s:h', 'k', NULL, 'no', 's')"),
    ("OB002", &["\"a b\""], "", "bury('s:h', 'a b', 'p', 'no', 's')"),
    ("OB011", &["given together"], "", "bury('s:h', 'k', 'p', 'no', 's', stream => 'S')"),
    ("OB011", &["scope null"], "", "bury(NULL, NULL, 'p', 'no', 's')"),
    ("OB011", &["tenant null"], "", "attempt_failed('s:h', 'k', NULL)"),
    ("OB002", &["key is null"], "", "attempt_failed('s:h', NULL)"),
    ("OB011", &["failures is -1"], "", "attempt_failed('s:h', 'k', failures => -1)"),
    ("OB011", &["do not fit", "1 second to 100 years"], "", "register_scope('s:h', '0 s')"),
    ("OB011", &["do not fit", "100 years"], "", "register_scope('s:h', '7000 years')"),
    ("OB011", &["do not fit", "100 years"], "", "register_scope('s:h', NULL, '101 years')"),
    ("OB011", &["do not fit"], "", "register_scope('s:h', '2 days', '1 day')"),
    ("OB011", &["kept for ever"], "", "register_scope('s:h', NULL, '1 day')"),
    ("OB011", &["scope \"\""], "", "register_scope('')"),
    (
        "OB011",
        &["credentials", "array of pairs"],
        "",
        "request_fingerprint('POST', '/', '', NULL, NULL, 'p')",
    ),
    ("OB011", &["credentials"], "", "request_fingerprint('POST', '/', '', '[\"a\"]', NULL, 'p')"),
    ("OB011", &["kind null"], "", "pause_delivery(NULL, 'a', NULL, '{a}', NULL, 'mina', NULL, NULL, 9)"),
    (
        "OB011",
        &["names subjects"],
        "",
        "pause_delivery('subject', 'a', NULL, NULL, 'k', 'mina', NULL, NULL, 9)",
    ),
    (
        "OB011",
        &["names an ordering key"],
        "",
        "pause_delivery('ordering key', 'k', NULL, '{a}', NULL, 'mina', NULL, NULL, 9)",
    ),
    ("OB011", &["rate of 0"], "", "pause_delivery('all', '>', 0, '{>}', NULL, 'mina', NULL, NULL, 9)"),
];

/// The committed rows, as another session sees them.
async fn committed(client: &Client) -> Vec<String> {
    let sql = "SELECT i::text FROM oncebox.inbox AS i UNION ALL SELECT d::text FROM oncebox.dead_letter AS d
               UNION ALL SELECT a::text FROM oncebox.inbox_attempt AS a UNION ALL SELECT s::text FROM oncebox.inbox_scope AS s";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn prepared() -> (TestEnv, Client) {
    let env = environment().await;
    let client = env.pg().await;
    let scopes = "SELECT oncebox.register_scope('s:h', '1 day');
                  INSERT INTO oncebox.inbox_scope (scope, mode) VALUES ('s:leased', 'lease')";
    client.batch_execute(scopes).await.unwrap();
    let old = "BEGIN DEFERRABLE; SELECT oncebox.claim('s:h', 'old', 'p'); COMMIT";
    client.batch_execute(old).await.unwrap();
    (env, client)
}

/// Its stream has taken it, so it has to be handled or to end: else it comes again for ever.
#[tokio::test]
async fn a_message_above_the_limit_of_enqueue_is_claimed_and_given_up() {
    let (_env, client) = prepared().await;
    let large = "convert_to(repeat('p', 8388609), 'UTF8')";
    client.batch_execute("BEGIN DEFERRABLE").await.unwrap();
    let claim = format!("SELECT answer FROM oncebox.claim('s:h', 'k', {large})");
    assert_eq!(client.query_one(&claim, &[]).await.unwrap().get::<_, String>(0), "new");
    client.batch_execute("ROLLBACK").await.unwrap();
    let bury = format!("SELECT oncebox.bury('s:h', 'k', {large}, 'too large', 's')");
    assert_eq!(client.query_one(&bury, &[]).await.unwrap().get::<_, String>(0), "dead");
    let kept = "SELECT octet_length(payload) FROM oncebox.dead_letter WHERE key = 'k'";
    assert_eq!(client.query_one(kept, &[]).await.unwrap().get::<_, i32>(0), 8_388_609);
}

#[tokio::test]
async fn every_wrong_call_is_refused_with_a_hint_and_changes_nothing() {
    let (env, client) = prepared().await;
    let before = committed(&client).await;
    for (code, words, first, call) in REFUSED {
        let session = env.pg().await;
        session.batch_execute(first).await.unwrap_or_else(|error| panic!("{first}: {error:?}"));
        let error = session.batch_execute(&format!("SELECT oncebox.{call}")).await.expect_err(call);
        let refusal = error.as_db_error().expect(call);
        let text = format!("{} {}", refusal.message(), refusal.hint().unwrap_or_default());
        assert_eq!(refusal.code().code(), *code, "{first}; {call}: {text}");
        for word in *words {
            assert!(text.contains(word), "{first}; {call}: {word:?} is not in {text:?}");
        }
        assert!(!code.starts_with("OB01") || refusal.hint().is_some(), "{call}: {text}");
        // The transaction is aborted, if there is one.
        let _ = session.batch_execute("COMMIT").await;
        assert_eq!(committed(&client).await, before, "{first}; {call}");
    }
}

/// The limits themselves are allowed.
#[tokio::test]
async fn what_is_just_within_the_limits_is_taken() {
    let (env, client) = prepared().await;
    let sql = "BEGIN DEFERRABLE;
               SELECT oncebox.claim(repeat('ä', 127) || 's', repeat('k', 128), convert_to(repeat('p', 67108864), 'UTF8'),
                                    repeat('t', 255), -1);
               SELECT oncebox.settle(repeat('ä', 127) || 's', repeat('k', 128), to_json(repeat('x', 1048574)), repeat('t', 255));
               SELECT oncebox.claim('s:h', 'empty', '');
               SELECT oncebox.settle('s:h', 'empty', 'null', status => 'rejected');
               SELECT oncebox.claim('s:h', 'twice', ''); SELECT oncebox.settle('s:h', 'twice'); SELECT oncebox.settle('s:h', 'twice');
               COMMIT;
               SELECT oncebox.bury('s:h', 'dead', '', repeat('ä€', 500), '', NULL, stream => 'S', stream_sequence => 1,
                                   stored_at => clock_timestamp());
               SELECT oncebox.bury('s:h', NULL, '', NULL, 's', deliveries => NULL);";
    client.batch_execute(sql).await.unwrap();
    let sql = "SELECT string_agg(concat_ws(' ', left(key, 5), status, octet_length(outcome)), ', ' ORDER BY key) FROM oncebox.inbox";
    let kept: String = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(
        kept,
        "dead dead 1000, empty rejected, kkkkk completed 1048576, old completed, twice completed"
    );
    let sql = "SELECT string_agg(concat_ws(' ', key, left(reason, 15), deliveries), ', ' ORDER BY id) FROM oncebox.dead_letter";
    let letters: String = env.pg().await.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(letters, "dead ä€ä€ä€ä€ä€ä€ä€ä 1, no reason given 1");
}
