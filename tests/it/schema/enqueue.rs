//! Enqueue, in SQL: once per key, in the caller's transaction, alone and in bulk.

use std::time::Duration;

use oncebox_tests::{TestEnv, eventually};
use tokio_postgres::{Client, Error, IsolationLevel, error::SqlState};

const LIMIT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_same_message_twice_is_one_message_and_another_with_its_key_is_an_error() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let first = enqueue(&client, "k", "s", "p").await.unwrap();
    assert_eq!(first, Some(1));
    assert_eq!(enqueue(&client, "k", "s", "p").await.unwrap(), None);
    for (subject, payload, word) in [("t", "p", "subject"), ("s", "secret", "payload")] {
        let error = enqueue(&client, "k", subject, payload).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "OB001");
        assert!(error.message().contains("\"k\"") && error.message().contains(word), "{error:?}");
        assert!(!format!("{error:?}").contains("secret"), "a payload never reaches a log: {error:?}");
    }
    // Headers and ordering key may differ on a retry (a new trace, say); the first ones stay.
    let retry = "SELECT oncebox.enqueue('k', 's', 'p', '{\"a\": \"b\"}', 'o')";
    assert_eq!(client.query_one(retry, &[]).await.unwrap().get::<_, Option<i64>>(0), None);
    let row = client.query_one("SELECT headers::text, ordering_key FROM oncebox.message", &[]).await.unwrap();
    assert_eq!((row.get::<_, String>(0), row.get::<_, Option<String>>(1)), ("{}".to_owned(), None));
}

#[tokio::test]
async fn a_rolled_back_message_never_was() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("SELECT oncebox.enqueue('k', 's', 'p')").await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(stored(&client).await.is_empty());
    assert!(enqueue(&client, "k", "t", "q").await.unwrap().is_some(), "the key is free, for anything");
}

#[tokio::test]
async fn json_is_stored_as_text_and_null_headers_as_none() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let sql = r#"SELECT oncebox.enqueue_json('k', 's', '{"b": 1,  "a": "ä"}', NULL, NULL)"#;
    client.batch_execute(sql).await.unwrap();
    let row = client
        .query_one("SELECT convert_from(payload, 'UTF8'), headers::text FROM oncebox.message", &[])
        .await
        .unwrap();
    assert_eq!((row.get(0), row.get(1)), (r#"{"a": "ä", "b": 1}"#, "{}"));
}

#[tokio::test]
async fn messages_of_one_ordering_key_share_a_lane_and_keys_spread_over_all() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client
        .batch_execute(
            "SELECT oncebox.enqueue('a' || n, 's', 'p', '{}', 'customer:7') FROM generate_series(1, 50) AS n;
             SELECT oncebox.enqueue('b' || n, 's', 'p') FROM generate_series(1, 400) AS n",
        )
        .await
        .unwrap();
    let sql = "SELECT count(DISTINCT lane) FROM oncebox.message GROUP BY ordering_key ORDER BY ordering_key";
    let lanes: Vec<i64> = client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(lanes, [1, 16]);
}

#[tokio::test]
async fn the_bulk_form_answers_in_order_and_draws_ids_in_order() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    assert_eq!(enqueue(&client, "old", "s", "p").await.unwrap(), Some(1));
    let bulk = "SELECT key, id FROM oncebox.enqueue_all('{z,old,m,a,m}', '{s,s,s,s,s}', '{p,p,p,p,p}')";
    let rows = client.query(bulk, &[]).await.unwrap();
    let answers: Vec<(String, bool)> =
        rows.iter().map(|row| (row.get(0), row.get::<_, Option<i64>>(1).is_some())).collect();
    let expected = [("z", true), ("old", false), ("m", true), ("a", true), ("m", false)];
    assert_eq!(answers, expected.map(|(key, new)| (key.to_owned(), new)));
    assert!(rows.iter().filter_map(|row| row.get::<_, Option<i64>>(1)).is_sorted());
    assert_eq!(stored(&client).await, ["old", "z", "m", "a"]);
    assert!(
        client.query("SELECT * FROM oncebox.enqueue_all('{}', '{}', '{}')", &[]).await.unwrap().is_empty()
    );

    let many = "SELECT count(*) FILTER (WHERE e.id IS NOT NULL), count(*) FROM oncebox.enqueue_all(
        ARRAY(SELECT 'n' || n FROM generate_series(1, 10000) AS n), array_fill('s'::text, '{10000}'),
        array_fill('p'::bytea, '{10000}'), array_fill('{\"a\": \"b\"}'::jsonb, '{10000}'),
        array_fill('o'::text, '{10000}')) AS e";
    let row = client.query_one(many, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (10_000, 10_000));
    let sql = "SELECT bool_and(next > number) FROM (SELECT substr(key, 2)::int AS number,
                 lead(substr(key, 2)::int, 1, 10001) OVER (ORDER BY id) AS next
               FROM oncebox.message WHERE ordering_key = 'o') AS m";
    assert!(
        client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0),
        "ids follow the order of the arrays"
    );
}

