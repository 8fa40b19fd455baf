//! A key is taken once in a turn of the ring and the one before: each safeguard of that is needed.
//! Without it, two transactions take one key.

use oncebox_tests::{TestEnv, eventually};
use tokio_postgres::{Client, error::SqlState};

use crate::relay::support::LIMIT;

const ENQUEUE: &str = "SELECT oncebox.enqueue($1, 's', 'p')";
const ENQUEUE_ALL: &str = "SELECT id FROM oncebox.enqueue_all(ARRAY[$1], '{s}', '{p}')";

/// Begins a transaction that enqueues; whether it could.
async fn take(client: &Client, begin: &str, sql: &str, key: &str) -> bool {
    client.batch_execute(begin).await.unwrap();
    match client.query_one(sql, &[&key]).await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error:?}");
            false
        }
    }
}

async fn end_turn(client: &Client) -> Option<String> {
    client.query_one("SELECT oncebox.end_turn(0, 100, 0)", &[]).await.unwrap().get(0)
}

async fn commit(client: &Client) {
    client.batch_execute("COMMIT").await.unwrap();
}

/// Until a producer waits for a lock. Not in a transaction, which would see the same answer for
/// ever.
async fn a_producer_waits(watcher: &Client) {
    let waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%enqueue%'
                   AND datname = current_database() LIMIT 1";
    let waits = async || watcher.query_opt(waiting, &[]).await.unwrap();
    eventually("a producer waits", LIMIT, waits).await;
}

/// Another one takes the key of an open transaction, which commits as soon as that has ended or
/// waits.
async fn another_takes(one: &Client, other: &Client, watcher: &Client, sql: &str, key: &str) {
    let mut taking = std::pin::pin!(take(other, "BEGIN", sql, key));
    let has_taken = tokio::select! {
        _ = &mut taking => true,
        () = a_producer_waits(watcher) => false,
    };
    commit(one).await;
    if !has_taken {
        taking.await;
    }
    commit(other).await;
}

/// The turn ends while a producer waits for the lock of its segment; another one takes the key in
/// the next turn.
async fn a_turn_ends_under_a_producer(env: &TestEnv, sql: &str, key: &str) {
    let (one, other, turner, watcher) = (env.pg().await, env.pg().await, env.pg().await, env.pg().await);
    let segment = "SELECT 'message_' || pg_sequence_last_value('oncebox.turn') % 8";
    let segment: String = turner.query_one(segment, &[]).await.unwrap().get(0);
    let lock = format!("BEGIN; LOCK TABLE oncebox.{segment} IN ACCESS EXCLUSIVE MODE");
    turner.batch_execute(&lock).await.unwrap();
    let first = async {
        take(&one, "BEGIN", sql, key).await;
        another_takes(&one, &other, &watcher, sql, key).await;
    };
    let turning = async {
        a_producer_waits(&watcher).await;
        assert_eq!(end_turn(&turner).await, None);
        commit(&turner).await;
    };
    tokio::join!(first, turning);
}

/// A transaction whose snapshot is older than the turn.
async fn a_snapshot_is_older_than_the_turn(env: &TestEnv, sql: &str, key: &str) {
    let (old, other) = (env.pg().await, env.pg().await);
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM oncebox.lane").await.unwrap();
    take(&other, "BEGIN", sql, key).await;
    commit(&other).await;
    assert_eq!(end_turn(&other).await, None);
    take(&old, "", sql, key).await;
    commit(&old).await;
}

async fn the_key_is_of_the_turn_before(env: &TestEnv, sql: &str, key: &str) {
    let client = env.pg().await;
    take(&client, "BEGIN", sql, key).await;
    commit(&client).await;
    assert_eq!(end_turn(&client).await, None);
    take(&client, "BEGIN", sql, key).await;
    commit(&client).await;
}

/// A delayed message holds its key, also when its placeholder is turns away.
async fn the_key_is_of_a_delayed_message(env: &TestEnv, sql: &str, key: &str) {
    let client = env.pg().await;
    let delay = "SELECT oncebox.enqueue_at($1, 's', 'p', now() + interval '1 hour')";
    client.execute(delay, &[&key]).await.unwrap();
    for _ in 0..2 {
        assert_eq!(end_turn(&client).await, None);
    }
    take(&client, "BEGIN", sql, key).await;
    commit(&client).await;
}

/// A transaction that has enqueued is open when the turn is to end.
async fn a_producer_is_open_when_the_turn_is_to_end(env: &TestEnv, sql: &str, key: &str) {
    let (one, other, watcher) = (env.pg().await, env.pg().await, env.pg().await);
    take(&one, "BEGIN", sql, key).await;
    end_turn(&watcher).await;
    another_takes(&one, &other, &watcher, sql, key).await;
}

/// How many messages have the key.
async fn taken(env: &TestEnv, key: &str) -> i64 {
    let count = "SELECT count(*) FROM oncebox.message WHERE key = $1";
    env.pg().await.query_one(count, &[&key]).await.unwrap().get(0)
}

/// Takes a safeguard out of all functions that have it; how many these are.
async fn without(env: &TestEnv, safeguard: &str, instead: &str) -> usize {
    let client = env.pg().await;
    let having = "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p
                  WHERE p.pronamespace = 'oncebox'::regnamespace AND p.prokind = 'f' AND strpos(p.prosrc, $1) > 0";
    let functions = client.query(having, &[&safeguard]).await.unwrap();
    for function in &functions {
        let text: String = function.get(0);
        client.batch_execute(&text.replace(safeguard, instead)).await.unwrap();
    }
    functions.len()
}

/// Plays a scene with and without the safeguard, for messages alone and in bulk.
async fn is_needed(
    safeguard: &str,
    instead: &str,
    functions: usize,
    scene: impl AsyncFn(&TestEnv, &str, &str),
) {
    for sql in [ENQUEUE, ENQUEUE_ALL] {
        let env = TestEnv::new().await;
        scene(&env, sql, "with").await;
        assert_eq!(taken(&env, "with").await, 1, "{sql}");
        assert_eq!(without(&env, safeguard, instead).await, functions);
        scene(&env, sql, "without").await;
        assert_eq!(taken(&env, "without").await, 2, "nothing holds the safeguard for {sql}: {safeguard}");
    }
}

#[tokio::test]
async fn the_insert_reads_the_turn_again() {
    let again = "WHERE pg_sequence_last_value('\"oncebox\".turn') = this_turn";
    is_needed(again, "WHERE true", 2, a_turn_ends_under_a_producer).await;
}

#[tokio::test]
async fn an_older_snapshot_may_not_enqueue() {
    let check = "PERFORM \"oncebox\".check_turn(this_turn);";
    is_needed(check, "", 2, a_snapshot_is_older_than_the_turn).await;
}

#[tokio::test]
async fn the_insert_looks_into_the_turn_before() {
    let before = " AS b WHERE b.key = ";
    is_needed(before, " AS b WHERE false AND b.key = ", 2, the_key_is_of_the_turn_before).await;
}

#[tokio::test]
async fn the_insert_looks_for_delayed_messages() {
    let delayed = "AND NOT EXISTS (SELECT FROM \"oncebox\".delayed AS d WHERE ";
    is_needed(delayed, &format!("{delayed}false AND "), 2, the_key_is_of_a_delayed_message).await;
}

#[tokio::test]
async fn the_end_of_a_turn_waits_for_producers() {
    let lock = "EXECUTE format('LOCK TABLE %s IN SHARE MODE', closing);";
    is_needed(lock, "", 1, a_producer_is_open_when_the_turn_is_to_end).await;
}
