//! Messages that one cause refuses wait together beside others in their lanes: a few are tried, and
//! nothing is written for the rest until one of those is stored.

use async_nats::jetstream::stream::{Config, DiscardPolicy, Stream};
use oncebox_relay::parts::Worker;
use oncebox_tests::{TestEnv, eventually};
use tokio_postgres::Client;

use crate::relay::{
    process::run_ok,
    support::{
        LIMIT, assert_delivered, connect, count, drain, enqueue, fresh_stream, stored, stream_config,
        values_of, with,
    },
};

const MESSAGES: i32 = 1_000;
/// Of the messages that wait in 16 lanes for the same cause, four are tried in each: on a slow
/// machine one that was not tried for half a minute is forgotten, and another one takes its place.
const PROBES_MAX: i64 = 16 * 4 * 4;

fn full(name: &str, subject: &str) -> Config {
    Config { discard: DiscardPolicy::New, max_messages: 1, ..stream_config(name, subject) }
}

async fn make_room(env: &TestEnv, stream: &Stream) {
    let config = stream.get_info().await.unwrap().config;
    env.jetstream().await.update_stream(Config { max_messages: -1, ..config }).await.unwrap();
}

/// Messages of all these subjects, mixed in every lane, some with a number of ordering keys.
async fn enqueue_mixed<const N: usize>(
    env: &TestEnv,
    subjects: [&str; N],
    ordering_keys: i32,
) -> [Vec<String>; N] {
    let client = env.pg().await;
    let mut keys = subjects.map(|_| Vec::new());
    for from in (0..MESSAGES).step_by(200) {
        for (subject, keys) in subjects.iter().zip(&mut keys) {
            let ordering_keys = if from == 0 { ordering_keys } else { 0 };
            let prefix = format!("{subject}-");
            keys.extend(
                enqueue(&client, &env.subject(subject), &prefix, from..from + 200, ordering_keys).await,
            );
        }
    }
    keys
}

