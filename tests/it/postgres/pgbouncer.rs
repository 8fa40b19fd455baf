//! Everything through a real `PgBouncer` in transaction mode with few backends, so that connections
//! change them all the time.

use std::collections::BTreeSet;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use futures_util::future::try_join_all;
use oncebox_outbox::{Key, Message, Outbox};
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Log, PgBouncer, Postgres, Stop, TestEnv, eventually};
use serde_json::Value;
use tokio_postgres::{NoTls, Transaction};

use crate::{
    operator::doctor::run_with,
    relay::{
        process::{Process, run, run_ok},
        support::{
            LIMIT, assert_delivered, await_messages, client, connect, enqueue, fresh_stream, stored,
            stream_config, values, with,
        },
    },
};

pub(crate) const BACKENDS: usize = 3;

/// A pooler before the test's database, and its URL; `None` where no program is installed.
pub(crate) async fn pooler(env: &TestEnv) -> Option<(PgBouncer, String)> {
    let pooler = PgBouncer::start(env.database_url(), BACKENDS).await.unwrap()?;
    let url = pooler.url(env.name());
    Some((pooler, url))
}

pub(crate) fn pool(url: &str, size: usize) -> Pool {
    let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    Pool::builder(Manager::from_config(url.parse().unwrap(), NoTls, config))
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .build()
        .unwrap()
}

