//! The relay notices that a stream lost acknowledged messages, and sends them again.

mod back;
mod checks;
mod first;
mod foreign;
mod late;
mod restored;
mod slow;
mod two_streams;
use std::{collections::BTreeSet, ops::Range, time::Duration};

use async_nats::jetstream::{
    self,
    stream::{RetentionPolicy, Stream},
};
use oncebox_operator::{Operator, Order, Severity, Stamp, Status, Verb, examine};
use oncebox_relay::{Config, Values};
use oncebox_tests::{Nats, TestEnv, eventually};
use tokio_postgres::Client;

use crate::relay::support::{
    LIMIT, Running, assert_delivered, await_messages, connect, count, drain, enqueue, fresh_stream, stored,
    stream_config, turn_the_ring, values, with,
};
use foreign::publish_foreign;

/// A receipt without the id of its message can only be judged by its sequence.
const WITHOUT_PROBE: &str = "
    CREATE TABLE kept_cursor AS SELECT lane, acknowledged FROM oncebox.cursor;
    CREATE TABLE kept_receipt AS SELECT lane, stream, number, message_id FROM oncebox.receipt;
    UPDATE oncebox.cursor SET acknowledged = jsonb_set(acknowledged, '{ORDERS,1}', 'null')
    WHERE acknowledged IS NOT NULL;
    UPDATE oncebox.receipt SET message_id = NULL;";
const WITH_PROBE: &str = "
    UPDATE oncebox.cursor AS c SET acknowledged = k.acknowledged FROM kept_cursor AS k WHERE k.lane = c.lane;
    UPDATE oncebox.receipt AS r SET message_id = k.message_id FROM kept_receipt AS k
    WHERE (k.lane, k.stream, k.number) = (r.lane, r.stream, r.number);";

/// A server of the test's own, whose store can be rolled back.
struct Broker {
    nats: Nats,
    values: Values,
}

impl Broker {
    async fn start(env: &TestEnv) -> Self {
        let nats = Nats::start().await.unwrap();
        let values = values(env.database_url(), &nats.url());
        Self { nats, values }
    }

    async fn stream(&self, name: &str) -> Stream {
        let context = jetstream::new(async_nats::connect(self.nats.url()).await.unwrap());
        context.get_stream(name).await.unwrap()
    }
}

async fn operator(values: &Values) -> Operator {
    Operator::connect(Config::from_values(values).unwrap().outbox(), Stamp::default()).await.unwrap()
}

async fn status(values: &Values) -> Status {
    operator(values).await.status().await.unwrap()
}

async fn replay(values: &Values, request: &str, limit: u64) -> u64 {
    let mut order = Order::new(Verb::Replay, true, vec![("request".into(), request.into())]).unwrap();
    order.limit = Some(limit);
    order.run(&mut operator(values).await, None, None).await.unwrap().done
}

async fn resend(values: &Values, stream: &str, dry_run: bool) -> Option<u64> {
    let order = Order::new(Verb::Resend, false, vec![("stream".into(), stream.into())]).unwrap();
    let operator = &mut operator(values).await;
    let counted = order.count(operator).await.unwrap().done;
    let done = if dry_run { counted } else { order.run(operator, None, None).await.unwrap() };
    (done.losses > 0).then_some(done.done)
}

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Some messages survive in the copy of the store, the others are lost with it.
async fn lose(env: &TestEnv, broker: &mut Broker, survive: i32, lost: i32) -> Vec<String> {
    lose_of(env, broker, [("a", 0..survive, 7), ("b", 0..lost, 7)]).await
}