async fn one(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// From here on each update of a row of `parked` is counted, also those that are rolled back.
async fn count_updates(client: &Client) {
    let sql = "CREATE SEQUENCE oncebox.updates MINVALUE 0 START 0;
        GRANT USAGE ON SEQUENCE oncebox.updates TO PUBLIC;
        CREATE FUNCTION oncebox.count_update() RETURNS trigger LANGUAGE plpgsql
          AS 'BEGIN PERFORM nextval(''oncebox.updates''); RETURN NULL; END';
        CREATE TRIGGER count_update AFTER UPDATE ON oncebox.parked FOR EACH ROW EXECUTE FUNCTION oncebox.count_update();
        SELECT nextval('oncebox.updates')";
    client.batch_execute(sql).await.unwrap();
}

async fn updates(client: &Client) -> i64 {
    one(client, "SELECT last_value FROM oncebox.updates").await
}

async fn parked(client: &Client) -> i64 {
    one(client, "SELECT count(*) FROM oncebox.parked").await
}

async fn deliver(worker: &mut Worker, stream: &Stream, expected: &[String]) {
    eventually("all arrive", LIMIT * 2, async || {
        drain(worker).await;
        (count(stream).await >= expected.len()).then_some(())
    })
    .await;
    assert_eq!(assert_delivered(&stored(stream).await, expected), 0, "in order, and none twice");
}

/// Until some were tried for longer than the first pauses.
async fn try_in_vain(client: &Client, workers: &mut [Worker]) {
    eventually("tried again without success, several times", LIMIT, async || {
        for worker in &mut *workers {
            drain(worker).await;
        }
        let sql = "SELECT count(*) FROM oncebox.parked
                   WHERE next_attempt_at BETWEEN parked_at + interval '4 s' AND parked_at + interval '1 h'";
        (one(client, sql).await > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_full_stream_beside_others_has_a_few_messages_tried() {
    let env = TestEnv::new().await;
    let bounded = fresh_stream(env.nats_url(), full(env.name(), &env.subject("full"))).await;
    let other = format!("{}_other", env.name());
    let other = fresh_stream(env.nats_url(), stream_config(&other, &env.subject("other"))).await;
    let client = env.pg().await;
    let values = with(&values_of(&env), [("batch-messages", "100")]);
    // The second one does not know which messages the first one tries.
    let mut workers = [connect(&values).await.worker(), connect(&values).await.worker()];
    let [mut expected, others] = enqueue_mixed(&env, ["full", "other"], 100).await;
    count_updates(&client).await;
    try_in_vain(&client, &mut workers).await;
    assert_eq!(assert_delivered(&stored(&other).await, &others), 0, "others flow");
    assert!(parked(&client).await > i64::from(MESSAGES) / 2, "so that the others get past");
    let sql = "SELECT count(*) FROM oncebox.parked WHERE next_attempt_at < now() + interval '1 h'";
    let probes = one(&client, sql).await;
    assert!((1..=PROBES_MAX).contains(&probes), "{probes} are tried");
    let updates = updates(&client).await;
    // Were each tried, these would be 5,000 and more.
    assert!(updates < 3_000, "{updates} rows written while nothing got on");
    let listed = run_ok(env.database_url(), &["outbox", "parked", "list", "--limit", "100000"]).await;
    assert!(listed.lines().any(|line| line.contains("waiting") && line.contains("10077")), "{listed}");

    make_room(&env, &bounded).await;
    let [worker, _] = &mut workers;
    expected.extend(enqueue(&client, &env.subject("full"), "full-", MESSAGES..MESSAGES + 100, 100).await);
    deliver(worker, &bounded, &expected).await;
    assert_eq!(parked(&client).await, 0);
}

#[tokio::test]
async fn one_full_stream_does_not_hide_another_that_gets_room() {
    let env = TestEnv::new().await;
    let names = ["a", "b", "c"];
    let mut streams = Vec::new();
    for name in names {
        let (stream, subject) = (format!("{}_{name}", env.name()), env.subject(name));
        let config = if name == "c" { stream_config(&stream, &subject) } else { full(&stream, &subject) };
        streams.push(fresh_stream(env.nats_url(), config).await);
    }
    let expected = enqueue_mixed(&env, names, 100).await;
    let values = with(&values_of(&env), [("batch-messages", "100")]);
    let mut worker = connect(&values).await.worker();
    deliver(&mut worker, &streams[2], &expected[2]).await;
    for (stream, expected) in [(&streams[1], &expected[1]), (&streams[0], &expected[0])] {
        assert_eq!(count(stream).await, 1, "still full");
        make_room(&env, stream).await;
        deliver(&mut worker, stream, expected).await;
    }
    assert_eq!(parked(&env.pg().await).await, 0);
}

#[tokio::test]
async fn a_subject_without_a_stream_has_a_few_messages_tried_until_it_has_one() {
    let env = TestEnv::new().await;
    let other = format!("{}_other", env.name());
    let other = fresh_stream(env.nats_url(), stream_config(&other, &env.subject("other"))).await;
    let client = env.pg().await;
    let [expected, others] = enqueue_mixed(&env, ["nobody", "other"], 100).await;
    let mut workers = [connect(&values_of(&env)).await.worker()];
    count_updates(&client).await;
    try_in_vain(&client, &mut workers).await;
    assert_eq!(assert_delivered(&stored(&other).await, &others), 0, "others flow");
    let sql = "SELECT count(*) FROM oncebox.parked WHERE attempts > 0";
    assert!((1..=PROBES_MAX).contains(&one(&client, sql).await), "no attempt of the others is spent");
    let updates = updates(&client).await;
    assert!(updates < i64::from(MESSAGES), "{updates} rows written while nothing got on");

    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("nobody"))).await;
    let [worker] = &mut workers;
    deliver(worker, &stream, &expected).await;
    assert_eq!(parked(&client).await, 0);
}

/// With faults of those that are tried, and of the stream.
#[tokio::test]
async fn those_that_wait_are_not_forgotten_when_the_ones_that_were_tried_are_gone() {
    let env = TestEnv::new().await;
    let first = fresh_stream(env.nats_url(), full(env.name(), &env.subject("a"))).await;
    let other = format!("{}_other", env.name());
    let other = fresh_stream(env.nats_url(), stream_config(&other, &env.subject("other"))).await;
    let (client, relay) = (env.pg().await, connect(&values_of(&env)).await);
    let [mut expected, others] = enqueue_mixed(&env, ["a", "other"], 0).await;
    let mut worker = relay.worker();
    deliver(&mut worker, &other, &others).await;
    // Another relay has stored all that were tried, and gone before it released others.
    let sql = "WITH tried AS (
                 DELETE FROM oncebox.parked
                 WHERE waits_for IS NOT NULL AND next_attempt_at < now() + interval '1 h' RETURNING lane, id
               )
               SELECT m.key FROM tried AS t JOIN oncebox.message AS m USING (lane, id)";
    let tried = client.query(sql, &[]).await.unwrap();
    assert!((1..=PROBES_MAX).contains(&(tried.len() as i64)), "{} were tried", tried.len());
    expected.retain(|key| tried.iter().all(|row| row.get::<_, &str>(0) != key));
    // An operator puts another stream in the place of this one.
    let taken = stored(&first).await;
    expected.retain(|key| taken.iter().all(|one| one.key != *key));
    env.jetstream().await.delete_stream(env.name()).await.unwrap();
    let next = format!("{}_next", env.name());
    let next = fresh_stream(env.nats_url(), stream_config(&next, &env.subject("a"))).await;
    let mut maintainer = relay.maintainer();
    while maintainer.run_once().await.unwrap().more {}
    deliver(&mut worker, &next, &expected).await;
    assert_eq!(parked(&client).await, 0);
}
