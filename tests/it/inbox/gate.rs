//! The gate in a real Redis: it turns copies away, and nothing depends on it. Which test holds
//! which rule (R) and trap (X):

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use oncebox_inbox::{Builder, Gate, Inbox, Outcome, Verdict};
use oncebox_tests::{Log, Redis, TestEnv, eventually};
use redis::aio::MultiplexedConnection;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tracing::instrument::WithSubscriber;

use crate::inbox::support::{
    Does, LIMIT, builder, count, effects, environment, insert, message, transactions,
};

const TTL: Duration = Duration::from_millis(600);

async fn redis() -> Redis {
    Redis::start().await.unwrap()
}

fn gate(redis: &Redis) -> Gate {
    Gate::new(&redis.url()).unwrap().ttl(TTL).timeout(TTL / 3)
}

fn gated(env: &TestEnv, redis: &Redis) -> Inbox {
    builder(env).gate(gate(redis)).build().unwrap()
}

async fn client(redis: &Redis) -> MultiplexedConnection {
    redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// The keys in Redis with their values.
async fn held(redis: &Redis) -> Vec<(String, String)> {
    let mut client = client(redis).await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut client).await.unwrap();
    let mut held = Vec::new();
    for key in keys {
        let value: Option<String> = redis::cmd("GET").arg(&key).query_async(&mut client).await.unwrap();
        held.extend(value.map(|value| (key, value)));
    }
    held
}

/// A handler that has made its effect and waits for a permit.
fn waiting() -> (Does, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let handler = Does::new({
        let permits = Arc::clone(&permits);
        move |cx, job| {
            let permits = Arc::clone(&permits);
            Box::pin(async move {
                let reply = insert(cx, &job).await?;
                permits.acquire().await?.forget();
                Ok(Outcome::done(reply))
            })
        }
    });
    (handler, permits)
}

/// Runs a message in the background.
fn start(inbox: &Inbox, handler: &Does, key: &'static str) -> JoinSet<Verdict<String>> {
    let mut running = JoinSet::new();
    let (inbox, handler) = (inbox.clone(), handler.clone());
    running.spawn(async move { inbox.run(&handler, &message(key, 7)).await.unwrap() });
    running
}

async fn runs(handler: &Does, count: u64) {
    eventually("the handler runs", LIMIT, async || (handler.runs() == count).then_some(())).await;
}

/// A thousand copies while one is worked on. PostgreSQL is asked once for each whether there is an
/// outcome, but for no transaction and no lock; the pool has two connections.
#[tokio::test]
async fn copies_are_turned_away_at_the_gate_without_postgresql() {
    let (env, redis) = (environment().await, redis().await);
    let before = transactions(&env).await;
    // Slow to doubt: this is not about a gate that opens by itself, nor about a Redis that is away.
    let gate = Gate::new(&redis.url()).unwrap().timeout(Duration::from_secs(3));
    let pool = env.pool(2);
    let inbox = Inbox::builder(pool.clone()).scope("s").single_tenant().gate(gate).build().unwrap();
    let (handler, permits) = waiting();
    let mut first = start(&inbox, &handler, "k");
    runs(&handler, 1).await;
    let copy = async |_| inbox.run(&handler, &message("k", 7)).await.unwrap();
    let copies = stream::iter(0..1_000).map(copy).buffer_unordered(20).collect::<Vec<_>>();
    for verdict in timeout(LIMIT, copies).await.unwrap() {
        assert_eq!(verdict, Verdict::InFlight);
    }
    permits.add_permits(1);
    assert!(matches!(first.join_next().await.unwrap().unwrap(), Verdict::Handled(_)));
    assert!(held(&redis).await.is_empty(), "the gate is open again");
    let again = inbox.run(&handler, &message("k", 7)).await.unwrap();
    assert!(matches!(again, Verdict::Replayed(_)), "{again:?}");
    assert_eq!((handler.runs(), effects(&env).await, inbox.counts().in_flight), (1, 1, 1000));
    // A look is a transaction of its own; a claim that was lost is rolled back.
    pool.close();
    let after = transactions(&env).await;
    let (looks, lost) = (after.0 - before.0, after.1 - before.1);
    assert!(looks >= 1000 && lost < 100, "{looks} looks, {lost} lost claims");
}

