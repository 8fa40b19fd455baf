//! Entity locks: two messages about one entity. Which test holds which rule (R) and trap (X):

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use futures_util::future::BoxFuture;
use oncebox_inbox::{Context, HandlerError, Inbox, Outcome, Verdict, lock};
use oncebox_schema::SchemaName;
use oncebox_tests::{PgBouncer, TestEnv, eventually};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_postgres::error::SqlState;

use crate::inbox::support::{
    Does, Job, LIMIT, Returned, SCOPE, builder, effects, environment, insert, message,
};

const ACCOUNTS: i64 = 4;
pub(crate) const BALANCE: i64 = 1000;

pub(crate) async fn bank() -> TestEnv {
    let env = environment().await;
    let sql = format!(
        "CREATE TABLE account (id bigint PRIMARY KEY, cents bigint, version integer DEFAULT 0);
         INSERT INTO account SELECT id, {BALANCE} FROM generate_series(0, {}) AS id",
        ACCOUNTS - 1
    );
    env.pg().await.batch_execute(&sql).await.unwrap();
    env
}

/// Moves `n` cents from account n to account n + 1, around the bank: reads both, pauses, and writes
/// the new balances.
fn transfer(
    guard: impl for<'a> Fn(&'a Context<'a>, i64, i64) -> BoxFuture<'a, Result<(), HandlerError>>
    + Send
    + Sync
    + 'static,
) -> Does {
    let guard = Arc::new(guard);
    Does::new(move |cx, job| {
        let guard = Arc::clone(&guard);
        Box::pin(async move {
            let (from, to) = (job.n % ACCOUNTS, (job.n + 1) % ACCOUNTS);
            guard(cx, from, to).await?;
            for (id, change) in [(from, -job.n), (to, job.n)] {
                let row =
                    cx.transaction().query_one("SELECT cents FROM account WHERE id = $1", &[&id]).await?;
                let cents = row.get::<_, i64>(0) + change;
                sleep(Duration::from_millis(2)).await;
                cx.transaction()
                    .execute("UPDATE account SET cents = $2 WHERE id = $1", &[&id, &cents])
                    .await?;
            }
            Ok(Outcome::done(String::new()))
        })
    })
}

/// Runs messages 1 to `count` at once in two inboxes, each until it is handled.
pub(crate) async fn run_all(env: &TestEnv, handler: &Does, count: i64) {
    let inboxes = [(); 2].map(|()| builder(env).build().unwrap());
    let mut running = JoinSet::new();
    for n in 1..=count {
        let inbox = inboxes[usize::try_from(n % 2).unwrap()].clone();
        let handler = handler.clone();
        running.spawn(async move {
            let message = message(&format!("k{n}"), n);
            for _ in 0..100 {
                if let Verdict::Handled(_) = inbox.run(&handler, &message).await.unwrap() {
                    return;
                }
                sleep(Duration::from_millis(10)).await;
            }
            panic!("message {n} is never handled");
        });
    }
    timeout(LIMIT, running.join_all()).await.unwrap();
}

/// The balances of the accounts after messages 1 to `count`.
pub(crate) fn expected(count: i64) -> Vec<i64> {
    let mut cents = vec![BALANCE; usize::try_from(ACCOUNTS).unwrap()];
    for n in 1..=count {
        let (from, to) = (n % ACCOUNTS, (n + 1) % ACCOUNTS);
        cents[usize::try_from(from).unwrap()] -= n;
        cents[usize::try_from(to).unwrap()] += n;
    }
    cents
}

