//! Attempts, and things that are none: waiting, deliveries that no handler ran, and neighbours of a
//! message that kills.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::consumer::pull;
use futures_util::StreamExt;
use oncebox_inbox::{Consumer, Order, Outcome};
use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};

use crate::inbox::{
    consumer::{Running, consumer, publish, settled},
    order::lines,
    support::{Does, LIMIT, builder, count, dead_letters, effects, insert, stream_environment},
};

const SHORT: Duration = Duration::from_millis(500);

/// How many deliveries JetStream has made in all.
async fn deliveries(env: &TestEnv) -> u64 {
    env.stream().await.consumer_info("d").await.map_or(0, |info| info.delivered.consumer_sequence)
}

/// A head that is snoozed, and one that waits for it, longer than `hold_max`: each is delivered
/// again and again, and no one is given up for it, in the next process neither.
#[tokio::test]
async fn waiting_for_longer_than_a_message_is_held_is_no_attempt() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    for n in 1..=3 {
        publish(&jetstream, env.subject("a"), &format!("k{n}"), n, Some("line")).await;
    }
    let snoozes = Does::new(|_, _| Box::pin(async { Ok(Outcome::snooze(SHORT, "the ledger is closed")) }));
    let impatient = async || consumer(&env).await.ack_wait(SHORT).hold_max(SHORT);
    let limited = || builder(&env).attempts_max(2).build().unwrap();
    for process in 1..=2 {
        let inbox = limited();
        let mut waiting = Running::start(impatient().await, inbox.clone(), snoozes.clone());
        let goal = 15 * process;
        eventually("many deliveries", LIMIT, async || (deliveries(&env).await >= goal).then_some(())).await;
        waiting.tasks.shutdown().await;
        assert_eq!((inbox.counts().dead, inbox.counts().retried), (0, 0), "process {process}");
    }
    let running = Running::start(impatient().await, limited(), Does::effect());
    eventually("all effects", LIMIT, async || (effects(&env).await == 3).then_some(())).await;
    settled(&env).await;
    running.stop().await;
    assert_eq!(count(&env, "oncebox.dead_letter").await, 0);
}