/// It died after its commit, and before it opened the gate; or before, and the key stays in flight
/// until the TTL ends.
#[tokio::test]
async fn a_gate_that_a_dead_process_left_closed_hides_no_outcome() {
    let (env, redis) = (environment().await, redis().await);
    let inbox = gated(&env, &redis);
    let (handler, permits) = waiting();
    let mut dies = start(&inbox, &handler, "k");
    runs(&handler, 1).await;
    dies.shutdown().await;
    assert_eq!(held(&redis).await.len(), 1);
    let begun = Instant::now();
    assert_eq!(inbox.run(&handler, &message("k", 7)).await.unwrap(), Verdict::InFlight);
    permits.add_permits(9);
    eventually("the TTL ends", LIMIT, async || {
        let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
        matches!(verdict, Verdict::Handled(_)).then_some(())
    })
    .await;
    assert!(begun.elapsed() < TTL * 4, "{:?}", begun.elapsed());

    let name = gate_of(&inbox, &redis, "stored").await;
    let mut client = client(&redis).await;
    redis::cmd("SET").arg(&name).arg("somebody").exec_async(&mut client).await.unwrap();
    let verdict = inbox.run(&handler, &message("stored", 7)).await.unwrap();
    assert!(
        matches!(verdict, Verdict::Replayed(_)),
        "at once, though the gate is closed for good: {verdict:?}"
    );
    let other = inbox.run(&handler, &message("stored", 8)).await.unwrap();
    assert_eq!(other, Verdict::Mismatch);
    assert_eq!(effects(&env).await, 2);
}

/// Handles a message, and tells the name of its gate.
async fn gate_of(inbox: &Inbox, redis: &Redis, key: &'static str) -> String {
    let (handler, permits) = waiting();
    let mut running = start(inbox, &handler, key);
    runs(&handler, 1).await;
    let name = held(redis).await.remove(0).0;
    permits.add_permits(1);
    running.join_next().await.unwrap().unwrap();
    name
}

/// Redis forgot, or a pause outlasted the TTL.
#[tokio::test]
async fn whoever_slips_through_the_gate_is_turned_away_by_postgresql() {
    let (env, redis) = (environment().await, redis().await);
    let inbox = gated(&env, &redis);
    let (handler, permits) = waiting();
    let mut first = start(&inbox, &handler, "k");
    runs(&handler, 1).await;
    redis::cmd("FLUSHALL").exec_async(&mut client(&redis).await).await.unwrap();
    assert_eq!(inbox.run(&handler, &message("k", 7)).await.unwrap(), Verdict::InFlight);
    assert_eq!(handler.runs(), 1);
    permits.add_permits(1);
    assert!(matches!(first.join_next().await.unwrap().unwrap(), Verdict::Handled(_)));
    assert_eq!(effects(&env).await, 1);
}

/// Compare and delete, when it leaves and when it renews.
#[tokio::test]
async fn only_its_holder_opens_the_gate() {
    let (env, redis) = (environment().await, redis().await);
    let inbox = gated(&env, &redis);
    let (handler, permits) = waiting();
    let mut first = start(&inbox, &handler, "k");
    runs(&handler, 1).await;
    let (name, token) = held(&redis).await.remove(0);
    assert!(name.starts_with("oncebox:gate:") && token.len() == 36, "{name} {token}");
    let mut client = client(&redis).await;
    redis::cmd("SET").arg(&name).arg("somebody").arg("PX").arg(5000).exec_async(&mut client).await.unwrap();
    sleep(TTL).await;
    let left: i64 = redis::cmd("PTTL").arg(&name).query_async(&mut client).await.unwrap();
    assert!((3000..4800).contains(&left), "nobody else renews it: {left}");
    permits.add_permits(1);
    let verdict = first.join_next().await.unwrap().unwrap();
    assert!(matches!(verdict, Verdict::Handled(_)), "the gate changes nothing about a commit: {verdict:?}");
    assert_eq!(held(&redis).await, [(name, "somebody".to_owned())]);
}

