//! Delayed messages: held until their time, moved into the log once and in order, also when a
//! process dies.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use oncebox_relay::parts::Mover;
use oncebox_tests::{Log, TestEnv, eventually};
use tokio::{task::JoinSet, time::timeout};
use tokio_postgres::{Client, GenericClient};

use super::{
    process::Process,
    support::{self, LIMIT, Running, await_messages, connect, count, stored, values, values_of},
    two_phase,
};

/// Enqueues a message that is due in a number of seconds; its payload is `p`.
pub(super) async fn delay(
    client: &impl GenericClient,
    key: &str,
    seconds: f64,
    ordering_key: Option<&str>,
) -> Option<i64> {
    let sql =
        "SELECT oncebox.enqueue_at($1, 's', 'p', clock_timestamp() + make_interval(secs => $2), '{}', $3)";
    client.query_one(sql, &[&key, &seconds, &ordering_key]).await.unwrap().get(0)
}

/// The messages in the log, in the order of ids.
pub(super) async fn log(client: &impl GenericClient) -> Vec<String> {
    let sql = "SELECT key FROM oncebox.message WHERE lane >= 0 ORDER BY id";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// The waiting messages, and the placeholders in the log.
pub(super) async fn waiting(client: &impl GenericClient) -> (i64, i64) {
    let sql = "SELECT (SELECT count(*) FROM oncebox.delayed),
                      (SELECT count(*) FROM oncebox.message AS m JOIN oncebox.delayed AS d ON d.id = m.id AND m.lane = -1)";
    let row = client.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

/// Lets time pass for all that waits.
pub(super) async fn pass(client: &Client, seconds: f64) {
    let sql = "UPDATE oncebox.delayed SET not_before = not_before - make_interval(secs => $1)";
    client.execute(sql, &[&seconds]).await.unwrap();
}

/// Moves until nothing more is due; returns how many.
pub(super) async fn move_all(mover: &mut Mover) -> u64 {
    let mut moved = 0;
    loop {
        let batch = mover.run_once().await.unwrap();
        moved += batch.messages;
        if !batch.more {
            return moved;
        }
    }
}

#[tokio::test]
async fn a_thousand_that_are_due_at_one_moment_leave_then_and_not_before() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let relay = Running::start(&values_of(&env));
    let sql = "SELECT count(oncebox.enqueue_at('d' || n, $1, 'p', $2)) FROM generate_series(1, 1000) AS n";
    let now: SystemTime = client.query_one("SELECT clock_timestamp()", &[]).await.unwrap().get(0);
    let due = now + Duration::from_secs(4);
    let row = client.query_one(sql, &[&env.subject("a"), &due]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1000);
    assert_eq!(count(&stream).await, 0);
    await_messages(&stream, 1000).await;
    let sql = "SELECT extract(epoch FROM min(created_at) - $1)::float8, extract(epoch FROM max(created_at) - $1)::float8
               FROM oncebox.message";
    let row = client.query_one(sql, &[&due]).await.unwrap();
    let (first, last): (f64, f64) = (row.get(0), row.get(1));
    println!("in the log {first:.3} to {last:.3} s after their time");
    // A second on a machine that has nothing else to do; together, in any case.
    assert!(first >= 0.0 && last < 5.0, "{first} to {last} s after their time");
    let keys: BTreeSet<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
    assert_eq!((keys.len(), count(&stream).await), (1000, 1000), "each once");
    relay.stop().await;
}

/// The mover sleeps until the next one that it knows of; an earlier one that comes meanwhile is
/// found.
#[tokio::test]
async fn an_earlier_one_that_is_enqueued_later_is_not_overslept() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let relay = Running::start(&values_of(&env));
    let sql = "SELECT oncebox.enqueue_at($1, $2, 'p', clock_timestamp() + make_interval(secs => $3))";
    client.execute(sql, &[&"late", &env.subject("a"), &3600.0]).await.unwrap();
    for n in 1..=3 {
        client.execute(sql, &[&format!("soon-{n}"), &env.subject("a"), &0.1]).await.unwrap();
        timeout(Duration::from_secs(20), await_messages(&stream, n))
            .await
            .expect("long before an hour has passed");
    }
    assert_eq!(waiting(&client).await, (1, 1));
    relay.stop().await;
}