/// As `lose`: prefixes, numbers and how many ordering keys.
async fn lose_of(env: &TestEnv, broker: &mut Broker, of: [(&str, Range<i32>, i32); 2]) -> Vec<String> {
    let [survive, lost] = of;
    let subject = "orders.placed";
    fresh_stream(&broker.nats.url(), stream_config("ORDERS", "orders.>")).await;
    let client = env.pg().await;
    let mut worker = connect(&broker.values).await.worker();
    let mut expected = enqueue(&client, subject, survive.0, survive.1, survive.2).await;
    drain(&mut worker).await;
    broker.nats.back_up().await.unwrap();
    let mut worker = connect(&broker.values).await.worker();
    expected.extend(enqueue(&client, subject, lost.0, lost.1, lost.2).await);
    drain(&mut worker).await;
    assert_eq!(count(&broker.stream("ORDERS").await).await, expected.len());
    // Relays read the new segment alone by now.
    turn_the_ring(&client).await;
    assert_eq!(drain(&mut worker).await, 0);
    broker.nats.roll_back().await.unwrap();
    expected
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_that_a_stream_lost_is_sent_again_once_under_two_relays() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    fresh_stream(&broker.nats.url(), stream_config("ORDERS", "orders.>")).await;
    broker.nats.back_up().await.unwrap();
    let relays = [Running::start(&broker.values), Running::start(&broker.values)];
    let client = env.pg().await;
    // One that begins while NATS is away ends with an error.
    let at_work = "SELECT count(*) FROM oncebox.relay";
    eventually("both are at work", LIMIT, async || (number(&client, at_work).await == 2).then_some(())).await;
    let mut expected = Vec::new();
    // The store is rolled back to where it was empty, and that twice.
    for round in ["a", "b"] {
        expected.extend(enqueue(&client, "orders.placed", round, 0..300, 7).await);
        await_messages(&broker.stream("ORDERS").await, expected.len()).await;
        let settled = "SELECT count(*) FROM oncebox.message AS m JOIN oncebox.lane_cursor AS c USING (lane)
                       WHERE m.id > c.high";
        eventually("all is settled", LIMIT, async || (number(&client, settled).await == 0).then_some(()))
            .await;
        let before = number(&client, "SELECT count(*) FROM oncebox.loss").await;
        turn_the_ring(&client).await;
        broker.nats.roll_back().await.unwrap();
        broker.nats.resume().await.unwrap();
        await_messages(&broker.stream("ORDERS").await, expected.len()).await;
        let lanes = "SELECT count(DISTINCT lane) FROM oncebox.message";
        let after = number(&client, "SELECT count(*) FROM oncebox.loss").await;
        assert_eq!(after - before, number(&client, lanes).await, "each lane's loss is noted once");
    }
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(assert_delivered(&stored(&broker.stream("ORDERS").await).await, &expected), 0, "copies");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_sequences_that_were_given_out_again_do_not_hide_the_loss() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    let mut expected = lose(&env, &mut broker, 100, 150).await;
    broker.nats.resume().await.unwrap();
    expected.extend(publish_foreign(&broker, "orders.foreign", 200).await);
    let relay = connect(&broker.values).await;
    let client = env.pg().await;
    client.batch_execute(WITHOUT_PROBE).await.unwrap();
    assert_eq!(relay.recovery().run_once().await.unwrap(), 0, "by the sequences alone nothing is missing");
    client.batch_execute(WITH_PROBE).await.unwrap();
    assert!(relay.recovery().run_once().await.unwrap() > 0, "the loss is found");
    drain(&mut relay.worker()).await;
    assert_eq!(relay.recovery().run_once().await.unwrap(), 0, "it is found once");
    let stream = broker.stream("ORDERS").await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "copies");
    let status = status(&broker.values).await;
    assert!(status.losses.iter().all(|loss| loss.state == "sent again" && loss.kind == "tail"), "{status:?}");
    assert!(!status.losses.is_empty());
}