/// Deliveries that no handler ran: to processes that died with the message, or lost it on the way.
#[tokio::test]
async fn deliveries_that_nobody_ran_are_no_attempts() {
    let env = stream_environment().await;
    publish(&env.jetstream().await, env.subject("a"), "k", 7, None).await;
    let config = pull::Config { durable_name: Some("d".into()), ack_wait: SHORT / 2, ..Default::default() };
    let raw = env.stream().await.create_consumer(config).await.unwrap();
    for delivery in 1..=5 {
        let mut process =
            raw.batch().max_messages(1).expires(Duration::from_secs(5)).messages().await.unwrap();
        let message = process.next().await.expect("a delivery").unwrap();
        assert_eq!(message.info().unwrap().delivered, delivery);
    }
    let inbox = builder(&env).attempts_max(2).build().unwrap();
    let running = Running::start(consumer(&env).await, inbox.clone(), Does::effect());
    eventually("the effect", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    settled(&env).await;
    running.stop().await;
    assert_eq!((inbox.counts().handled, inbox.counts().dead), (1, 0));
}

const KILLER: i64 = 7;

/// One message kills its process whenever it is run, the others need a moment: so they are at work
/// with it.
fn deadly(kills: &Arc<Notify>) -> Does {
    let kills = Arc::clone(kills);
    Does::new(move |cx, job| {
        let kills = Arc::clone(&kills);
        Box::pin(async move {
            if job.n == KILLER {
                kills.notify_one();
                std::future::pending::<()>().await;
            }
            let reply = insert(cx, &job).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(Outcome::done(reply))
        })
    })
}

/// Two deaths show which message it was, and then three alone are enough, however many attempts a
/// handler has that fails: the killer ends as a dead letter, and no other message.
#[tokio::test]
async fn of_a_killer_and_its_neighbours_only_the_killer_is_given_up() {
    for batch in [1, 8] {
        let env = stream_environment().await;
        let jetstream = env.jetstream().await;
        for n in 0..64 {
            publish(&jetstream, env.subject("a"), &format!("k{n}"), n, None).await;
        }
        let kills = Arc::new(Notify::new());
        let mut deaths = 0;
        loop {
            let inbox = builder(&env).attempts_max(20).build().unwrap();
            let limited = consumer(&env).await.ack_wait(SHORT).batch(batch);
            let mut process = Running::start(limited, inbox, deadly(&kills));
            let has_died = eventually("a death or the end", LIMIT, async || {
                let killed = tokio::time::timeout(Duration::from_millis(20), kills.notified()).await.is_ok();
                let ended = count(&env, "oncebox.dead_letter").await > 0 && effects(&env).await == 63;
                (killed || ended).then_some(killed)
            })
            .await;
            if !has_died {
                process.stop().await;
                break;
            }
            process.tasks.shutdown().await;
            deaths += 1;
            assert!(deaths <= 5, "it ends");
        }
        settled(&env).await;
        let keys = env.pg().await.query("SELECT key FROM oncebox.dead_letter", &[]).await.unwrap();
        let keys: Vec<String> = keys.iter().map(|row| row.get(0)).collect();
        assert_eq!((keys, deaths), (vec![format!("k{KILLER}")], 5), "batch {batch}");
        assert!(dead_letters(&env).await[0].contains("left no trace"));
    }
}

/// With the default settings: nothing lengthens the pause after a process that died.
#[tokio::test]
async fn what_a_killed_consumer_held_goes_on_within_ten_seconds() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    for n in 0..64 {
        publish(&jetstream, env.subject("a"), &format!("k{n}"), n, None).await;
    }
    let default = async || Consumer::new(env.jetstream().await, env.name(), "d");
    let hangs = Does::new(|_, _| Box::pin(std::future::pending()));
    for _ in 0..2 {
        let inbox = builder(&env).build().unwrap();
        let runs = hangs.runs();
        let mut process = Running::start(default().await, inbox, hangs.clone());
        eventually("as many run as can", LIMIT, async || (hangs.runs() > runs).then_some(())).await;
        process.tasks.shutdown().await;
    }
    let killed = Instant::now();
    let inbox = builder(&env).build().unwrap();
    let running = Running::start(default().await, inbox.clone(), Does::effect());
    eventually("all effects", LIMIT, async || (effects(&env).await == 64).then_some(())).await;
    let took = killed.elapsed();
    println!("went on after {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    settled(&env).await;
    running.stop().await;
    assert_eq!(inbox.counts().dead, 0);
}

/// The consumer's own line to NATS.
async fn through_proxy(env: &TestEnv, options: async_nats::ConnectOptions) -> (Proxy, Consumer) {
    let url: async_nats::ServerAddr = env.nats_url().parse().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], url.port()).into()).await;
    let client = options.connect(format!("nats://127.0.0.1:{}", proxy.port())).await.unwrap();
    let consumer = Consumer::new(async_nats::jetstream::new(client), env.name(), "d");
    (proxy, consumer.ack_wait(Duration::from_secs(2)))
}

/// Waits for a permit with each message.
fn waits(permits: &Arc<Semaphore>) -> Does {
    let permits = Arc::clone(permits);
    Does::new(move |cx, job| {
        let permits = Arc::clone(&permits);
        Box::pin(async move {
            permits.acquire().await?.forget();
            Ok(Outcome::done(insert(cx, &job).await?))
        })
    })
}

/// The leader loses its connection to PostgreSQL, and with it the lock, while NATS is away and
/// acknowledgements are pending: when both are back it leads again.
#[tokio::test]
async fn a_leader_that_loses_both_servers_together_leads_again() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let permits = Arc::new(Semaphore::new(0));
    let (postgres, pool) = env.pool_through_proxy(8).await;
    let (nats, consumer) = through_proxy(&env, async_nats::ConnectOptions::new()).await;
    let short = Duration::from_millis(50);
    let inbox = oncebox_inbox::Inbox::builder(pool)
        .scope(crate::inbox::support::SCOPE)
        .single_tenant()
        .backoff(short, short)
        .build()
        .unwrap();
    let consuming = || {
        oncebox_inbox::metrics_text([&inbox]).contains("oncebox_inbox_consuming{scope=\"tests:effect\"} 1")
    };
    let handler = waits(&permits);
    let running = Running::start(consumer.order(Order::Strict), inbox.clone(), handler.clone());
    for n in 0..20 {
        publish(&jetstream, env.subject("a"), &format!("k{n}"), n, Some("line")).await;
    }
    eventually("it runs", LIMIT, async || (handler.runs() > 0).then_some(())).await;
    assert!(consuming());
    // In this order, so that the consumer does not look at its lock any more.
    nats.refuse(true);
    nats.cut();
    eventually("it is interrupted", LIMIT, async || (!consuming()).then_some(())).await;
    postgres.refuse(true);
    postgres.cut();
    lock_is_free(&env).await;
    for proxy in [&postgres, &nats] {
        proxy.refuse(false);
    }
    permits.add_permits(1000);
    eventually("all effects", LIMIT, async || (effects(&env).await == 20).then_some(())).await;
    assert!(consuming());
    running.stop().await;
    assert_eq!(lines(&env).await["line"], (0..20).collect::<Vec<i64>>());
}

