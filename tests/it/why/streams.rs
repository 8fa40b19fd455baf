//! NATS and its streams: away, without JetStream, missing, closed, full, with losses.

use async_nats::jetstream::{
    consumer::pull,
    stream::{Config, DiscardPolicy},
};
use oncebox_tests::Nats;
use serde_json::{Value, json};

use super::support::{Scene, assert_held, why};
use crate::{
    operator::doctor::run_with,
    relay::{
        process::Process,
        support::{LIMIT, await_messages, connect, drain, enqueue, fresh_stream, stream_config, with},
    },
};

#[tokio::test]
async fn without_nats_the_message_waits_and_the_exit_code_says_so() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    let (url, away) = (scene.env.database_url(), "nats://u:hunter2@127.0.0.1:1");
    let (code, told) = why(url, away, &["order-1"]).await;
    assert_eq!(code, 69, "{told}");
    let what = ["nats://127.0.0.1:1", "cannot be reached", "wait in the outbox"];
    assert_held(&told["answers"][0], "nats", &what, &["see whether the server runs"]);
    assert!(!told.to_string().contains("hunter2"), "{told}");
    drain(&mut connect(&scene.values).await.worker()).await;
    let (code, told) = why(url, away, &["order-1"]).await;
    assert_eq!((code, &told["answers"][0]["outcome"]), (69, &json!("unknown")), "{told}");
    // Not asked: it says so.
    let (code, told) = why(url, "", &["order-1"]).await;
    assert_eq!((code, &told["answers"][0]["outcome"]), (1, &json!("unknown")), "{told}");
    assert!(told["answers"][0]["remedy"]["what"].as_str().unwrap().contains("NATS_URL"), "{told}");
}

/// A stream that drops the oldest when it is full has let go of it, and no inbox has it.
#[tokio::test]
async fn a_message_that_a_full_stream_dropped_can_be_replayed() {
    let scene = Scene::new().await;
    let full = Config {
        discard: DiscardPolicy::Old,
        max_messages: 1,
        ..stream_config(scene.env.name(), &scene.env.subject("taken.>"))
    };
    scene.env.jetstream().await.update_stream(&full).await.unwrap();
    let consumer = pull::Config { durable_name: Some("late".to_owned()), ..pull::Config::default() };
    scene.stream.create_consumer(consumer).await.unwrap();
    let mut worker = connect(&scene.values).await.worker();
    for key in ["order-1", "order-2"] {
        scene.enqueue(key, &scene.taken, None).await;
        drain(&mut worker).await;
    }
    let answer = scene.answer("order-1").await;
    assert_eq!((&answer["outcome"], &answer["station"]), (&json!("unknown"), &json!("stream")), "{answer:#}");
    assert!(answer["what"].as_str().unwrap().contains("has it no more"), "{answer:#}");
    let command = "oncebox outbox replay --key 'order-1'";
    assert_eq!(answer["remedy"]["command"], command, "{answer:#}");
    assert!(answer["remedy"]["what"].as_str().unwrap().contains("--discard new --force"), "{answer:#}");
    scene.mend(&answer).await;
    drain(&mut worker).await;
    assert_eq!(scene.answer("order-1").await["station"], "consumer", "its copy is there");
}

#[tokio::test]
async fn a_server_without_jetstream_is_named() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    let accounts = "accounts { PLAIN: { users: [{ user: p, password: p }] } }";
    let plain = Nats::start_with(accounts).await.unwrap();
    let url = format!("nats://p:p@127.0.0.1:{}", plain.port());
    let (_, told) = why(scene.env.database_url(), &url, &["order-1"]).await;
    assert_held(&told["answers"][0], "nats", &["JetStream cannot be used"], &["enable JetStream"]);
}

#[tokio::test]
async fn a_subject_that_no_stream_takes_gets_one_by_the_remedy() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &format!("{}_b.placed", scene.env.name()), None).await;
    let answer =
        scene.assert_held("order-1", "stream", &["no stream takes"], &["oncebox relay --stream '"]).await;
    let command = answer["remedy"]["command"].as_str().unwrap();
    let words: Vec<&str> = command.split(' ').skip(1).map(|word| word.trim_matches('\'')).collect();
    let environment = [("DATABASE_URL", scene.env.database_url()), ("NATS_URL", scene.env.nats_url())];
    let off = [("ONCEBOX_HTTP_LISTEN", "off")];
    let relay = Process::start(&words, environment.into_iter().chain(off));
    let name = words[2].split_once('=').unwrap().0;
    let stream = oncebox_tests::eventually("the stream is there", LIMIT, async || {
        scene.env.jetstream().await.get_stream(name).await.ok()
    })
    .await;
    await_messages(&stream, 1).await;
    let answer = oncebox_tests::eventually("it is settled", LIMIT, async || {
        Some(scene.answer("order-1").await).filter(|answer| answer["passed"][1]["station"] == "stream")
    })
    .await;
    drop(relay);
    let stored = answer["passed"][1]["what"].as_str().unwrap();
    assert_eq!(stored, format!("stored in stream {name} at sequence 1"), "{answer}");
    assert!(answer["passed"][1]["at"].as_str().unwrap().starts_with("20"), "{answer}");
    scene.env.jetstream().await.delete_stream(name).await.unwrap();
    scene
        .assert_held(
            "order-1",
            "stream",
            &["a stream had stored it, and is gone"],
            &["oncebox relay --stream"],
        )
        .await;
}

