//! A stream that is restored by JetStream's own snapshot: it has its sequences, and was created at
//! another time. And one that was made anew, which looks alike.

use async_nats::{Client, jetstream::stream::Config};
use bytes::Bytes;
use futures_util::StreamExt as _;
use oncebox_tests::TestEnv;
use serde_json::{Value, json};

use super::{Broker, status};
use crate::relay::support::{
    assert_delivered, connect, count, drain, enqueue, fresh_stream, stored, stream_config,
};

struct Backup {
    described: Value,
    chunks: Vec<Bytes>,
}

async fn ask(client: &Client, subject: &str, question: impl Into<Bytes>) -> Value {
    let answer = client.request(subject.to_owned(), question.into()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap_or_default();
    assert!(answer.get("error").is_none(), "{subject}: {answer}");
    answer
}

async fn back_up(client: &Client) -> Backup {
    let inbox = client.new_inbox();
    let mut arriving = client.subscribe(inbox.clone()).await.unwrap();
    let question = json!({ "deliver_subject": inbox, "no_consumers": true }).to_string();
    let described = ask(client, "$JS.API.STREAM.SNAPSHOT.ORDERS", question).await;
    let mut chunks = Vec::new();
    loop {
        let chunk = arriving.next().await.unwrap();
        if chunk.payload.is_empty() {
            return Backup { described, chunks };
        }
        chunks.push(chunk.payload);
        if let Some(reply) = chunk.reply {
            client.publish(reply, "".into()).await.unwrap();
        }
    }
}

/// Deletes the stream, and puts the backup in its place.
async fn restore(client: &Client, backup: Backup) {
    ask(client, "$JS.API.STREAM.DELETE.ORDERS", "").await;
    let Value::Object(mut question) = backup.described else { panic!("a description") };
    question.retain(|name, _| name == "config" || name == "state");
    let place = ask(client, "$JS.API.STREAM.RESTORE.ORDERS", Value::Object(question).to_string()).await;
    let place = place["deliver_subject"].as_str().unwrap().to_owned();
    for chunk in backup.chunks {
        client.request(place.clone(), chunk).await.unwrap();
    }
    ask(client, &place, "").await;
}

struct Scene {
    env: TestEnv,
    broker: Broker,
    nats: Client,
    pg: tokio_postgres::Client,
}

/// A hundred messages are stored; some checks have seen the stream.
async fn scene(checks: usize) -> (Scene, Vec<String>) {
    let env = TestEnv::new().await;
    let broker = Broker::start(&env).await;
    fresh_stream(&broker.nats.url(), stream_config("ORDERS", "orders.>")).await;
    let nats = async_nats::connect(broker.nats.url()).await.unwrap();
    let pg = env.pg().await;
    let relay = connect(&broker.values).await;
    let keys = enqueue(&pg, "orders.placed", "a", 0..100, 7).await;
    drain(&mut relay.worker()).await;
    for _ in 0..checks {
        assert_eq!(relay.recovery().run_once().await.unwrap(), 0);
    }
    (Scene { env, broker, nats, pg }, keys)
}

/// Whether a relay has looked at the stream before makes no difference.
#[tokio::test(flavor = "multi_thread")]
async fn the_tail_that_a_restored_stream_lacks_is_sent_again_once() {
    for checks in [0, 1] {
        let (scene, mut keys) = scene(checks).await;
        let backup = back_up(&scene.nats).await;
        keys.extend(enqueue(&scene.pg, "orders.placed", "b", 0..150, 7).await);
        drain(&mut connect(&scene.broker.values).await.worker()).await;
        restore(&scene.nats, backup).await;
        assert_eq!(count(&scene.broker.stream("ORDERS").await).await, 100);
        let relay = connect(&scene.broker.values).await;
        assert!(relay.recovery().run_once().await.unwrap() > 0, "the loss is found");
        let found = status(&scene.broker.values).await;
        assert!(
            // nats-server 2.9 keeps the time of a restored stream.
            found
                .losses
                .iter()
                .all(|loss| ["restored", "tail"].contains(&&*loss.kind) && !loss.is_reported()),
            "{checks} checks: {found:?}"
        );
        assert!(found.findings.iter().all(|finding| !finding.what.contains("made anew")), "{found:?}");
        drain(&mut relay.worker()).await;
        let all = stored(&scene.broker.stream("ORDERS").await).await;
        assert_eq!(assert_delivered(&all, &keys), 0, "copies");
        assert_eq!(relay.recovery().run_once().await.unwrap(), 0, "it is found once");
        drop(scene.env);
    }
}

/// Some versions of nats-server move `created` of a stream that has lost nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_created_at_another_time_and_lacks_nothing_has_no_loss() {
    for checks in [0, 1] {
        let (scene, _) = scene(checks).await;
        let backup = back_up(&scene.nats).await;
        restore(&scene.nats, backup).await;
        let relay = connect(&scene.broker.values).await;
        for _ in 0..2 {
            assert_eq!(relay.recovery().run_once().await.unwrap(), 0);
        }
        assert_eq!(drain(&mut relay.worker()).await, 0);
        assert_eq!(status(&scene.broker.values).await.losses.len(), 0);
        drop(scene.env);
    }
}

/// Its first sequence may lie above all that were acknowledged, as after a purge.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_made_anew_is_reported_whatever_its_sequences_and_its_checks() {
    for (checks, first) in [(0, None), (1, None), (0, Some(1000)), (1, Some(1000))] {
        let (scene, _) = scene(checks).await;
        let anew = Config { first_sequence: first, ..stream_config("ORDERS", "orders.>") };
        fresh_stream(&scene.broker.nats.url(), anew).await;
        let relay = connect(&scene.broker.values).await;
        // The first one after it may be of a lane that the old stream never had.
        enqueue(&scene.pg, "orders.placed", "b", 0..1, 0).await;
        drain(&mut relay.worker()).await;
        assert!(relay.recovery().run_once().await.unwrap() > 0, "{checks} checks, {first:?}");
        let found = status(&scene.broker.values).await.losses;
        assert!(
            found.iter().all(|loss| loss.kind == "recreated" && loss.is_reported()),
            "{checks} checks, {first:?}: {found:?}"
        );
        assert_eq!(drain(&mut relay.worker()).await, 0, "it is only reported");
        drop(scene.env);
    }
}