/// By their times, not by when they were enqueued; and a cancellation that is not yet decided holds
/// back its ordering key, and nothing else.
#[tokio::test]
async fn an_ordering_key_keeps_the_order_of_times() {
    let env = TestEnv::new().await;
    let (mut client, mut canceller) = (env.pg().await, env.pg().await);
    for (key, seconds, ordering_key) in
        [("a3", 30.0, "a"), ("a1", 10.0, "a"), ("b1", 15.0, "b"), ("a2", 20.0, "a"), ("a4", 40.0, "a")]
    {
        delay(&client, key, seconds, Some(ordering_key)).await;
    }
    delay(&client, "free", 35.0, None).await;
    pass(&client, 60.0).await;
    let mut mover = connect(&values_of(&env)).await.mover();
    let cancelling = canceller.transaction().await.unwrap();
    let row = cancelling.query_one("SELECT oncebox.cancel_delayed('a2')", &[]).await.unwrap();
    assert!(row.get::<_, bool>(0));
    assert_eq!(move_all(&mut mover).await, 3);
    assert_eq!(log(&client).await, ["a1", "b1", "free"], "a3 and a4 wait behind a2");
    assert_eq!(move_all(&mut mover).await, 0, "the next round finds the same");
    cancelling.rollback().await.unwrap();
    assert_eq!(move_all(&mut mover).await, 3);
    assert_eq!(log(&client).await, ["a1", "b1", "free", "a2", "a3", "a4"]);
    let transaction = client.transaction().await.unwrap();
    let lanes = "SELECT count(DISTINCT lane) FROM oncebox.message WHERE ordering_key = 'a'";
    assert_eq!(transaction.query_one(lanes, &[]).await.unwrap().get::<_, i64>(0), 1);
}

/// Dropped between the move and its commit, at every batch; and the answer of the commit does not
/// matter, since the next batch asks the tables.
#[tokio::test]
async fn a_move_is_whole_or_did_not_happen() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    let sql = "SELECT count(oncebox.enqueue_at('k' || n, 's', 'p', clock_timestamp() + interval '1 h', '{}', 'o' || n % 7))
               FROM generate_series(1, 500) AS n";
    client.query_one(sql, &[]).await.unwrap();
    pass(&client, 3600.0).await;
    let batch = "SELECT moved FROM oncebox.move_delayed(100, 1000000, '-infinity', 0)";
    for round in 1..=5 {
        let transaction = client.transaction().await.unwrap();
        assert_eq!(transaction.query_one(batch, &[]).await.unwrap().get::<_, i64>(0), 100);
        transaction.rollback().await.unwrap();
        let left = 500 - 100 * (round - 1);
        assert_eq!(waiting(&client).await, (left, left), "nothing happened");
        client.query_one(batch, &[]).await.unwrap();
        assert_eq!(waiting(&client).await, (left - 100, left - 100));
    }
    let keys = log(&client).await;
    assert_eq!(keys.len(), 500);
    assert_eq!(keys, (1..=500).map(|n| format!("k{n}")).collect::<Vec<_>>(), "in the order of their times");
}