#[tokio::test]
async fn a_conflict_in_bulk_refuses_all_of_it() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    enqueue(&client, "old", "s", "p").await.unwrap();
    for arrays in
        ["'{new,old}', '{s,t}', '{p,p}'", "'{new,old}', '{s,s}', '{p,q}'", "'{a,a}', '{s,t}', '{p,p}'"]
    {
        let bulk = format!("SELECT * FROM oncebox.enqueue_all({arrays})");
        let error = client.query(&bulk, &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "OB001", "{arrays}");
    }
    assert_eq!(stored(&client).await, ["old"]);
}

#[tokio::test]
async fn of_two_sessions_with_one_key_the_second_waits_for_the_first() {
    let env = TestEnv::new().await;
    for (first_commits, bulk) in [(true, false), (false, false), (true, true), (false, true)] {
        let key = format!("k-{first_commits}-{bulk}");
        let (mut first, second, watcher) = (env.pg().await, env.pg().await, env.pg().await);
        let transaction = first.transaction().await.unwrap();
        transaction.execute("SELECT oncebox.enqueue($1, 's', 'p')", &[&key]).await.unwrap();
        let statement = if bulk {
            "SELECT id FROM oncebox.enqueue_all(ARRAY[$1::text], '{s}', '{p}')"
        } else {
            "SELECT oncebox.enqueue($1, 's', 'p')"
        };
        let waiting = async { second.query_one(statement, &[&key]).await };
        let deciding = async {
            let sql = "SELECT FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
            eventually("the second session waits", LIMIT, async || {
                watcher.query_opt(sql, &[]).await.unwrap()
            })
            .await;
            if first_commits { transaction.commit().await } else { transaction.rollback().await }
        };
        let (answer, decided) = tokio::join!(waiting, deciding);
        decided.unwrap();
        let id: Option<i64> = answer.unwrap().get(0);
        assert_eq!(id.is_none(), first_commits, "{key}");
    }
    assert_eq!(stored(&env.pg().await).await.len(), 4);
}

#[tokio::test]
async fn a_transaction_that_enqueues_commits_durably() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    for (given, expected) in
        [("off", "local"), ("local", "local"), ("on", "on"), ("remote_apply", "remote_apply")]
    {
        client.batch_execute(&format!("SET synchronous_commit = {given}")).await.unwrap();
        for statement in [
            "SELECT oncebox.enqueue('a' || gen_random_uuid(), 's', 'p')",
            "SELECT oncebox.enqueue_json('b' || gen_random_uuid(), 's', '{}')",
            "SELECT oncebox.enqueue_all(ARRAY['c' || gen_random_uuid()], '{s}', '{p}')",
        ] {
            let transaction = client.transaction().await.unwrap();
            transaction.batch_execute(statement).await.unwrap();
            let inside: String = transaction.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0);
            assert_eq!(inside, expected, "{statement}");
            transaction.commit().await.unwrap();
            let after: String = client.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0);
            assert_eq!(after, given, "only this transaction: {statement}");
        }
    }
}

#[tokio::test]
async fn under_repeatable_read_a_key_taken_since_is_a_serialization_failure() {
    let env = TestEnv::new().await;
    let (mut client, other) = (env.pg().await, env.pg().await);
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let key = format!("{level:?}");
        let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
        transaction.batch_execute("SELECT count(*) FROM oncebox.message").await.unwrap();
        enqueue(&other, &key, "s", "p").await.unwrap();
        let error = transaction.execute("SELECT oncebox.enqueue($1, 's', 'p')", &[&key]).await.unwrap_err();
        assert_eq!(
            error.code(),
            Some(&SqlState::T_R_SERIALIZATION_FAILURE),
            "the caller's retry loop knows it"
        );
        transaction.rollback().await.unwrap();

        let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
        let row = transaction.query_one("SELECT oncebox.enqueue($1, 's', 'p')", &[&key]).await.unwrap();
        assert_eq!(row.get::<_, Option<i64>>(0), None, "and the retry finds the message");
        transaction.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_sleeping_relay_is_woken_once_and_only_by_a_commit() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let asleep = async || {
        let sql = "SELECT last_value FROM oncebox.relay_asleep";
        client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    assert_eq!(asleep().await, 0);
    let listener = env.pg().await;
    listener.batch_execute("LISTEN oncebox").await.unwrap();
    for statement in
        ["SELECT oncebox.enqueue('a', 's', 'p')", "SELECT oncebox.enqueue_all('{b}', '{s}', '{p}')"]
    {
        client.batch_execute("SELECT setval('oncebox.relay_asleep', 1)").await.unwrap();
        client.batch_execute(statement).await.unwrap();
        assert_eq!(asleep().await, 0, "the first producer clears the mark: {statement}");
    }
}

async fn enqueue(client: &Client, key: &str, subject: &str, payload: &str) -> Result<Option<i64>, Error> {
    let row = client
        .query_one("SELECT oncebox.enqueue($1, $2, $3)", &[&key, &subject, &payload.as_bytes()])
        .await?;
    Ok(row.get(0))
}

/// The keys in the log, by id.
async fn stored(client: &Client) -> Vec<String> {
    let rows = client.query("SELECT key FROM oncebox.message ORDER BY id", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
