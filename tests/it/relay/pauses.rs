//! Operators pause and throttle messages, while relays die and come back.

use std::time::Duration;

use async_nats::jetstream::{consumer::pull::OrderedConfig, stream::Stream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use oncebox_tests::{Nats, TestEnv, eventually};
use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::relay::{
    process::{Process, run, run_ok},
    support::{
        LIMIT, Running, assert_delivered, await_messages, count, enqueue, fresh_stream, stored,
        stream_config, values, values_of,
    },
};

/// Far longer than a pass takes.
const MOMENT: Duration = Duration::from_millis(1_500);

async fn pause(env: &TestEnv, arguments: &[&str]) -> String {
    run_ok(env.database_url(), &[&["outbox"], arguments].concat()).await
}

/// A planned pause is no alarm, however few messages it holds, and with any pattern.
#[tokio::test]
async fn paused_messages_count_as_no_lag() {
    let env = TestEnv::new().await;
    let (client, values) = (env.pg().await, values_of(&env));
    env.stream().await;
    let relay = Process::relay(&values);
    let (paused, free) = (env.subject("a.paused"), env.subject("free"));
    let pattern = env.subject("*.paused");
    pause(&env, &["pause", "--subject", &pattern, "--unseen"]).await;
    for n in 0..60 {
        enqueue(&client, &paused, "p-", n..n + 1, 0).await;
    }
    let waits = "SELECT count(*) - (SELECT count(*) FROM oncebox.parked) FROM oncebox.message";
    assert!(client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0, "some wait in the log");
    sleep(Duration::from_secs(4)).await;
    let lag = async || {
        let status: Value =
            serde_json::from_str(&run(env.database_url(), &["status", "--json"]).await.1).unwrap();
        status["lag_seconds"].as_f64().unwrap()
    };
    assert!(lag().await < 1.0, "{}", lag().await);
    relay.kill().await;
    // Every lane begins with a paused message, and no relay sets it aside.
    enqueue(&client, &paused, "q-", 0..200, 0).await;
    enqueue(&client, &free, "f-", 0..32, 0).await;
    sleep(Duration::from_secs(2)).await;
    assert!(lag().await >= 1.0, "others count");
}

/// Two operators have one thought.
#[tokio::test]
async fn pauses_of_the_same_messages_at_once_follow_each_other() {
    let env = TestEnv::new().await;
    let (first, second, watcher) = (env.pg().await, env.pg().await, env.pg().await);
    let pause =
        "SELECT oncebox.pause_delivery('subject', 'a.b', $1, '{a.b}', NULL, 'mina', NULL, NULL, NULL)";
    first.batch_execute("BEGIN").await.unwrap();
    first.execute(pause, &[&None::<f64>]).await.unwrap();
    let mut throttled = JoinSet::new();
    throttled.spawn(async move { second.execute(pause, &[&Some(5.0)]).await });
    eventually("it waits", LIMIT, async || {
        let waiting =
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%pause_delivery%'";
        watcher.query_opt(waiting, &[]).await.unwrap().map(drop)
    })
    .await;
    first.batch_execute("COMMIT").await.unwrap();
    assert_eq!(throttled.join_next().await.unwrap().unwrap().unwrap(), 1);
    let rate: f64 = first.query_one("SELECT rate FROM oncebox.pause", &[]).await.unwrap().get(0);
    assert!((rate - 5.0).abs() < 0.1, "the later one holds: {rate}");
}

#[tokio::test]
async fn a_paused_subject_waits_in_order_through_kills_of_all_relays_and_others_go_on() {
    let env = TestEnv::new().await;
    let (stream, values) = (env.stream().await, values_of(&env));
    let client = env.pg().await;
    let (paused, free) = (env.subject("paused"), env.subject("free"));
    let mut relays = [Process::relay(&values), Process::relay(&values)];
    let mut keys = enqueue(&client, &paused, "p-", 0..10, 3).await;
    await_messages(&stream, 10).await;
    let said = pause(&env, &["pause", "--subject", &paused, "--by", "mina", "--note", "INC-7"]).await;
    assert_eq!(said, format!("paused subject {paused}\n"));
    let listed = pause(&env, &["pauses"]).await;
    assert!(listed.contains("mina") && listed.contains("INC-7"), "{listed}");
    let status = run_ok(env.database_url(), &["status"]).await;
    let finding = format!(
        "- subject {paused}: paused by mina: INC-7\n    when it is time, `oncebox outbox resume --subject '{paused}'`"
    );
    assert!(status.contains(&finding), "{status}");
    let mut delivered = 10;
    for round in 1..4 {
        keys.extend(enqueue(&client, &paused, "p-", 10 * round..10 * round + 10, 3).await);
        keys.extend(enqueue(&client, &free, "f-", 10 * round..10 * round + 10, 3).await);
        delivered += 10;
        await_messages(&stream, delivered).await;
        for relay in relays {
            relay.kill().await;
        }
        relays = [Process::relay(&values), Process::relay(&values)];
    }
    sleep(MOMENT).await;
    let sent = stored(&stream).await;
    assert_eq!(sent.len(), delivered, "the paused ones wait");
    assert_eq!(pause(&env, &["resume", "--subject", &paused]).await, format!("resumed subject {paused}\n"));
    await_messages(&stream, keys.len()).await;
    assert_delivered(&stored(&stream).await, &keys);
    let audit =
        "SELECT string_agg(concat_ws(' ', action, operator, note), ', ' ORDER BY id) FROM oncebox.audit";
    let audit: String = client.query_one(audit, &[]).await.unwrap().get(0);
    assert_eq!(audit, "pause mina INC-7, resume");
    assert_eq!(pause(&env, &["pauses"]).await.lines().count(), 1, "only the heads");
}

#[tokio::test]
async fn of_one_subject_only_the_paused_ordering_key_waits_and_by_itself_goes_on() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let subject = env.subject("a");
    let relay = Running::start(&values_of(&env));
    let said = pause(&env, &["pause", "--ordering-key", "k-key0", "--for", "6s"]).await;
    assert!(said.contains(" until 2"), "{said}");
    let keys = enqueue(&client, &subject, "k-", 0..400, 4).await;
    await_messages(&stream, 300).await;
    assert!(stored(&stream).await.iter().all(|message| message.ordering_key.as_deref() != Some("k-key0")));
    await_messages(&stream, keys.len()).await;
    relay.stop().await;
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
}

