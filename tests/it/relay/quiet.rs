//! An idle relay checks whether something has changed before it claims, holds two connections, and
//! forgets no message: every interleaving of enqueue, commit, check, sleep mark and wake-up, step
//! by step.

use std::time::Duration;

use oncebox_relay::parts::{Pass, Worker};
use oncebox_tests::{TestEnv, eventually};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, GenericClient};

use crate::relay::{
    support::{
        LIMIT, Running, assert_delivered, await_messages, client, connect, enqueue, stored, values,
        values_of, with,
    },
    two_phase,
};

/// All lanes are claimed so often, changed or not: see `pass/quiet.rs`.
const CLAIM_EVERY: Duration = Duration::from_millis(250);

fn settled(messages: usize) -> Pass {
    Pass::Settled { messages, full: false }
}

/// A worker that has found nothing due, and remembers the snapshot at which it looked.
async fn resting_worker(database_url: &str, nats_url: &str) -> Worker {
    let values = with(&values(database_url, nats_url), [("batch-lanes", "64")]);
    let mut worker = connect(&values).await.worker();
    assert_eq!(worker.run_if_due().await.unwrap(), Pass::Idle);
    worker
}

/// Whether a pass skipped the claim. Then the last statement of the relay's session is the check
/// whether something has changed.
async fn skips(worker: &mut Worker, client: &impl GenericClient) -> bool {
    assert_eq!(worker.run_if_due().await.unwrap(), Pass::Idle);
    let sql = "SELECT query LIKE '-- Look whether%' FROM pg_stat_activity
               WHERE application_name = 'oncebox relay' AND datname = current_database()
               ORDER BY state_change DESC LIMIT 1";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Expects a pass without a claim soon. On a slow machine the claim that is made from time to time
/// in any case may come first.
async fn skips_at_last(worker: &mut Worker, client: &impl GenericClient) {
    let skipped = async || skips(worker, client).await.then_some(());
    eventually("no lane is claimed, since nothing has changed", LIMIT, skipped).await;
}

/// This needs its own server, since a transaction that ends in another database of the server
/// counts too.
#[tokio::test]
async fn nothing_is_claimed_while_nothing_has_changed() {
    let env = TestEnv::new().await;
    let _stream = env.stream().await;
    let server = two_phase::server().await;
    let url = server.url("postgres");
    let client = client(&url).await;
    let mut worker = resting_worker(&url, env.nats_url()).await;
    skips_at_last(&mut worker, &**client).await;
    enqueue(&**client, &env.subject("a"), "m-", 0..1, 0).await;
    assert_eq!(worker.run_if_due().await.unwrap(), settled(1));
    // The relay's own settlement is a transaction that has ended too: one more claim finds nothing,
    // and then claims are skipped again.
    skips_at_last(&mut worker, &**client).await;
    sleep(Duration::from_millis(260)).await;
    assert!(!skips(&mut worker, &**client).await, "lanes are claimed now and then all the same");
}

#[tokio::test]
async fn a_transaction_that_was_open_at_the_look_is_seen_to_end() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (client, mut producer) = (env.pg().await, env.pg().await);
    let mut worker = resting_worker(env.database_url(), env.nats_url()).await;
    let mut expected = Vec::new();
    for round in 0..5 {
        let transaction = producer.transaction().await.unwrap();
        let keys = enqueue(&transaction, &env.subject("a"), "open-", round..round + 1, 0).await;
        if round % 2 == 1 {
            // A later transaction ends. Only then does a snapshot list the open one.
            client.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap();
        }
        skips_at_last(&mut worker, &client).await;
        transaction.commit().await.unwrap();
        assert_eq!(worker.run_if_due().await.unwrap(), settled(1), "round {round}");
        expected.extend(keys);
    }
    // A transaction that is rolled back has ended too: one more claim finds nothing, and then
    // claims are skipped again.
    let transaction = producer.transaction().await.unwrap();
    enqueue(&transaction, &env.subject("a"), "given-up-", 0..1, 0).await;
    skips_at_last(&mut worker, &client).await;
    transaction.rollback().await.unwrap();
    assert!(!skips(&mut worker, &client).await, "it has ended");
    skips_at_last(&mut worker, &client).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn a_prepared_transaction_is_seen_to_end() {
    let env = TestEnv::new().await;
    let _stream = env.stream().await;
    let server = two_phase::server().await;
    let url = server.url("postgres");
    let producer = client(&url).await;
    let mut worker = resting_worker(&url, env.nats_url()).await;
    for (end, passed) in [("COMMIT", settled(1)), ("ROLLBACK", Pass::Idle)] {
        producer.batch_execute("BEGIN").await.unwrap();
        enqueue(&**producer, &env.subject("a"), end, 0..1, 0).await;
        producer.batch_execute("PREPARE TRANSACTION 'p'").await.unwrap();
        skips_at_last(&mut worker, &**producer).await;
        producer.batch_execute(&format!("{end} PREPARED 'p'")).await.unwrap();
        assert_eq!(worker.run_if_due().await.unwrap(), passed, "{end}");
    }
}

/// After a pass that left nothing due, only lanes with new messages are claimed. Each 250 ms all
/// lanes are, and that claim does not notice a lane that is locked: a round during which it was due
/// shows nothing.
#[tokio::test]
async fn what_came_into_a_lane_that_another_had_locked_is_claimed_next() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (client, mut other) = (env.pg().await, env.pg().await);
    let mut worker = resting_worker(env.database_url(), env.nats_url()).await;
    let (begun, mut expected, mut shown) = (Instant::now(), Vec::new(), 0);
    for round in 0.. {
        if shown == 6 {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{shown} of {round} rounds took less than {CLAIM_EVERY:?}");
        assert_eq!(worker.run_once().await.unwrap(), Pass::Idle);
        let all_claimed = Instant::now();
        assert_eq!(worker.run_if_due().await.unwrap(), Pass::Idle);
        let lock = other.transaction().await.unwrap();
        let locked = format!("locked-{round}");
        let sql = "SELECT FROM oncebox.lane WHERE lane = oncebox.lane_of($1) FOR UPDATE";
        lock.execute(sql, &[&locked]).await.unwrap();
        // Neither a lock on the lane nor a message that is not committed counts as something new.
        assert_eq!(worker.run_if_due().await.unwrap(), Pass::Idle);
        let enqueue = "SELECT oncebox.enqueue($1, $2, '')";
        client.execute(enqueue, &[&locked, &env.subject("a")]).await.unwrap();
        // Alone, or with others in lanes that are free.
        if round % 2 == 1 {
            let transaction =
                "SELECT n, oncebox.enqueue('free-' || $1 || '-' || n, $2, '') FROM generate_series(1, 40) AS n
                           WHERE oncebox.lane_of('free-' || $1 || '-' || n) <> oncebox.lane_of($3)";
            let free =
                client.query(transaction, &[&round.to_string(), &env.subject("a"), &locked]).await.unwrap();
            expected.extend(free.iter().map(|row| format!("free-{round}-{}", row.get::<_, i32>(0))));
            assert_eq!(worker.run_if_due().await.unwrap(), settled(free.len()), "round {round}");
        }
        // As long as it is locked it may be looked for in vain.
        for _ in 0..3 {
            worker.run_if_due().await.unwrap();
        }
        lock.commit().await.unwrap();
        let passed = worker.run_if_due().await.unwrap();
        if all_claimed.elapsed() < CLAIM_EVERY {
            assert_eq!(passed, settled(1), "round {round}");
            shown += 1;
        } else if passed != settled(1) {
            assert_eq!(worker.run_once().await.unwrap(), settled(1), "round {round}");
        }
        expected.push(locked);
    }
    let delivered = stored(&stream).await;
    assert_eq!(assert_delivered(&delivered, &expected), 0);
}

async fn is_marked_asleep(client: &Client) -> bool {
    let row = client.query_one("SELECT last_value = 1 FROM oncebox.relay_asleep", &[]).await;
    row.unwrap().get(0)
}

#[tokio::test]
async fn what_sends_no_notify_is_found_by_looking() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (client, mut producer) = (env.pg().await, env.pg().await);
    let relay = Running::start(&values_of(&env));
    let mut expected = Vec::new();
    for round in 0..3 {
        // The message is enqueued while the sleep mark is not set, and committed while it is: no
        // relay is notified.
        let transaction = producer.transaction().await.unwrap();
        transaction.execute("SELECT setval('oncebox.relay_asleep', 0)", &[]).await.unwrap();
        expected.extend(enqueue(&transaction, &env.subject("a"), "m-", round..round + 1, 0).await);
        eventually("it sleeps", LIMIT, async || is_marked_asleep(&client).await.then_some(())).await;
        transaction.commit().await.unwrap();
        let delivered = await_messages(&stream, expected.len());
        timeout(Duration::from_secs(20), delivered).await.expect("found without a wake-up");
        assert!(is_marked_asleep(&client).await, "nobody has woken it");
    }
    relay.stop().await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// Sessions of relays in this database.
async fn sessions(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE application_name = 'oncebox relay' AND datname = current_database()";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn workers_come_with_a_backlog_and_leave_with_it() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    enqueue(&client, &env.subject("a"), "m-", 0..30_000, 0).await;
    // Passes are small, so that the workers are busy for long.
    let relay = Running::start(&with(&values_of(&env), [("workers", "4"), ("batch-messages", "300")]));
    eventually("more workers join", LIMIT, async || (sessions(&client).await >= 4).then_some(())).await;
    await_messages(&stream, 30_000).await;
    eventually("two connections are left", LIMIT, async || (sessions(&client).await <= 2).then_some(()))
        .await;
    // When the other workers have ended and a message comes, the first worker delivers it.
    enqueue(&client, &env.subject("a"), "late-", 0..1, 0).await;
    timeout(Duration::from_secs(20), await_messages(&stream, 30_001)).await.expect("at once");
    relay.stop().await;
}
