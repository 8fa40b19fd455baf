//! Consumers that get no messages, and those that do.

use std::time::Duration;

use async_nats::jetstream::{
    consumer::pull::Config as Consumer,
    stream::{Config, RetentionPolicy},
};
use futures_util::StreamExt;
use oncebox_tests::{Nats, eventually};
use serde_json::{Value, json};

use super::support::Scene;
use crate::relay::support::{LIMIT, connect, drain, fresh_stream, stream_config};

fn durable(name: &str) -> Consumer {
    Consumer { durable_name: Some(name.to_owned()), ..Consumer::default() }
}

/// A message that a stream has stored.
async fn stored(config: impl FnOnce(Config) -> Config, consumer: Option<Consumer>) -> Scene {
    let scene = Scene::new().await;
    let config = config(stream_config(scene.env.name(), &scene.env.subject("taken.>")));
    let stream = fresh_stream(scene.env.nats_url(), config).await;
    if let Some(consumer) = consumer {
        stream.create_consumer(consumer).await.unwrap();
    }
    scene.enqueue("order-1", &scene.taken, None).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    scene
}

/// Takes a message, and acknowledges it or not.
async fn take(scene: &Scene, consumer: &str, acknowledges: bool) {
    let consumer = scene.stream.get_consumer::<Consumer>(consumer).await.unwrap();
    let mut taken = consumer.fetch().max_messages(1).messages().await.unwrap();
    let message = taken.next().await.unwrap().unwrap();
    if acknowledges {
        message.double_ack().await.unwrap();
    }
}

#[tokio::test]
async fn a_stream_that_nobody_consumes_holds_it() {
    let scene = stored(|config| config, None).await;
    scene.assert_held("order-1", "stream", &["nobody consumes stream"], &["start the services"]).await;
}

#[tokio::test]
async fn a_stream_that_drops_it_has_it_replayed() {
    let scene = stored(|config| Config { retention: RetentionPolicy::Interest, ..config }, None).await;
    let answer = scene
        .assert_held(
            "order-1",
            "stream",
            &["retention interest", "dropped at once"],
            &["oncebox outbox replay --subject"],
        )
        .await;
    scene.stream.create_consumer(durable("charge")).await.unwrap();
    scene.mend(&answer).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    assert_eq!(scene.stream.get_info().await.unwrap().state.messages, 1);

    let scene = stored(|config| Config { retention: RetentionPolicy::Interest, ..config }, None).await;
    let consumer = Consumer { filter_subject: scene.env.subject("taken.b"), ..durable("other") };
    scene.stream.create_consumer(consumer).await.unwrap();
    scene
        .assert_held("order-1", "stream", &["no consumer takes"], &["oncebox outbox replay --subject"])
        .await;
}

#[tokio::test]
async fn a_consumer_from_which_nobody_pulls_holds_it_until_it_is_acknowledged() {
    let scene = stored(|config| config, Some(durable("charge"))).await;
    let forsaken = eventually("nobody has pulled for a while", LIMIT, async || {
        Some(scene.answer("order-1").await).filter(|answer| answer["outcome"] == "held")
    })
    .await;
    super::support::assert_held(
        &forsaken,
        "consumer",
        &["nobody pulls from the consumer charge"],
        &["start its service"],
    );
    take(&scene, "charge", false).await;
    let answer = scene.answer("order-1").await;
    let what = answer["what"].as_str().unwrap();
    assert!(answer["outcome"] == "on-its-way" && what.contains("charge has delivered it"), "{answer}");
    assert!(what.contains("1 message that is not acknowledged"), "{answer}");
    // The one that it has is acknowledged late.
    let consumer = scene.stream.get_consumer::<Consumer>("charge").await.unwrap();
    let reply = format!("$JS.ACK.{}.charge.1.1.1.0.0", scene.env.name());
    scene.env.nats().await.request(reply, "+ACK".into()).await.unwrap();
    drop(consumer);
    let answer = scene.answer("order-1").await;
    assert_eq!((&answer["outcome"], scene.why("order-1").await.0), (&json!("done"), 0), "{answer}");
    assert!(answer["what"].as_str().unwrap().contains("no inbox of the databases"), "{answer}");
    assert_eq!(answer["passed"][2]["what"], "acknowledged by charge", "{answer}");
}

#[tokio::test]
async fn a_consumer_that_takes_other_subjects_holds_it() {
    let scene = stored(|config| config, None).await;
    let other = Consumer { filter_subject: scene.env.subject("taken.b"), ..durable("mail") };
    scene.stream.create_consumer(other).await.unwrap();
    let none = ["no consumer of the stream takes the subject", scene.taken.as_str()];
    scene.assert_held("order-1", "consumer", &none, &["have its consumer take this subject"]).await;
    if Nats::version().unwrap() < (2, 10) {
        // It refuses a filter that matches no subject of the stream.
        return;
    }
    let wrong = Consumer { filter_subject: "elsewhere.>".to_owned(), ..durable("charge") };
    scene.stream.create_consumer(wrong).await.unwrap();
    let wrong = ["takes elsewhere.>, and no subject of its stream matches"];
    scene.assert_held("order-1", "consumer", &wrong, &["nats consumer edit", "charge"]).await;
}

#[tokio::test]
async fn a_paused_consumer_holds_it() {
    if Nats::version().unwrap() < (2, 11) {
        return;
    }
    let scene = stored(|config| config, Some(durable("charge"))).await;
    let until = std::time::SystemTime::now() + Duration::from_secs(3600);
    let request = format!("$JS.API.CONSUMER.PAUSE.{}.charge", scene.env.name());
    let body: Value = json!({"pause_until": humantime::format_rfc3339(until).to_string()});
    scene.env.nats().await.request(request, body.to_string().into()).await.unwrap();
    scene.assert_held("order-1", "consumer", &["is paused until 20"], &["nats consumer resume"]).await;
}

#[tokio::test]
async fn a_consumer_whose_messages_nobody_acknowledges_holds_those_behind() {
    let scene = stored(|config| config, Some(Consumer { max_ack_pending: 1, ..durable("charge") })).await;
    scene.enqueue("order-2", &scene.taken, None).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    take(&scene, "charge", false).await;
    let full = eventually("nothing was acknowledged for a while", LIMIT, async || {
        Some(scene.answer("order-2").await).filter(|answer| answer["outcome"] == "held")
    })
    .await;
    let what = ["1 message unacknowledged", "max_ack_pending"];
    super::support::assert_held(&full, "consumer", &what, &["see why its service acknowledges nothing"]);
}