#[tokio::test]
async fn all_messages_and_those_of_a_stream_wait_too() {
    let env = TestEnv::new().await;
    let nats = Nats::start().await.unwrap();
    let orders = fresh_stream(&nats.url(), stream_config("ORDERS", "orders.>")).await;
    let mails = fresh_stream(&nats.url(), stream_config("MAILS", "mails.>")).await;
    let client = env.pg().await;
    let relay = Running::start(&values(env.database_url(), &nats.url()));
    let nats_url = nats.url();
    pause(&env, &["pause", "--stream", "ORDERS", "--nats-url", &nats_url]).await;
    let mut ordered = enqueue(&client, "orders.a", "o-", 0..100, 0).await;
    let mailed = enqueue(&client, "mails.a", "m-", 0..100, 0).await;
    await_messages(&mails, 100).await;
    pause(&env, &["pause", "--all"]).await;
    pause(&env, &["resume", "--stream", "ORDERS"]).await;
    sleep(MOMENT).await;
    assert_eq!(stored(&orders).await, [], "all are paused");
    ordered.extend(enqueue(&client, "orders.a", "o-", 100..200, 0).await);
    pause(&env, &["resume", "--all"]).await;
    await_messages(&orders, 200).await;
    relay.stop().await;
    assert_eq!(assert_delivered(&stored(&orders).await, &ordered), 0);
    assert_eq!(assert_delivered(&stored(&mails).await, &mailed), 0);
}