pub(crate) async fn cents(env: &TestEnv) -> Vec<i64> {
    let rows = env.pg().await.query("SELECT cents FROM account ORDER BY id", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Different keys, one entity. Two pools stand for two processes.
#[tokio::test]
async fn sums_are_right_when_messages_share_accounts() {
    let env = bank().await;
    let handler = transfer(|cx, from, to| {
        Box::pin(async move { Ok(cx.lock([format!("account:{from}"), format!("account:{to}")]).await?) })
    });
    run_all(&env, &handler, 60).await;
    assert_eq!(cents(&env).await, expected(60));
    assert_eq!(handler.runs(), 60, "nobody lost a race, so nobody ran twice");
}

async fn deadlocks(env: &TestEnv) -> i64 {
    let sql = "SELECT pg_stat_clear_snapshot()::text, deadlocks FROM pg_stat_database WHERE datname = current_database()";
    env.pg().await.query_one(sql, &[]).await.unwrap().get(1)
}

/// Many transactions at once, each locking five of eight names in an order of its own, for a
/// moment. How many failed, and each for having met another in a circle.
async fn contend<F>(env: &TestEnv, take: F) -> usize
where
    F: for<'a> Fn(
            &'a tokio_postgres::Transaction<'a>,
            Vec<String>,
        ) -> BoxFuture<'a, Result<(), tokio_postgres::Error>>
        + Send
        + Sync
        + Clone
        + 'static,
{
    let pool: Pool = env.pool(12);
    let mut running = JoinSet::new();
    for task in 0..12_u64 {
        let (pool, take) = (pool.clone(), take.clone());
        running.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            let mut failed = 0;
            for _ in 0..25 {
                let mut names: Vec<String> = (0..8).map(|n| format!("account:{n}")).collect();
                random.shuffle(&mut names);
                names.truncate(5);
                let mut object = pool.get().await.unwrap();
                let transaction = object.transaction().await.unwrap();
                match take(&transaction, names).await {
                    Ok(()) => transaction.commit().await.unwrap(),
                    Err(error) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => failed += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            failed
        });
    }
    timeout(LIMIT * 2, running.join_all()).await.unwrap().into_iter().sum()
}

/// The order of the hashes, with any order of the names and of the rows.
#[tokio::test]
async fn overlapping_locks_in_any_order_never_deadlock() {
    let env = environment().await;
    let failed = contend(&env, |transaction, names| {
        Box::pin(async move {
            lock(transaction, &SchemaName::default(), &names).await.unwrap();
            transaction.batch_execute("SELECT pg_sleep(0.001)").await
        })
    })
    .await;
    assert_eq!((failed, deadlocks(&env).await), (0, 0));
}

/// The test above can fail.
#[tokio::test]
async fn the_same_locks_in_the_order_of_their_names_deadlock() {
    let env = environment().await;
    env.pg()
        .await
        .batch_execute(&format!("ALTER DATABASE {} SET deadlock_timeout = '20ms'", env.name()))
        .await
        .unwrap();
    let failed = contend(&env, |transaction, names| {
        Box::pin(async move {
            for name in names {
                lock(transaction, &SchemaName::default(), [name]).await.map_err(|error| match error {
                    oncebox_inbox::LockError::Postgres(source) => *source.downcast().unwrap(),
                    other => panic!("{other}"),
                })?;
            }
            transaction.batch_execute("SELECT pg_sleep(0.001)").await
        })
    })
    .await;
    assert!(failed > 0);
}

/// Another session that has this lock, in a transaction that lasts until it is dropped.
async fn held(env: &TestEnv, name: &str) -> tokio_postgres::Client {
    let mut client = env.pg().await;
    let transaction = client.transaction().await.unwrap();
    lock(&transaction, &SchemaName::default(), [name]).await.unwrap();
    // Its end would roll back.
    std::mem::forget(transaction);
    client
}

fn locking() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            cx.lock(["account:1"]).await?;
            Ok(Outcome::done(reply))
        })
    })
}

/// After lock_timeout, and without one before the handler is cut off; the connection remains
/// usable.
#[tokio::test]
async fn a_lock_that_is_not_free_is_a_clear_reason_to_run_again() {
    let env = environment().await;
    let holder = held(&env, "account:1").await;
    let short = Duration::from_millis(200);
    let one = || Inbox::builder(env.pool(1)).scope(SCOPE).single_tenant();
    let inboxes =
        [one().lock_timeout(short).build().unwrap(), one().handler_timeout(short * 5).build().unwrap()];
    for (inbox, longest) in inboxes.iter().zip([short * 25, short * 26]) {
        let begun = Instant::now();
        let verdict = inbox.run(&locking(), &message("k", 7)).await.unwrap();
        let Verdict::Retry { reason, .. } = verdict else { panic!("{verdict:?}") };
        assert!(reason.starts_with("one of 1 entity locks was not free after"), "{reason}");
        assert!(reason.contains("lock timeout"), "{reason}");
        assert!(begun.elapsed() < longest, "{:?}", begun.elapsed());
        let verdict = inbox.run(&Does::effect(), &message(&format!("{longest:?}"), 7)).await.unwrap();
        assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    }
    assert_eq!(effects(&env).await, 2, "a handler that did not get its lock has left nothing");
    drop(holder);
    eventually("the lock is free again", LIMIT, async || {
        let verdict = inboxes[0].run(&locking(), &message("k", 7)).await.unwrap();
        matches!(verdict, Verdict::Handled(_)).then_some(())
    })
    .await;
}

/// A duplicate is answered from the stored outcome, and one of a message that itself waits for the
/// lock as in flight.
#[tokio::test]
async fn a_duplicate_does_not_wait_for_the_locks_of_its_message() {
    let env = environment().await;
    let inbox = builder(&env).build().unwrap();
    inbox.run(&locking(), &message("done", 7)).await.unwrap();
    let holder = held(&env, "account:1").await;
    let mut waiting = JoinSet::new();
    let handler = locking();
    waiting.spawn({
        let (inbox, handler) = (inbox.clone(), handler.clone());
        async move { inbox.run(&handler, &message("waits", 7)).await.unwrap() }
    });
    eventually("the handler runs", LIMIT, async || (handler.runs() == 1).then_some(())).await;
    for (key, is_done) in [("done", true), ("waits", false)] {
        let duplicate =
            timeout(Duration::from_secs(5), inbox.run(&handler, &message(key, 7).deliveries(2))).await;
        let verdict = duplicate.expect("a duplicate waits for nothing").unwrap();
        assert_eq!(matches!(verdict, Verdict::Replayed(_)), is_done, "{key}: {verdict:?}");
        assert_eq!(matches!(verdict, Verdict::InFlight), !is_done, "{key}: {verdict:?}");
    }
    drop(holder);
    assert!(matches!(waiting.join_next().await.unwrap().unwrap(), Verdict::Handled(_)));
}

