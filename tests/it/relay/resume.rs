//! How soon a relay goes on when a server has come back.

use std::time::Duration;

use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::time::{Instant, sleep};

use crate::relay::{
    process::Process,
    support::{LIMIT, await_messages, client, count, enqueue, through_proxy, values_of, with},
};

/// One second is promised, and this machine may be busy. A worker with a pause of its own would
/// take longer in every round.
const SOON: Duration = Duration::from_millis(1_800);
const ROUNDS: usize = 3;
/// Broken passes in a row. With a pause that doubles after each, the worker would wait for at least
/// 2.5 s.
const BREAKS: usize = 8;
const AWAY_SECONDS: u32 = 12;

#[tokio::test]
async fn after_many_broken_passes_in_a_row_delivery_goes_on_within_a_second() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (proxy, url) = through_proxy(env.nats_url()).await;
    let relay = Process::relay(&with(&values_of(&env), [("nats-url", &*url), ("workers", "1")]));
    relay.await_log("relay is running").await;
    let (mut pauses, mut sent) = (Vec::new(), 0);
    for round in 0..ROUNDS {
        proxy.cut_when_client_sends(b"HPUB", false);
        sent += enqueue(&env.pg().await, &env.subject("a"), &format!("{round}-"), 0..500, 1).await.len();
        for _ in 1..BREAKS {
            eventually("a pass is broken", LIMIT, async || (!proxy.is_armed()).then_some(())).await;
            proxy.cut_when_client_sends(b"HPUB", false);
        }
        eventually("a pass is broken", LIMIT, async || (!proxy.is_armed()).then_some(())).await;
        let (began, before) = (Instant::now(), count(&stream).await);
        eventually("it goes on", LIMIT, async || (count(&stream).await > before).then_some(())).await;
        pauses.push(began.elapsed());
        await_messages(&stream, sent).await;
    }
    println!("{pauses:?}");
    assert!(pauses.iter().any(|pause| *pause < SOON), "{pauses:?}");
}

/// A relay with one worker makes no more connections in a second while PostgreSQL is away, with
/// those of its maintenance, its mover of delayed messages and its listener.
const CONNECTIONS_MAX: f64 = 10.0;

/// How many passes of one worker PostgreSQL failed within AWAY_SECONDS after `trouble` began.
async fn looks(env: &TestEnv, trouble: impl AsyncFnOnce(&Proxy)) -> f64 {
    let (proxy, url) = through_proxy(env.database_url()).await;
    let changes = [("database-url", &*url), ("workers", "1"), ("http-listen", "127.0.0.1:0")];
    let relay = Process::relay(&with(&values_of(env), changes));
    relay.await_log("relay is running").await;
    trouble(&proxy).await;
    let before = proxy.connections();
    sleep(Duration::from_secs(AWAY_SECONDS.into())).await;
    let connections = u32::try_from(proxy.connections() - before).map_or(f64::INFINITY, f64::from);
    let most = CONNECTIONS_MAX * f64::from(AWAY_SECONDS);
    assert!(connections <= most, "{connections} connections in {AWAY_SECONDS} s");
    relay.metric("oncebox_postgres_errors_total").await
}

#[tokio::test]
async fn while_postgres_is_away_it_is_looked_for_at_least_once_a_second() {
    let away = async |proxy: &Proxy| {
        proxy.refuse(true);
        proxy.cut();
    };
    let looks = looks(&TestEnv::new().await, away).await;
    assert!(looks >= AWAY_SECONDS.into(), "{looks} in {AWAY_SECONDS} s");
}

/// PostgreSQL may write a log line for each refused login.
#[tokio::test]
async fn a_login_that_postgres_refuses_is_tried_ever_more_rarely() {
    let env = TestEnv::new().await;
    let admin = env.pg().await;
    let database: String = admin.query_one("SELECT current_database()", &[]).await.unwrap().get(0);
    let (server, _) = env.database_url().rsplit_once('/').expect("a URL with a database");
    let others = client(&format!("{server}/postgres")).await;
    let refused = async |proxy: &Proxy| {
        let sql = format!("ALTER DATABASE \"{database}\" ALLOW_CONNECTIONS false");
        others.batch_execute(&sql).await.unwrap();
        proxy.cut();
    };
    let looks = looks(&env, refused).await;
    let sql = format!("ALTER DATABASE \"{database}\" ALLOW_CONNECTIONS true");
    others.batch_execute(&sql).await.unwrap();
    assert!((3.0..AWAY_SECONDS.into()).contains(&looks), "{looks} in {AWAY_SECONDS} s");
}