async fn backend(transaction: &Transaction<'_>) -> i32 {
    transaction.query_typed_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Statements that clients have left prepared in the backends of the pooler.
pub(crate) async fn left_prepared(url: &str) -> i64 {
    let pool = pool(url, BACKENDS);
    let looking = (0..BACKENDS).map(async |_| {
        let mut object = pool.get().await.unwrap();
        // All at once, so that each has a backend of its own.
        let transaction = object.transaction().await?;
        let row = transaction
            .query_typed_one("SELECT count(*), pg_sleep(0.3) FROM pg_prepared_statements", &[])
            .await?;
        Ok::<i64, tokio_postgres::Error>(row.get(0))
    });
    try_join_all(looking).await.unwrap().iter().sum()
}

#[tokio::test]
async fn the_pooler_does_take_prepared_statements_away() {
    let env = TestEnv::new().await;
    let Some((pooler, url)) = pooler(&env).await else { return };
    // All else here rests on this: a statement prepared in one transaction is gone in the next, in
    // another backend.
    let mut preparing = client(&url).await;
    let transaction = preparing.transaction().await.unwrap();
    let statement = transaction.prepare("SELECT 1").await.unwrap();
    let home = backend(&transaction).await;
    transaction.commit().await.unwrap();
    let mut others = [client(&url).await, client(&url).await, client(&url).await];
    let mut open = Vec::new();
    for other in &mut others {
        let transaction = other.transaction().await.unwrap();
        let has_it = backend(&transaction).await == home;
        open.push((transaction, has_it));
    }
    open.retain(|(_, has_it)| *has_it);
    assert_eq!(open.len(), 1, "as many transactions as backends");
    let transaction = preparing.transaction().await.unwrap();
    let used = transaction.query_one(&statement, &[]).await;
    assert_eq!(used.is_ok(), pooler.carries_prepared_statements(), "{used:?}");
}

#[tokio::test]
async fn relays_work_through_a_transaction_pooler_and_say_so_once() {
    let env = TestEnv::new().await;
    let Some((_pooler, url)) = pooler(&env).await else { return };
    let config = stream_config(env.name(), &env.subject("taken.>"));
    let stream = fresh_stream(env.nats_url(), config).await;
    let pg = env.pg().await;
    let relays = [(); 2]
        .map(|()| Process::relay(&with(&values(&url, env.nats_url()), [("http-listen", "127.0.0.1:0")])));
    let mut keys = Vec::new();
    for round in 0..20 {
        keys.extend(enqueue(&pg, &env.subject("taken.a"), &format!("m-{round}-"), 0..200, 7).await);
    }
    enqueue(&pg, &env.subject("lost.a"), "lost-", 0..5, 0).await;
    keys.extend(produce(&url, &env.subject("taken.b")).await);
    await_messages(&stream, keys.len()).await;
    assert_delivered(&stored(&stream).await, &keys);
    eventually("the rest is set aside", LIMIT, async || {
        let row = pg.query_one("SELECT count(*) FROM oncebox.parked", &[]).await.unwrap();
        (row.get::<_, i64>(0) == 5).then_some(())
    })
    .await;
    for relay in &relays {
        assert_eq!(relay.get("/readyz").await.0, 200);
        relay.await_log("a transaction pooler stands before PostgreSQL").await;
    }
    assert_eq!(left_prepared(&url).await, 0);
    let listening =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()";
    assert_eq!(pg.query_one(listening, &[]).await.unwrap().get::<_, i64>(0), 0);
    for relay in relays {
        relay.signal("TERM").await;
        let (ended, log) = relay.ended().await;
        assert_eq!(ended.code(), Some(0), "{log}");
        assert_eq!(log.matches("a transaction pooler").count(), 1, "{log}");
    }
}

/// Two that ask the pooler in step, each with the backend that the other has just given back.
#[tokio::test]
async fn relays_that_start_together_notice_a_pooler_before_they_prepare_anything() {
    const STARTS: usize = 120;
    let env = TestEnv::new().await;
    let Some((_pooler, url)) = pooler(&env).await else { return };
    let values = values(&url, env.nats_url());
    let (log, _guard) = Log::of_this_thread();
    for _ in 0..STARTS / 2 {
        tokio::join!(connect(&values), connect(&values));
    }
    let noticed = log.count("a transaction pooler stands before PostgreSQL");
    // One may have had bad luck, about once in thirty thousand starts.
    assert!(noticed >= STARTS - 1, "{noticed} of {STARTS}");
}

/// Enqueues by the outbox crate, many transactions at a time, in both kinds of transaction.
async fn produce(url: &str, subject: &str) -> Vec<String> {
    let pool = pool(url, 8);
    let outbox = Outbox::default().behind_pooler();
    let producing = (0..8).map(async |producer| {
        let mut object = pool.get().await.unwrap();
        let mut keys = Vec::new();
        for number in 0..15 {
            let key = format!("p-{producer}-{number}");
            let message = Message::bytes(key.parse::<Key>().unwrap(), subject.parse().unwrap(), "x");
            if number % 2 == 0 {
                let transaction = object.transaction().await?;
                outbox.enqueue(&transaction, &message).await.unwrap();
                transaction.commit().await?;
            } else {
                let client: &mut tokio_postgres::Client = &mut object;
                let transaction = client.transaction().await?;
                outbox.enqueue_all(&transaction, &[message]).await.unwrap();
                transaction.commit().await?;
            }
            keys.push(key);
        }
        Ok::<_, tokio_postgres::Error>(keys)
    });
    try_join_all(producing).await.unwrap().concat()
}

#[tokio::test]
async fn relays_of_two_outboxes_behind_one_pooler_never_settle_each_others_lanes() {
    let env = TestEnv::new().await;
    let Some((_pooler, url)) = pooler(&env).await else { return };
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject(">"))).await;
    let other: SchemaName = "other".parse().unwrap();
    migrate(&mut env.pg().await, &other, Lanes::default()).await.unwrap();
    // Both number their statements alike. Started while the pooler is busy, so that a look at it
    // shows little.
    let busy: Vec<_> = try_join_all((0..8).map(async |_| {
        let object = client(&url).await;
        Ok::<_, tokio_postgres::Error>(object)
    }))
    .await
    .unwrap();
    let hammering = try_join_all(busy.iter().map(async |object| {
        for _ in 0..40 {
            object.query_typed("SELECT pg_sleep(0.005)", &[]).await?;
        }
        Ok::<(), tokio_postgres::Error>(())
    }));
    let relays = ["oncebox", "other"].map(|schema| {
        Process::relay(&with(&values(&url, env.nats_url()), [("schema", schema), ("workers", "6")]))
    });
    hammering.await.unwrap();
    let pg = env.pg().await;
    for round in 0..30 {
        for schema in ["oncebox", "other"] {
            let sql = format!(
                "SELECT {schema}.enqueue('{schema}-{round}-' || n, $1, 'x', '{{}}', 'o' || n % 5) FROM generate_series(1, 20) AS n"
            );
            pg.execute(&sql, &[&env.subject("a")]).await.unwrap();
        }
    }
    let numbers = (0..30).flat_map(|round| (1..=20).map(move |n| (round, n)));
    let keys: Vec<String> = numbers
        .flat_map(|(round, n)| ["oncebox", "other"].map(|schema| format!("{schema}-{round}-{n}")))
        .collect();
    eventually("all are there", LIMIT, async || (stored(&stream).await.len() >= keys.len()).then_some(()))
        .await;
    let there: BTreeSet<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
    assert_eq!(there, keys.into_iter().collect());
    for relay in relays {
        relay.signal("TERM").await;
        let (ended, log) = relay.ended().await;
        assert_eq!(ended.code(), Some(0), "{log}");
    }
}