/// PostgreSQL has noticed that the leader is gone.
async fn lock_is_free(env: &TestEnv) {
    let pg = env.pg().await;
    let sql = "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
               WHERE l.locktype = 'advisory' AND d.datname = current_database()";
    eventually("nobody leads", LIMIT, async || {
        (pg.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
    })
    .await;
}

/// Asks again and again over the same connection.
#[tokio::test]
async fn a_standby_keeps_one_connection() {
    let env = stream_environment().await;
    let strict = async || consumer(&env).await.order(Order::Strict);
    let first = Running::start(strict().await, builder(&env).build().unwrap(), Does::effect());
    eventually("it leads", LIMIT, async || (deliveries_known(&env).await).then_some(())).await;
    let second = Running::start(strict().await, builder(&env).build().unwrap(), Does::effect());
    let pg = env.pg().await;
    let asks = "SELECT pid, query_start::text FROM pg_stat_activity
                WHERE datname = current_database() AND query LIKE '%lead_consumer(%' AND pid <> pg_backend_pid()";
    let mut seen = Vec::new();
    eventually("it asks four times", LIMIT, async || {
        for row in pg.query(asks, &[]).await.unwrap() {
            let look: (i32, String) = (row.get(0), row.get(1));
            if !seen.contains(&look) {
                seen.push(look);
            }
        }
        (seen.len() >= 5).then_some(())
    })
    .await;
    let mut pids: Vec<i32> = seen.iter().map(|(pid, _)| *pid).collect();
    pids.sort_unstable();
    pids.dedup();
    assert!(pids.len() <= 2, "the leader's and the standby's: {seen:?}");
    first.stop().await;
    second.stop().await;
}

async fn deliveries_known(env: &TestEnv) -> bool {
    env.stream().await.consumer_info("d").await.is_ok()
}

/// By bytes, not only by number; and one that is larger than all of it comes alone.
#[tokio::test]
async fn what_is_held_is_bounded_in_bytes() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let send = async |n: i64, bytes: usize| {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Idempotency-Key", format!("k{n}"));
        let payload = format!("{{\"n\":{n},\"ballast\":\"{}\"}}", "x".repeat(bytes));
        let sent = jetstream.publish_with_headers(env.subject("a"), headers, payload.into()).await.unwrap();
        sent.await.unwrap();
    };
    for n in 0..20 {
        send(n, 200 << 10).await;
    }
    // Payload and headers may take 1 MiB together; with its subject this message is larger.
    send(20, (1 << 20) - 80).await;
    for n in 21..24 {
        send(n, 10).await;
    }
    let permits = Arc::new(Semaphore::new(0));
    let handler = waits(&permits);
    let weighed = consumer(&env).await.held_bytes(1 << 20).grace(Duration::MAX);
    let inbox = builder(&env).build().unwrap();
    let running = Running::start(weighed, inbox, handler.clone());
    eventually("as many run as there is room for", LIMIT, async || (handler.runs() >= 3).then_some(())).await;
    let pending = env.stream().await.consumer_info("d").await.unwrap().num_ack_pending;
    assert!((3..=5).contains(&pending), "{pending} of 200 KiB in 1 MiB");
    permits.add_permits(1000);
    eventually("all effects", LIMIT, async || (effects(&env).await == 24).then_some(())).await;
    settled(&env).await;
    running.stop().await;
}

/// A client that is not connected takes no more than its queue holds; a shutdown does not wait for
/// more.
#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_server_that_is_away() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    for n in 0..200 {
        publish(&jetstream, env.subject("a"), &format!("k{n}"), n, None).await;
    }
    let permits = Arc::new(Semaphore::new(0));
    let options = async_nats::ConnectOptions::new().client_capacity(8);
    let (nats, consumer) = through_proxy(&env, options).await;
    let handler = waits(&permits);
    let many = consumer.concurrency(4).batch(50).grace(Duration::from_secs(1));
    let running = Running::start(many, builder(&env).build().unwrap(), handler.clone());
    let all = async || {
        let info = env.stream().await.consumer_info("d").await.ok()?;
        (info.num_ack_pending == 200 && handler.runs() > 0).then_some(())
    };
    eventually("all are held", LIMIT, all).await;
    nats.refuse(true);
    nats.cut();
    let asked = Instant::now();
    running.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
}
