//! `sleep_after`: with nothing due a relay has no connection to its database, and comes back by a
//! hint, at its time, and before the next message is due.

use std::time::Duration;

use async_nats::jetstream::{self, stream::Stream};
use oncebox_relay::{Config, Values};
use oncebox_tests::{Nats, TestEnv, eventually};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, get, run},
    support::{
        LIMIT, Running, assert_delivered, await_messages, count, enqueue, stored, stream_config, values,
        values_of, with,
    },
};

pub(crate) const AFTER: [(&str, &str); 1] = [("sleep-after", "1s")];
/// Far less than [`LONG`], and more than a busy machine needs.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Rounds of a test that measures.
const ROUNDS: i32 = 3;

/// A relay of this process that sleeps after a second, for `at_most`.
pub(crate) fn relay(values: &Values, at_most: Duration) -> Running {
    let mut config = Config::from_values(&with(values, AFTER)).unwrap();
    config.sleep_at_most = at_most;
    Running::start_with(config)
}

pub(crate) const LONG: Duration = Duration::from_secs(900);

pub(crate) async fn sessions(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name = 'oncebox relay'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

pub(crate) async fn await_asleep(client: &Client) {
    let asleep = "SELECT count(*) > 0 FROM oncebox.relay WHERE seen_at > clock_timestamp()";
    eventually("it sleeps", LIMIT, async || {
        let is_noted: bool = client.query_one(asleep, &[]).await.unwrap().get(0);
        (is_noted && sessions(client).await == 0).then_some(())
    })
    .await;
}

/// One core publish, which any client can send after its commit.
async fn hint(env: &TestEnv, nats: &async_nats::Client) {
    let row = env.pg().await.query_one("SELECT current_database()::text", &[]).await.unwrap();
    let subject = format!("_ONCEBOX.wake.{}.oncebox", row.get::<_, &str>(0).replace('.', "%2E"));
    nats.publish(subject, "".into()).await.unwrap();
    nats.flush().await.unwrap();
}

async fn enqueue_one(env: &TestEnv, client: &Client, number: i32) -> Vec<String> {
    enqueue(client, &env.subject("a"), "m-", number..number + 1, 0).await
}

pub(crate) async fn arrives(stream: &Stream, messages: i32, limit: Duration) -> Duration {
    let begun = Instant::now();
    let arrived = timeout(limit, await_messages(stream, usize::try_from(messages).unwrap()));
    arrived.await.unwrap_or_else(|_| panic!("message {messages} within {limit:?}"));
    begun.elapsed()
}

#[tokio::test]
async fn it_has_no_session_and_a_hint_wakes_it() {
    let env = TestEnv::new().await;
    let (stream, client, nats) = (env.stream().await, env.pg().await, env.nats().await);
    let relay = relay(&values_of(&env), LONG);
    enqueue_one(&env, &client, 0).await;
    await_messages(&stream, 1).await;
    let mut took = Vec::new();
    for number in 1..=ROUNDS {
        await_asleep(&client).await;
        enqueue_one(&env, &client, number).await;
        sleep(Duration::from_millis(700)).await;
        assert_eq!((sessions(&client).await, count(&stream).await), (0, usize::try_from(number).unwrap()));
        hint(&env, &nats).await;
        took.push(arrives(&stream, number + 1, SOON).await);
    }
    took.sort();
    println!("after a hint: median {:?}, longest {:?}", took[took.len() / 2], took[took.len() - 1]);
    relay.stop().await;
}

#[tokio::test]
async fn without_a_hint_it_wakes_at_its_time() {
    let env = TestEnv::new().await;
    let (stream, client) = (env.stream().await, env.pg().await);
    let relay = relay(&values_of(&env), Duration::from_secs(3));
    for number in 0..ROUNDS {
        await_asleep(&client).await;
        enqueue_one(&env, &client, number).await;
        let took = arrives(&stream, number + 1, SOON).await;
        println!("without a hint: {took:?}");
    }
    relay.stop().await;
}

#[tokio::test]
async fn a_delayed_message_is_sent_on_time() {
    let env = TestEnv::new().await;
    let (stream, client) = (env.stream().await, env.pg().await);
    let relay = relay(&values_of(&env), LONG);
    let begun = Instant::now();
    let delayed = "SELECT oncebox.enqueue_at('later', $1, '', clock_timestamp() + interval '12 seconds')";
    client.execute(delayed, &[&env.subject("a")]).await.unwrap();
    await_asleep(&client).await;
    arrives(&stream, 1, 2 * SOON).await;
    let took = begun.elapsed();
    assert!((Duration::from_secs(12)..2 * SOON).contains(&took), "{took:?}");
    relay.stop().await;
}

/// It would be found at the end of the sleep only.
#[tokio::test]
async fn it_stays_awake_while_a_transaction_that_has_enqueued_is_open() {
    let env = TestEnv::new().await;
    let (stream, client, mut producer) = (env.stream().await, env.pg().await, env.pg().await);
    let open = producer.transaction().await.unwrap();
    enqueue(&open, &env.subject("a"), "m-", 0..1, 0).await;
    let relay = relay(&values_of(&env), LONG);
    eventually("it works", LIMIT, async || (sessions(&client).await > 0).then_some(())).await;
    for _ in 0..20 {
        sleep(Duration::from_millis(200)).await;
        assert!(sessions(&client).await > 0, "it is awake");
    }
    open.commit().await.unwrap();
    arrives(&stream, 1, SOON).await;
    await_asleep(&client).await;
    relay.stop().await;
}

#[tokio::test]
async fn status_and_probes_know_that_it_sleeps_and_a_signal_ends_it_at_once() {
    let env = TestEnv::new().await;
    let (stream, client) = (env.stream().await, env.pg().await);
    let values = with(&with(&values_of(&env), AFTER), [("http-listen", "127.0.0.1:0")]);
    let relay = Process::relay(&values);
    enqueue_one(&env, &client, 0).await;
    await_messages(&stream, 1).await;
    await_asleep(&client).await;
    let address = oncebox_tests::http_address(&relay.log()).unwrap();
    for path in ["/livez", "/readyz"] {
        assert_eq!(get(address, path).await.0, 200, "{path}");
    }
    let metrics = get(address, "/metrics").await.1;
    for line in [
        "oncebox_asleep 1\n",
        "oncebox_serving 1\n",
        "oncebox_nats_connected 1\n",
        "oncebox_lag_seconds 0.0\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert_eq!(sessions(&client).await, 0, "a scrape does not wake it");
    enqueue_one(&env, &client, 1).await;
    let (code, status, _) = run(env.database_url(), &["status"]).await;
    assert_eq!(code, 0, "{status}");
    assert!(status.contains("1 asleep until ") && status.contains("nats pub _ONCEBOX.wake."), "{status}");
    assert!(!status.contains("no relay is connected"), "{status}");
    let begun = Instant::now();
    relay.signal("TERM").await;
    let (ended, log) = relay.ended().await;
    assert!(ended.success() && begun.elapsed() < SOON, "{:?}: {log}", begun.elapsed());
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");

    // It has not come back in its time.
    client
        .execute("UPDATE oncebox.relay SET seen_at = clock_timestamp() - interval '1 s'", &[])
        .await
        .unwrap();
    let (code, status, _) = run(env.database_url(), &["status"]).await;
    assert!(code != 0 && status.contains("no relay is connected"), "{code}: {status}");
}

#[tokio::test]
async fn one_that_is_killed_in_its_sleep_is_replaced() {
    let env = TestEnv::new().await;
    let (stream, client) = (env.stream().await, env.pg().await);
    let values = with(&values_of(&env), AFTER);
    let killed = Process::relay(&values);
    await_asleep(&client).await;
    killed.kill().await;
    let keys = enqueue_one(&env, &client, 0).await;
    let next = Process::relay(&values);
    await_messages(&stream, 1).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
    next.signal("TERM").await;
    assert!(next.ended().await.0.success());
}

#[tokio::test]
async fn two_relays_sleep_and_one_hint_wakes_both_and_nothing_is_sent_twice() {
    let env = TestEnv::new().await;
    let (stream, client, nats) = (env.stream().await, env.pg().await, env.nats().await);
    let values = with(&values_of(&env), AFTER);
    let relays = [Process::relay(&values), Process::relay(&values)];
    let mut keys = Vec::new();
    for round in 0..2 {
        for relay in &relays {
            let slept = || relay.log().matches("the relay sleeps").count() > round;
            eventually("both sleep", LIMIT, async || slept().then_some(())).await;
        }
        eventually("no session", LIMIT, async || (sessions(&client).await == 0).then_some(())).await;
        let from = i32::try_from(round).unwrap() * 100;
        keys.extend(enqueue(&client, &env.subject("a"), "m-", from..from + 100, 7).await);
        hint(&env, &nats).await;
        await_messages(&stream, keys.len()).await;
        for relay in &relays {
            let woken = || relay.log().matches("the relay wakes").count() > round;
            eventually("both wake", LIMIT, async || woken().then_some(())).await;
        }
    }
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
    for relay in relays {
        relay.signal("TERM").await;
        assert!(relay.ended().await.0.success());
    }
}

/// A copy of the database may ask. Only the original can say that it is one.
#[tokio::test]
async fn a_relay_that_asks_who_serves_the_outbox_wakes_it() {
    let env = TestEnv::new().await;
    let (client, nats) = (env.pg().await, env.nats().await);
    let relay = relay(&values_of(&env), LONG);
    await_asleep(&client).await;
    let row = client.query_one("SELECT token FROM oncebox.home", &[]).await.unwrap();
    let subject = format!("_ONCEBOX.home.{}", row.get::<_, String>(0));
    let ask = async || {
        let question = "home1 who 00000000-0000-4000-8000-000000000000 1 1 elsewhere:5432/copy";
        let answer = timeout(LIMIT, nats.request(subject.clone(), question.into())).await.unwrap();
        String::from_utf8(answer.map(|answer| answer.payload.to_vec()).unwrap_or_default()).unwrap()
    };
    let first = ask().await;
    assert!(first.starts_with("home1 busy "), "{first:?}");
    eventually("the original answers", LIMIT, async || ask().await.starts_with("home1 other ").then_some(()))
        .await;
    relay.stop().await;
}

#[tokio::test]
async fn without_the_permission_it_warns_once_and_wakes_at_its_time() {
    let env = TestEnv::new().await;
    let permissions = r#"subscribe: { deny: ["_ONCEBOX.wake.>"] }"#;
    let users = format!(
        "authorization {{ users = [ {{ user: relay, password: r, permissions = {{ {permissions} }} }} ] }}"
    );
    let server = Nats::start_with(&users).await.unwrap();
    let options = async_nats::ConnectOptions::new().user_and_password("relay".into(), "r".into());
    let context = jetstream::new(options.connect(server.url()).await.unwrap());
    let stream = context.create_stream(stream_config("S", &env.subject(">"))).await.unwrap();
    let login = [("nats-user", "relay"), ("nats-password", "r")];
    let client = env.pg().await;
    let (log, _guard) = oncebox_tests::Log::of_this_thread();
    let relay = relay(&with(&values(env.database_url(), &server.url()), login), Duration::from_secs(2));
    for number in 0..2 {
        await_asleep(&client).await;
        enqueue_one(&env, &client, number).await;
        arrives(&stream, number + 1, SOON).await;
    }
    assert_eq!((log.count("WARN"), log.count("no hint wakes the relay")), (1, 1), "{}", log.text());
    relay.stop().await;
}