/// Renewed at a third of its time, as long as the handler runs and no longer.
#[tokio::test]
async fn a_handler_longer_than_the_ttl_keeps_the_gate_closed() {
    let (env, redis) = (environment().await, redis().await);
    let inbox = gated(&env, &redis);
    let (handler, permits) = waiting();
    let mut first = start(&inbox, &handler, "k");
    runs(&handler, 1).await;
    let before = held(&redis).await;
    let end = Instant::now() + TTL * 4;
    while Instant::now() < end {
        assert_eq!(held(&redis).await, before);
        sleep(TTL / 10).await;
    }
    permits.add_permits(1);
    assert!(matches!(first.join_next().await.unwrap().unwrap(), Verdict::Handled(_)));
    assert!(held(&redis).await.is_empty());
}

/// Away from the start, killed, hanging, and back each time: one WARN when it goes, one INFO when
/// it comes.
#[tokio::test]
async fn without_redis_messages_go_on_and_it_is_said_once() {
    let (env, mut redis) = (environment().await, redis().await);
    redis.kill().await;
    let inbox = gated(&env, &redis);
    let log = Log::default();
    async {
        let handler = Does::effect();
        let mut number = 0;
        for away in 1..=3 {
            for _ in 0..10 {
                number += 1;
                let begun = Instant::now();
                let verdict = inbox.run(&handler, &message(&format!("k{number}"), 7)).await.unwrap();
                assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
                assert!(begun.elapsed() < TTL * 3, "waits are bounded: {:?}", begun.elapsed());
                let copy = inbox.run(&handler, &message(&format!("k{number}"), 7)).await.unwrap();
                assert!(matches!(copy, Verdict::Replayed(_)), "{copy:?}");
            }
            assert_eq!(log.count("WARN"), away, "said once, however many messages");
            match away {
                3 => redis.suspend(false),
                _ => redis.restart().await.unwrap(),
            }
            eventually("the gate is back", LIMIT, async || {
                number += 1;
                let verdict = inbox.run(&handler, &message(&format!("k{number}"), 7)).await.unwrap();
                assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
                (log.count("INFO") == away).then_some(())
            })
            .await;
            match away {
                1 => redis.kill().await,
                2 => redis.suspend(true),
                _ => {}
            }
        }
        assert_eq!(handler.runs(), number);
        assert_eq!(effects(&env).await, i64::try_from(number).unwrap());
    }
    .with_subscriber(log.subscriber())
    .await;
    assert_eq!(count(&env, "oncebox.dead_letter").await, 0);
    assert_eq!((log.count("messages go on without it"), log.count("is back")), (3, 3));
}

/// Messages without an identity have no gate, and end as without one; all mistakes are told
/// together.
#[tokio::test]
async fn a_gate_changes_nothing_for_poison_and_takes_no_nonsense() {
    let (env, redis) = (environment().await, redis().await);
    let inbox = gated(&env, &redis);
    let poison = oncebox_inbox::Received::new("s.t", "{\"n\":7}");
    let verdict = inbox.run(&Does::effect(), &poison).await.unwrap();
    assert!(matches!(verdict, Verdict::Dead { .. }), "{verdict:?}");
    assert!(held(&redis).await.is_empty());
    let nonsense: Builder = builder(&env).gate(gate(&redis).ttl(Duration::ZERO)).attempts_max(0);
    let error = nonsense.build().unwrap_err().to_string();
    assert!(error.contains("gate's ttl") && error.contains("attempts_max"), "{error}");
}
