//! Many relays beside one outbox: one is the leader, the others stand by, and when it ends or
//! hangs, the next takes over.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::stream::Stream;
use oncebox_tests::{Postgres, TestEnv, eventually};
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use crate::relay::{
    process::Process,
    support::{
        LIMIT, assert_delivered, await_messages, client, connect, drain, enqueue, stored, values, values_of,
        with,
    },
};

const LEADS: &str = "this relay is the leader";
const STANDS_BY: &str = "another relay is the leader; this one is a standby";
/// About a second, on a machine that is busy with everything else.
const SOON: Duration = LIMIT;

/// Relays that listen: the leaders.
async fn listening(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
               AND application_name = 'oncebox relay' AND query LIKE 'LISTEN%'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// A leader, and a standby.
async fn pair(env: &TestEnv) -> (Process, Process) {
    let first = Process::relay(&values_of(env));
    first.await_log(LEADS).await;
    let second = Process::relay(&values_of(env));
    second.await_log(STANDS_BY).await;
    (first, second)
}

async fn delivered_soon(stream: &Stream, total: usize, what: &str) {
    timeout(SOON, await_messages(stream, total)).await.unwrap_or_else(|_| panic!("{what}: not delivered"));
}

async fn ends(relay: Process) {
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
}

#[tokio::test]
async fn one_is_the_leader_and_the_next_takes_over_when_it_dies() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let (first, second) = pair(&env).await;
    assert_eq!(listening(&client).await, 1, "a wake-up reaches one relay");
    let mut expected = enqueue(&client, &env.subject("a"), "before-", 0..10, 3).await;
    delivered_soon(&stream, 10, "by the first").await;
    assert!(!second.log().contains("this relay helps"), "{}", second.log());
    // The sleep mark is set, for the leader.
    client.execute("SELECT setval('oncebox.relay_asleep', 1)", &[]).await.unwrap();
    first.kill().await;
    expected.extend(enqueue(&client, &env.subject("a"), "after-", 0..10, 3).await);
    delivered_soon(&stream, 20, "by the second").await;
    second.await_log(LEADS).await;
    eventually("it listens", LIMIT, async || (listening(&client).await == 1).then_some(())).await;
    ends(second).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// When a line with this text was logged.
fn logged_at(relay: &Process, text: &str) -> SystemTime {
    let log = relay.log();
    let line = log.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("no {text}: {log}"));
    humantime::parse_rfc3339(line.split(' ').next().unwrap()).unwrap()
}

/// Until it listens, a message that is committed while it rests waits for its next look.
#[tokio::test]
async fn a_relay_that_has_just_started_does_not_wait_to_lead() {
    // The shortest pause between two attempts to be the leader.
    const PAUSE_MIN: Duration = Duration::from_millis(400);
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let relay = Process::relay(&values_of(&env));
        relay.await_log(LEADS).await;
        let running_at = logged_at(&relay, "relay is running");
        let waited = logged_at(&relay, LEADS).duration_since(running_at).unwrap_or_default();
        shortest = shortest.min(waited);
        relay.kill().await;
        eventually("there is no leader", LIMIT, async || (listening(&client).await == 0).then_some(())).await;
    }
    assert!(shortest < PAUSE_MIN, "{shortest:?}");
}

#[tokio::test]
async fn a_standby_helps_while_the_leader_is_suspended() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let (first, second) = pair(&env).await;
    first.signal("STOP").await;
    let mut expected = Vec::new();
    for round in 0..3 {
        // Neither the mark nor the wake-up reaches a relay.
        client.execute("SELECT setval('oncebox.relay_asleep', 1)", &[]).await.unwrap();
        expected.extend(enqueue(&client, &env.subject("a"), "m-", round..round + 1, 0).await);
        delivered_soon(&stream, expected.len(), "by the second").await;
    }
    assert!(second.log().contains("this relay helps"), "{}", second.log());
    assert!(!second.log().contains(LEADS), "{}", second.log());
    first.signal("CONT").await;
    expected.extend(enqueue(&client, &env.subject("a"), "late-", 0..100, 10).await);
    delivered_soon(&stream, expected.len(), "by either").await;
    ends(first).await;
    ends(second).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn of_twenty_relays_half_are_killed_and_nothing_is_lost() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let server = Postgres::start_with(&[("max_connections", "300")]).await.unwrap();
    let url = server.url("postgres");
    let mut migrating = client(&url).await;
    oncebox_schema::migrate(&mut migrating, &"oncebox".parse().unwrap(), oncebox_schema::Lanes::default())
        .await
        .unwrap();
    let values = with(&values(&url, env.nats_url()), [("workers", "2")]);
    let mut relays: Vec<Process> = (0..20).map(|_| Process::relay(&values)).collect();
    let mut expected = Vec::new();
    for round in 0..20 {
        expected
            .extend(enqueue(&**migrating, &env.subject("a"), "m-", round * 100..(round + 1) * 100, 20).await);
        if round % 2 == 1 {
            // The oldest: it is the leader before the others.
            relays.remove(0).kill().await;
        }
        sleep(Duration::from_millis(50)).await;
    }
    await_messages(&stream, expected.len()).await;
    for relay in &relays {
        relay.signal("TERM").await;
    }
    for relay in relays {
        assert_eq!(relay.ended().await.0.code(), Some(0));
    }
    assert_eq!(drain(&mut connect(&values).await.worker()).await, 0, "all settled");
    assert_delivered(&stored(&stream).await, &expected);
}

/// The clock of a server may be set back after a relay has written its row: that is one of the next
/// moment then.
#[tokio::test]
async fn relays_of_one_database_know_each_other_when_its_clock_was_set_back() {
    let env = TestEnv::new().await;
    env.stream().await;
    let ahead = "CREATE FUNCTION ahead() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                   NEW.seen_at := NEW.seen_at + interval '10 seconds'; RETURN NEW; END $$;
                 CREATE TRIGGER ahead BEFORE INSERT OR UPDATE ON oncebox.relay FOR EACH ROW EXECUTE FUNCTION ahead()";
    env.pg().await.batch_execute(ahead).await.unwrap();
    let (first, second) = pair(&env).await;
    sleep(Duration::from_secs(3)).await;
    for relay in [first, second] {
        assert!(!relay.log().contains("another relay serves"), "{}", relay.log());
        relay.kill().await;
    }
}