/// Relays whose sessions are killed while they move, and one that is killed as a whole.
#[tokio::test]
async fn whoever_dies_while_moving_nothing_is_lost_or_doubled() {
    const MESSAGES: i64 = 20_000;
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let sql = "SELECT count(oncebox.enqueue_at('k' || n, $1, convert_to(n::text, 'UTF8'),
                      clock_timestamp() + interval '1 h' + n * interval '1 microsecond', '{}', 'o' || n % 50))
               FROM generate_series(1, 20000) AS n";
    assert_eq!(client.query_one(sql, &[&env.subject("a")]).await.unwrap().get::<_, i64>(0), MESSAGES);
    pass(&client, 3700.0).await;
    let doomed = Process::relay(&values_of(&env));
    let mut running = JoinSet::new();
    let relay = Running::start(&values_of(&env));
    let (killer, killed) = (env.pg().await, Arc::new(AtomicI64::new(0)));
    let counted = Arc::clone(&killed);
    running.spawn(async move {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE datname = current_database() AND query LIKE '-- Move delayed%' AND pid <> pg_backend_pid()";
        for n in 0_u64.. {
            let row = killer.query_one(sql, &[]).await.unwrap();
            let count: i64 = row.get(0);
            let is_first = counted.fetch_add(count, Ordering::SeqCst) == 0;
            // At once until one was met; then shorter and longer than a batch takes.
            let pause = if is_first && count == 0 { 1 } else { 50 + n * 137 % 600 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    });
    eventually("some are moved", LIMIT, async || (waiting(&client).await.0 < MESSAGES).then_some(())).await;
    doomed.kill().await;
    eventually("half are moved", LIMIT * 4, async || (waiting(&client).await.0 < MESSAGES / 2).then_some(()))
        .await;
    eventually("some were killed", LIMIT, async || (killed.load(Ordering::SeqCst) > 0).then_some(())).await;
    running.abort_all();
    await_messages(&stream, 20_000).await;
    relay.stop().await;
    assert_eq!(waiting(&client).await, (0, 0));
    let keys = log(&client).await;
    assert_eq!(keys, (1..=MESSAGES).map(|n| format!("k{n}")).collect::<Vec<_>>(), "once, in order");
    let in_stream: BTreeSet<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
    assert_eq!(in_stream.len(), 20_000);
}

#[tokio::test]
async fn a_cancellation_and_a_move_have_one_winner() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let sql = "SELECT count(oncebox.enqueue_at('k' || n, 's', 'p', clock_timestamp() + interval '1 h'))
               FROM generate_series(1, 400) AS n";
    client.query_one(sql, &[]).await.unwrap();
    pass(&client, 3600.0).await;
    let canceller = env.pg().await;
    let mut cancelled = BTreeSet::new();
    let cancel = async {
        for n in (1..=400).rev() {
            let row = canceller.query_one("SELECT oncebox.cancel_delayed($1)", &[&format!("k{n}")]).await;
            if row.unwrap().get(0) {
                cancelled.insert(format!("k{n}"));
            }
        }
    };
    let moves = async {
        for _ in 0..400 {
            let sql = "SELECT FROM oncebox.move_delayed(3, 1000000, '-infinity', 0)";
            client.execute(sql, &[]).await.unwrap();
        }
    };
    tokio::join!(cancel, moves);
    let moved: BTreeSet<String> = log(&client).await.into_iter().collect();
    println!("{} cancelled, {} moved", cancelled.len(), moved.len());
    assert!(moved.is_disjoint(&cancelled));
    assert_eq!((moved.len() + cancelled.len(), waiting(&client).await), (400, (0, 0)));
    assert!(!moved.is_empty() && !cancelled.is_empty(), "they met");
    // A key that was cancelled is free again.
    let key = cancelled.first().unwrap();
    assert!(delay(&client, key, 60.0, None).await.is_some());
}

/// A transaction that delays a message can be prepared, and the relay finds it after the commit.
#[tokio::test]
async fn a_delayed_message_of_a_prepared_transaction_leaves() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let server = two_phase::server().await;
    let url = server.url("postgres");
    let producer = support::client(&url).await;
    let relay = Running::start(&values(&url, env.nats_url()));
    for n in 1..=5 {
        two_phase::asleep(&**producer).await;
        producer.batch_execute("BEGIN").await.unwrap();
        let sql = "SELECT oncebox.enqueue_at($1, $2, 'p', clock_timestamp() + interval '10 milliseconds')";
        producer.execute(sql, &[&format!("p{n}"), &env.subject("a")]).await.unwrap();
        producer.batch_execute("PREPARE TRANSACTION 'p'").await.unwrap();
        producer.batch_execute("COMMIT PREPARED 'p'").await.unwrap();
        timeout(Duration::from_secs(10), await_messages(&stream, n)).await.expect("found by a look");
    }
    relay.stop().await;
}

/// PostgreSQL's DETAIL shows the row that it refuses, the payload in hex.
#[tokio::test]
async fn a_refused_move_shows_no_row_in_the_log() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let sql = "ALTER TABLE oncebox.message_0 ADD CONSTRAINT by_hand CHECK (lane < 0 OR subject <> 's')";
    client.batch_execute(sql).await.unwrap();
    delay(&client, "due", 0.1, None).await;
    let (log, _guard) = Log::of_this_thread();
    let relay = Running::start(&values_of(&env));
    eventually("the refusal is logged", LIMIT, async || log.text().contains("by_hand").then_some(())).await;
    relay.stop().await;
    assert!(!log.text().contains(r"\x70") && !log.text().contains("Failing row"), "{}", log.text());
}