#[tokio::test]
async fn every_command_works_through_a_transaction_pooler() {
    let env = TestEnv::new().await;
    let Some((_pooler, url)) = pooler(&env).await else { return };
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken.>"))).await;
    run_ok(&url, &["migrate"]).await;
    run_ok(&url, &["migrate", "--schema", "fresh"]).await;
    let pg = env.pg().await;
    let mut keys = enqueue(&pg, &env.subject("taken.a"), "m-", 0..50, 3).await;
    enqueue(&pg, &env.subject("lost"), "lost-", 0..20, 2).await;
    let relay = Process::relay(&with(&values(&url, env.nats_url()), [("attempts-max", "1")]));
    await_messages(&stream, 50).await;
    eventually("all of the others are dead", LIMIT, async || {
        let told: Value = serde_json::from_str(&run_ok(&url, &["status", "--json"]).await).unwrap();
        (told["dead"].as_i64()? >= 2 && told["parked"].as_i64()? + told["dead"].as_i64()? == 20).then_some(())
    })
    .await;
    // Several at once share backends with the relay and with each other.
    let commands: [&[&str]; 6] = [
        &["status"],
        &["outbox", "dead", "list"],
        &["outbox", "dead", "retry", "--all", "--dry-run"],
        &["trace", "lost-0"],
        &["outbox", "prune", "--dry-run"],
        &["outbox", "dead", "show", "lost-0"],
    ];
    let running = (0..3).flat_map(|_| commands).map(async |command| {
        let (code, output, log) = run(&url, command).await;
        if code == 0 { Ok(()) } else { Err(format!("{command:?}: {output}{log}")) }
    });
    try_join_all(running).await.unwrap();
    assert!(run_ok(&url, &["outbox", "dead", "discard", "--all"]).await.contains("discarded"));
    run_ok(&url, &["outbox", "replay", "--key", "m-7"]).await;
    await_messages(&stream, 51).await;
    keys.push("m-7;r=1".to_owned());
    let there: BTreeSet<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
    assert_eq!(there, keys.into_iter().collect());
    assert_eq!(left_prepared(&url).await, 0);

    let (code, output, log) =
        run_with(&["doctor", "--json"], &[("DATABASE_URL", &url), ("NATS_URL", env.nats_url())]).await;
    let seen: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}{log}"));
    let checks: Vec<&str> =
        seen["findings"].as_array().unwrap().iter().map(|f| f["check"].as_str().unwrap()).collect();
    assert!(checks.contains(&"pooler"), "{code}: {seen}");
    assert_eq!(seen["postgres"]["is_pooled"], true);
    let listening =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()";
    assert_eq!(pg.query_one(listening, &[]).await.unwrap().get::<_, i64>(0), 0);
    relay.signal("TERM").await;
    let (ended, log) = relay.ended().await;
    assert_eq!(ended.code(), Some(0), "{log}");
}

/// New sessions under a relay that runs: they come from a restart, and it goes on as before.
#[tokio::test]
async fn a_restart_of_postgres_is_not_taken_for_a_pooler() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let mut server = Postgres::start().await.unwrap();
    let url = server.url("postgres");
    let mut migrating = client(&url).await;
    migrate(&mut migrating, &SchemaName::default(), Lanes::default()).await.unwrap();
    drop(migrating);
    let relay = Process::relay(&values(&url, env.nats_url()));
    let mut keys = Vec::new();
    for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
        keys.extend(enqueue(&**client(&url).await, &env.subject("a"), &format!("{how:?}-"), 0..500, 5).await);
        await_messages(&stream, keys.len()).await;
        server.restart(how).await.unwrap();
    }
    keys.extend(enqueue(&**client(&url).await, &env.subject("a"), "last-", 0..500, 5).await);
    await_messages(&stream, keys.len()).await;
    let listening = "SELECT FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    let client = client(&url).await;
    eventually("it is the leader again", LIMIT, async || {
        client.query_opt(listening, &[]).await.unwrap().map(drop)
    })
    .await;
    relay.signal("TERM").await;
    let (ended, log) = relay.ended().await;
    assert_eq!(ended.code(), Some(0), "{log}");
    assert!(!log.contains("a transaction pooler"), "{log}");
    assert_delivered(&stored(&stream).await, &keys);
}