/// Success, a no, failure, panic, time over, and a process that ends.
#[tokio::test]
async fn locks_end_with_the_message_however_it_ends() {
    let env = environment().await;
    let inbox = builder(&env).handler_timeout(Duration::from_millis(300)).build().unwrap();
    let ends: [fn() -> BoxFuture<'static, Returned>; 6] = [
        || Box::pin(async { Ok(Outcome::done(String::new())) }),
        || Box::pin(async { Ok(Outcome::reject(String::new())) }),
        || Box::pin(async { Err(HandlerError::message("no luck")) }),
        || Box::pin(async { Ok(Outcome::dead("no hope")) }),
        || Box::pin(async { panic!("no way") }),
        || Box::pin(std::future::pending()),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let handler = Does::new(move |cx, _: Job| {
            Box::pin(async move {
                cx.lock(["account:1"]).await?;
                end().await
            })
        });
        inbox.run(&handler, &message(&format!("k{number}"), 7)).await.unwrap();
        let mut client = env.pg().await;
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute("SET LOCAL lock_timeout = '5s'").await.unwrap();
        lock(&transaction, &SchemaName::default(), ["account:1"])
            .await
            .unwrap_or_else(|error| panic!("{number}: {error}"));
    }
}

#[tokio::test]
async fn names_that_cannot_be_entities_change_nothing() {
    let env = environment().await;
    let inbox = builder(&env).build().unwrap();
    for (number, (names, reason)) in [
        (vec![String::new()], "entity locks: a name has 0 bytes"),
        (vec!["x".repeat(256)], "entity locks: a name has 256 bytes"),
        ((0..65).map(|n| n.to_string()).collect(), "entity locks: more than 64 names"),
    ]
    .into_iter()
    .enumerate()
    {
        let handler = Does::new(move |cx, job| {
            let names = names.clone();
            Box::pin(async move {
                insert(cx, &job).await?;
                cx.lock(&names).await?;
                Ok(Outcome::done(String::new()))
            })
        });
        let verdict = inbox.run(&handler, &message(&format!("k{number}"), 7)).await.unwrap();
        assert!(
            matches!(&verdict, Verdict::Retry { reason: text, .. } if text.starts_with(reason)),
            "{verdict:?}"
        );
    }
    let bytes: Vec<String> = (0..64).map(|n| format!("\0 '; ü {n}")).collect();
    let handler = Does::new(move |cx, job| {
        let bytes = bytes.clone();
        Box::pin(async move {
            cx.lock(&bytes).await?;
            cx.lock([""; 0]).await?;
            Ok(Outcome::done(insert(cx, &job).await?))
        })
    });
    let verdict = inbox.run(&handler, &message("any", 7)).await.unwrap();
    assert!(matches!(verdict, Verdict::Handled(_)), "any text is a name: {verdict:?}");
    assert_eq!(effects(&env).await, 1);
}

/// Locks of the transaction hold with a pooler in transaction mode, and nothing is prepared for
/// them.
#[tokio::test]
async fn sums_are_right_behind_a_pooler() {
    let env = bank().await;
    let Some(pooler) = PgBouncer::start(env.database_url(), 3).await.unwrap() else { return };
    let pool = crate::postgres::pgbouncer::pool(&pooler.url(env.name()), 8);
    let inbox = Inbox::builder(pool).scope(SCOPE).single_tenant().behind_pooler().build().unwrap();
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            cx.lock(["account:0"]).await?;
            let sql = "SELECT cents FROM account WHERE id = 0";
            let cents: i64 = cx.transaction().query_typed_one(sql, &[]).await?.get(0);
            sleep(Duration::from_millis(2)).await;
            let sql = format!("UPDATE account SET cents = {} WHERE id = 0", cents + job.n);
            cx.transaction().batch_execute(&sql).await?;
            Ok(Outcome::done(String::new()))
        })
    });
    let mut running = JoinSet::new();
    for n in 1..=30 {
        let (inbox, handler) = (inbox.clone(), handler.clone());
        running.spawn(async move { inbox.run(&handler, &message(&format!("k{n}"), n)).await.unwrap() });
    }
    for verdict in timeout(LIMIT, running.join_all()).await.unwrap() {
        assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    }
    assert_eq!(cents(&env).await[0], BALANCE + (1..=30).sum::<i64>());
}