#[tokio::test]
async fn the_stream_that_is_expected_must_be_there_and_take_the_subject() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    let expecting = async |name: &str| {
        let environment = [
            ("DATABASE_URL", scene.env.database_url()),
            ("NATS_URL", scene.env.nats_url()),
            ("ONCEBOX_EXPECTED_STREAM", name),
        ];
        let (_, output, log) = run_with(&["why", "order-1", "--json"], &environment).await;
        let told: Value =
            serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}{log}"));
        told["answers"][0].clone()
    };
    let other = format!("{}_other", scene.env.name());
    assert_held(
        &expecting(&other).await,
        "stream",
        &["is not there", "--expected-stream"],
        &["--expected-stream"],
    );
    fresh_stream(scene.env.nats_url(), stream_config(&other, &scene.env.subject("others"))).await;
    let what = ["takes the subject", "--expected-stream is", other.as_str()];
    assert_held(&expecting(&other).await, "stream", &what, &["move the subject to"]);
    assert_eq!(expecting(scene.env.name()).await["outcome"], "on-its-way");
}

#[tokio::test]
async fn a_full_stream_is_named_with_the_limit_that_is_to_be_widened() {
    let scene = Scene::new().await;
    let small = Config {
        discard: DiscardPolicy::New,
        max_messages: 2,
        ..stream_config(scene.env.name(), &scene.env.subject("taken.>"))
    };
    fresh_stream(scene.env.nats_url(), small.clone()).await;
    enqueue(&scene.pg, &scene.taken, "order-", 0..3, 1).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    let full = ["is full: 2 of 2 messages", "wait in the outbox"];
    scene.assert_held("order-2", "stream", &full, &["nats stream edit", "--max-msgs 4 --force"]).await;
    // As the remedy does, with the program of NATS.
    scene.env.jetstream().await.update_stream(Config { max_messages: 4, ..small }).await.unwrap();
    oncebox_tests::eventually("it is stored", LIMIT, async || {
        drain(&mut connect(&scene.values).await.worker()).await;
        (scene.answer("order-2").await["passed"][1]["station"] == "stream").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_is_closed_is_named() {
    let scene = Scene::new().await;
    let config = stream_config(scene.env.name(), &scene.env.subject("taken.>"));
    scene.enqueue("order-1", &scene.taken, None).await;
    let context = scene.env.jetstream().await;
    context.update_stream(Config { no_ack: true, ..config.clone() }).await.unwrap();
    scene
        .assert_held("order-1", "stream", &["acknowledges nothing (no_ack)"], &["a stream that acknowledges"])
        .await;
    context.update_stream(Config { sealed: true, ..config }).await.unwrap();
    scene
        .assert_held("order-1", "stream", &["is sealed"], &["another stream: a seal cannot be undone"])
        .await;
}

#[tokio::test]
async fn a_message_that_its_stream_has_lost_is_sent_again_by_the_remedy() {
    let scene = Scene::new().await;
    enqueue(&scene.pg, &scene.taken, "order-", 0..3, 1).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    let answer = scene.answer("order-1").await;
    assert!(answer["passed"][1]["what"].as_str().unwrap().ends_with("at sequence 2"), "{answer}");
    scene.stream.delete_message(2).await.unwrap();
    let resend = format!("oncebox outbox verify --stream '{}' --resend", scene.env.name());
    let answer =
        scene.assert_held("order-1", "stream", &["acknowledged it, and does not have it"], &[&resend]).await;
    scene
        .env
        .jetstream()
        .await
        .update_stream(Config {
            duplicate_window: std::time::Duration::from_millis(100),
            ..stream_config(scene.env.name(), &scene.env.subject("taken.>"))
        })
        .await
        .unwrap();
    scene.mend(&answer).await;
    oncebox_tests::eventually("it is stored again", LIMIT, async || {
        drain(&mut connect(&with(&scene.values, [("batch-messages", "2")])).await.worker()).await;
        let answer = scene.answer("order-1").await;
        answer["passed"][1]["what"].as_str()?.ends_with("at sequence 4").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_loss_that_relays_have_reported_is_named() {
    let scene = Scene::new().await;
    enqueue(&scene.pg, &scene.taken, "order-", 0..3, 1).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    scene.stream.delete_message(3).await.unwrap();
    let sql = "INSERT INTO oncebox.loss (lane, stream, number, kind, sequence, lost_sequence, floor, high, snap)
               SELECT lane, $1, 1, 'tail', 2, 3, 0, 0, pg_current_snapshot() FROM oncebox.message_0 WHERE key = 'order-2'";
    scene.pg.execute(sql, &[&scene.env.name()]).await.unwrap();
    let answer = scene
        .assert_held(
            "order-2",
            "stream",
            &["has lost messages between 2 and 3"],
            &["oncebox outbox resend --stream"],
        )
        .await;
    scene.mend(&answer).await;
}