/// The count of the scenario above when the relay has no receipts.
#[tokio::test(flavor = "multi_thread")]
async fn without_receipts_the_loss_stays() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    let expected = lose(&env, &mut broker, 100, 150).await;
    let client = env.pg().await;
    client.batch_execute("UPDATE oncebox.cursor SET acknowledged = '{}'").await.unwrap();
    broker.nats.resume().await.unwrap();
    let relay = connect(&broker.values).await;
    assert_eq!(relay.recovery().run_once().await.unwrap(), 0);
    assert_eq!(drain(&mut relay.worker()).await, 0);
    assert_eq!(expected.len() - count(&broker.stream("ORDERS").await).await, 150);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_made_anew_is_reported_and_repaired_by_hand() {
    let env = TestEnv::new().await;
    let values = with(&values(env.database_url(), env.nats_url()), []);
    // Outside of the windows, a message that is sent a second time is stored a second time.
    let config = |tail: &str| jetstream::stream::Config {
        duplicate_window: Duration::from_millis(100),
        ..stream_config(&format!("{}_{tail}", env.name()), &env.subject(tail))
    };
    let (lost, other) = (config("lost"), config("other"));
    fresh_stream(env.nats_url(), lost.clone()).await;
    let other = fresh_stream(env.nats_url(), other).await;
    let client = env.pg().await;
    let relay = connect(&values).await;
    let mut worker = relay.worker();
    let mut expected = enqueue(&client, &env.subject("lost"), "a", 0..50, 5).await;
    enqueue(&client, &env.subject("other"), "o", 0..40, 5).await;
    drain(&mut worker).await;
    relay.maintainer().run_once().await.unwrap();
    assert!(number(&client, "SELECT count(*) FROM oncebox.milestone WHERE high > 0").await > 0);
    assert_eq!(relay.recovery().run_once().await.unwrap(), 0, "nothing is lost yet");

    let stream = fresh_stream(env.nats_url(), lost.clone()).await;
    assert!(relay.recovery().run_once().await.unwrap() > 0);
    assert_eq!(drain(&mut worker).await, 0, "it is only reported");
    let found = status(&values).await;
    assert!(found.losses.iter().any(|loss| loss.is_reported() && loss.kind == "recreated"), "{found:?}");
    let command = format!("oncebox outbox resend --stream {}", lost.name);
    assert!(found.findings.iter().any(|finding| finding.remedy.contains(&command)), "{found:?}");
    let diagnoses = examine(&Config::from_values(&values).unwrap()).await.findings;
    let named = diagnoses.iter().find(|found| found.check == "loss").expect("the doctor names it");
    assert!(named.severity == Severity::Problem && named.remedy.contains(&command), "{named:?}");
    expected.extend(enqueue(&client, &env.subject("lost"), "b", 0..1, 0).await);
    assert_eq!(drain(&mut worker).await, 1, "new messages flow");
    assert_eq!(relay.recovery().run_once().await.unwrap(), 0, "it is reported once");

    // Messages published to the new stream since may be in a lane that goes back.
    assert!(matches!(resend(&values, &lost.name, true).await, Some(50 | 51)));
    assert_eq!(count(&stream).await, 1);
    assert!(matches!(resend(&values, &lost.name, false).await, Some(50 | 51)));
    let settled = "SELECT count(*) FROM oncebox.milestone
                   WHERE high > 0 AND lane IN (SELECT lane FROM oncebox.loss)";
    assert_eq!(number(&client, settled).await, 0, "what is due again is not deleted");
    drain(&mut worker).await;
    assert_eq!(resend(&values, &lost.name, false).await, None, "it is sent again once");
    relay.recovery().run_once().await.unwrap();
    let found = status(&values).await;
    assert!(found.losses.iter().all(|loss| loss.state == "sent again"), "{found:?}");
    assert_delivered(&stored(&stream).await, &expected);
    assert_eq!(count(&other).await, 40, "the other stream's messages are not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_were_parked_are_sent_again_and_dead_ones_stay_dead() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    let url = broker.nats.url();
    let config = stream_config("ORDERS", "orders.>");
    fresh_stream(&url, config.clone()).await;
    let client = env.pg().await;
    let mut worker = connect(&broker.values).await.worker();
    // No stream takes these, for now: the second one waits for the first of its ordering key.
    let mut expected = enqueue(&client, "late.placed", "late", 0..2, 1).await;
    let strict = with(&broker.values, [("attempts-max", "1")]);
    expected.extend(enqueue(&client, "orders.placed", "a", 0..20, 3).await);
    drain(&mut worker).await;
    enqueue(&client, "nobody.placed", "dead", 0..1, 0).await;
    drain(&mut connect(&strict).await.worker()).await;
    broker.nats.back_up().await.unwrap();

    let both = jetstream::stream::Config {
        subjects: vec!["orders.>".to_owned(), "late.>".to_owned()],
        ..config.clone()
    };
    let update = async |url: &str| {
        let context = jetstream::new(async_nats::connect(url).await.unwrap());
        context.update_stream(both.clone()).await.unwrap();
    };
    update(&url).await;
    let mut worker = connect(&broker.values).await.worker();
    let hurry = "UPDATE oncebox.parked SET next_attempt_at = now() WHERE next_attempt_at IS NOT NULL";
    client.batch_execute(hurry).await.unwrap();
    expected.extend(enqueue(&client, "orders.placed", "b", 0..20, 3).await);
    drain(&mut worker).await;
    assert_eq!(number(&client, "SELECT count(*) FROM oncebox.late_receipt").await, 2);
    assert_eq!(count(&broker.stream("ORDERS").await).await, expected.len());

    broker.nats.roll_back().await.unwrap();
    broker.nats.resume().await.unwrap();
    update(&url).await;
    let relay = connect(&broker.values).await;
    assert!(relay.recovery().run_once().await.unwrap() > 0);
    drain(&mut relay.worker()).await;
    let stream = broker.stream("ORDERS").await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "copies");
    let dead = "SELECT count(*) FROM oncebox.parked WHERE dead_at IS NOT NULL";
    assert_eq!((number(&client, dead).await, count(&stream).await), (1, 42));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_is_given_out_again_is_looked_into_at_once() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let values = values(env.database_url(), env.nats_url());
    let relay = Running::start(&values);
    let mut expected = enqueue(&client, &env.subject("x"), "a", 0..10, 1).await;
    let due = "SELECT count(*) FROM oncebox.message AS m JOIN oncebox.lane_cursor AS c USING (lane)
               WHERE m.id > c.high";
    eventually("all is settled", LIMIT, async || (number(&client, due).await == 0).then_some(())).await;
    // As if ninety more had been acknowledged, and lost since.
    let more = format!(
        "BEGIN; SELECT FROM oncebox.lane FOR UPDATE;
         UPDATE oncebox.cursor SET acknowledged = jsonb_set(acknowledged, ARRAY['{}', '0'], '100')
         WHERE acknowledged IS NOT NULL; COMMIT",
        env.name()
    );
    client.batch_execute(&more).await.unwrap();
    // Of the same ordering key, and so in the same lane.
    expected.extend(enqueue(&client, &env.subject("x"), "a", 10..15, 1).await);
    let losses = "SELECT count(*) FROM oncebox.loss";
    // The next check by itself comes later.
    let soon = Duration::from_secs(12);
    eventually("the loss is noted", soon, async || (number(&client, losses).await == 1).then_some(())).await;
    eventually("all is settled", LIMIT, async || (number(&client, due).await == 0).then_some(())).await;
    relay.stop().await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "copies");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_each_retention_what_was_lost_is_sent_again_or_reported() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    let url = broker.nats.url();
    let queue = RetentionPolicy::WorkQueue;
    let configs = [
        stream_config("ORDERS", "orders.>"),
        jetstream::stream::Config { retention: queue, ..stream_config("QUEUE", "queue.>") },
        jetstream::stream::Config { max_messages_per_subject: 3, ..stream_config("LAST", "last.>") },
    ];
    for config in configs {
        fresh_stream(&url, config).await;
    }
    let client = env.pg().await;
    let (mut orders, mut queued) = (Vec::new(), Vec::new());
    for round in ["a", "b"] {
        let mut worker = connect(&broker.values).await.worker();
        orders.extend(enqueue(&client, "orders.x", &format!("orders-{round}"), 0..30, 4).await);
        queued.extend(enqueue(&client, "queue.x", &format!("queue-{round}"), 0..30, 4).await);
        enqueue(&client, "last.x", &format!("last-{round}"), 0..30, 1).await;
        enqueue(&client, "last.y", &format!("only-{round}"), 0..1, 0).await;
        drain(&mut worker).await;
        if round == "a" {
            broker.nats.back_up().await.unwrap();
        }
    }
    broker.nats.roll_back().await.unwrap();
    broker.nats.resume().await.unwrap();

    let relay = connect(&broker.values).await;
    assert!(relay.recovery().run_once().await.unwrap() > 0);
    let found = status(&broker.values).await;
    let reported = |stream| found.losses.iter().any(|loss| loss.stream == stream && loss.is_reported());
    assert_eq!(["ORDERS", "QUEUE", "LAST"].map(reported), [false, true, false], "{found:?}");
    drain(&mut relay.worker()).await;
    let all = stored(&broker.stream("ORDERS").await).await;
    assert_eq!(assert_delivered(&all, &orders), 0, "copies");
    let last: Vec<String> = stored(&broker.stream("LAST").await).await.into_iter().map(|m| m.key).collect();
    let of_x: Vec<&String> = last.iter().filter(|key| key.starts_with("last-")).collect();
    assert_eq!(of_x, ["last-b27", "last-b28", "last-b29"]);
    assert!(last.contains(&"only-b0".to_owned()), "{last:?}");

    let queue = broker.stream("QUEUE").await;
    assert_eq!(count(&queue).await, 30, "only reported");
    assert!(resend(&broker.values, "QUEUE", false).await >= Some(30));
    drain(&mut relay.worker()).await;
    assert_eq!(count(&queue).await, 60);
    let keys = (1..=60).map(|sequence| {
        let queue = &queue;
        async move {
            let message = queue.get_raw_message(sequence).await.unwrap();
            message.headers.get("Idempotency-Key").unwrap().to_string()
        }
    });
    let keys: BTreeSet<String> = futures_util::future::join_all(keys).await.into_iter().collect();
    assert_eq!(keys, queued.into_iter().collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_that_a_stream_lost_are_sent_again_beside_those_that_are_due() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    fresh_stream(&broker.nats.url(), stream_config("ORDERS", "orders.>")).await;
    let client = env.pg().await;
    let originals = enqueue(&client, "orders.placed", "a", 0..20, 4).await;
    drain(&mut connect(&broker.values).await.worker()).await;
    broker.nats.back_up().await.unwrap();
    let mut worker = connect(&broker.values).await.worker();
    assert_eq!(replay(&broker.values, "first", 20).await, 20);
    drain(&mut worker).await;
    assert_eq!(count(&broker.stream("ORDERS").await).await, 40);
    // These are not sent yet when the stream loses the others.
    assert_eq!(replay(&broker.values, "second", 10).await, 10);
    broker.nats.roll_back().await.unwrap();
    broker.nats.resume().await.unwrap();
    let relay = connect(&broker.values).await;
    assert!(relay.recovery().run_once().await.unwrap() > 0);
    drain(&mut relay.worker()).await;
    let all = stored(&broker.stream("ORDERS").await).await;
    let keys: BTreeSet<&str> = all.iter().map(|message| message.key.as_str()).collect();
    assert_eq!((all.len(), keys.len()), (40, 40), "nothing twice: {keys:?}");
    let replayed = keys.iter().filter_map(|key| key.split_once(";r=")).map(|(key, _)| key.to_owned());
    assert_eq!(replayed.collect::<BTreeSet<_>>(), originals.iter().cloned().collect());
    assert_eq!(keys.iter().filter(|key| key.ends_with(";r=2")).count(), 10);
}