#[tokio::test]
async fn a_throttle_lets_its_rate_pass_under_two_relays() {
    const RATE: u32 = 40;
    let env = TestEnv::new().await;
    let (stream, values) = (env.stream().await, values_of(&env));
    let client = env.pg().await;
    let (slow, free) = (env.subject("slow"), env.subject("free"));
    pause(&env, &["throttle", "--subject", &slow, "--rate", &RATE.to_string(), "--unseen"]).await;
    let relays = [Running::start(&values), Running::start(&values)];
    let begun = Instant::now();
    let keys = enqueue(&client, &slow, "s-", 0..300, 5).await;
    let others = enqueue(&client, &free, "f-", 0..300, 5).await;
    eventually("others are not throttled", LIMIT, async || {
        let sent = stored(&stream).await;
        let of = |start: &str| sent.iter().filter(|message| message.key.starts_with(start)).count();
        // The burst is a second's messages.
        let most = (begun.elapsed() + Duration::from_secs(1)).as_secs_f64() * f64::from(RATE);
        #[expect(clippy::cast_precision_loss, reason = "hundreds")]
        let throttled = of("s-") as f64;
        assert!(throttled <= most + 1.0, "{throttled} messages after {:?}", begun.elapsed());
        (of("f-") == others.len()).then_some(())
    })
    .await;
    let expected = [keys, others].concat();
    await_messages(&stream, expected.len()).await;
    let least = Duration::from_secs(300 / u64::from(RATE) - 2);
    assert!(begun.elapsed() >= least, "all came after {:?}", begun.elapsed());
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn a_wrong_pause_is_refused_with_its_reason() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    enqueue(&client, "orders.placed", "o-", 0..1, 0).await;
    for (arguments, expected) in [
        (&["pause"][..], "required"),
        (&["pause", "--subject", "orders..x"], "an empty token"),
        (
            &["pause", "--subject", "order.>"],
            "no recent message has a subject that order.> takes (there are orders.placed)",
        ),
        (&["pause", "--stream", "ORDERS"], "nats-url"),
        (&["pause", "--all", "--until", "2020-01-01"], "its end is in the past"),
        (&["pause", "--all", "--until", "2h"], "how long, --for takes"),
        (&["pause", "--all", "--for", "0s"], "not a time of a second to a year"),
        (&["throttle", "--all"], "--rate"),
        (&["throttle", "--all", "--rate", "0"], "0.001 to 1000000"),
        (&["resume", "--subject", "orders.>"], "subject orders.> is not paused"),
    ] {
        let (code, output, log) = run(env.database_url(), &[&["outbox"], arguments].concat()).await;
        assert!(
            code != 0 && (output.clone() + &log).contains(expected),
            "{arguments:?}: {code} {output}{log}"
        );
    }
    let rows: i64 = client.query_one("SELECT count(*) FROM oncebox.pause", &[]).await.unwrap().get(0);
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn replays_keep_a_rate_and_go_on_after_a_kill() {
    let env = TestEnv::new().await;
    let (stream, values) = (env.stream().await, values_of(&env));
    let client = env.pg().await;
    let relay = Running::start(&values);
    let keys = enqueue(&client, &env.subject("a"), "r-", 0..60, 1).await;
    await_messages(&stream, keys.len()).await;
    let arguments = ["outbox", "replay", "--all", "--request", "again", "--rate", "20"];
    // A message is in the stream a moment before it is settled, and only then replayed.
    eventually("all messages are settled", LIMIT, async || {
        let (_, would, _) = run(env.database_url(), &["outbox", "replay", "--all", "--dry-run"]).await;
        would.starts_with("would replay 60 messages\nto replay these rows").then_some(())
    })
    .await;
    let database = [("DATABASE_URL", env.database_url())];
    let begun = Instant::now();
    let replaying = Process::start(&arguments, database);
    await_messages(&stream, keys.len() + 10).await;
    replaying.kill().await;
    let before = stored(&stream).await.len() - keys.len();
    assert!(before < 50, "{before} at once");
    let said = run_ok(env.database_url(), &arguments).await;
    assert!(said.starts_with("asked the relays to replay "), "{said}");
    await_messages(&stream, 2 * keys.len()).await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "60 messages after {:?}", begun.elapsed());
    relay.stop().await;
    let copies = stored(&stream).await;
    assert_eq!(copies.iter().filter(|copy| copy.key.contains(";r=1")).count(), keys.len(), "each once");
}

/// When the stream stored each message of a subject, in seconds.
#[expect(clippy::cast_precision_loss, reason = "microseconds do")]
async fn stored_at(stream: &Stream, subject: &str) -> Vec<f64> {
    let count = count(stream).await;
    let consumer = stream.create_consumer(OrderedConfig::default()).await.unwrap();
    let messages: Vec<_> = consumer.messages().await.unwrap().take(count).try_collect().await.unwrap();
    let of_it = messages.iter().filter(|message| *message.subject == *subject);
    let seconds = of_it.map(|message| message.info().unwrap().published.unix_timestamp_nanos() as f64 / 1e9);
    seconds.collect()
}

/// The tokens lie in the database: it does not matter which relay sends, nor that the standby finds
/// lanes that seem to stand still, nor that one dies.
#[tokio::test]
#[expect(clippy::cast_precision_loss, reason = "hundreds")]
async fn a_throttle_holds_its_rate_in_each_second_under_two_relays_of_which_one_dies() {
    const RATE: u32 = 50;
    let env = TestEnv::new().await;
    let (stream, values) = (env.stream().await, values_of(&env));
    let client = env.pg().await;
    let slow = env.subject("slow");
    pause(&env, &["throttle", "--subject", &slow, "--rate", &RATE.to_string(), "--unseen"]).await;
    let relays = [Process::relay(&values), Process::relay(&values)];
    for relay in &relays {
        relay.await_log("relay is running").await;
    }
    enqueue(&client, &slow, "s-", 0..1_500, 0).await;
    await_messages(&stream, 500).await;
    let [first, second] = relays;
    let (leader, standby) =
        if first.log().contains("this relay is the leader") { (first, second) } else { (second, first) };
    leader.kill().await;
    await_messages(&stream, 700).await;
    standby.kill().await;
    let at = stored_at(&stream, &slow).await;
    let rate = RATE as usize;
    let busiest =
        at.iter().map(|begin| at.iter().filter(|at| (0.0..1.0).contains(&(*at - begin))).count()).max();
    assert!(busiest.unwrap() <= rate * 3 / 2, "{busiest:?} in a second");
    let took = at.last().unwrap() - at[0];
    assert!(at.len() as f64 >= 0.7 * took * f64::from(RATE), "{} in {took} s", at.len());
}
