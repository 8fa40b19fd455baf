//! Messages that are set aside: parked, waiting for another, dead, discarded, replayed.

use serde_json::json;

use super::support::Scene;
use crate::relay::{
    process::run_ok,
    support::{LIMIT, connect, drain, fresh_stream, stream_config, with},
};

#[tokio::test]
async fn a_dead_message_is_retried_by_its_remedy_once_its_cause_is_mended() {
    let scene = Scene::new().await;
    let lost = scene.env.subject("lost.a");
    scene.enqueue("order-1", &lost, Some("k")).await;
    scene.enqueue("order-2", &scene.taken, Some("k")).await;
    let hasty = with(&scene.values, [("attempts-max", "1")]);
    drain(&mut connect(&hasty).await.worker()).await;
    let retry = "oncebox outbox dead retry --key 'order-1'";
    let dead = ["it is dead since 20", "after 1 attempt:", "no stream takes"];
    let answer = scene.assert_held("order-1", "outbox", &dead, &["nats stream add", retry]).await;
    assert_eq!(answer["remedy"]["command"], retry);
    let what = ["waits behind order-1", "ordering key k", dead[0]];
    let behind = scene.assert_held("order-2", "ordering-key", &what, &[retry]).await;
    assert_eq!((&behind["behind"], &behind["remedy"]["command"]), (&json!("order-1"), &json!(retry)));

    let name = format!("{}_lost", scene.env.name());
    fresh_stream(scene.env.nats_url(), stream_config(&name, &scene.env.subject("lost.>"))).await;
    scene.mend(&behind).await;
    drain(&mut connect(&hasty).await.worker()).await;
    for key in ["order-1", "order-2"] {
        let answer = scene.answer(key).await;
        assert_eq!(answer["passed"][1]["station"], "stream", "{answer}");
    }
}

#[tokio::test]
async fn a_parked_message_and_those_behind_it_wait_for_the_same_stream() {
    let scene = Scene::new().await;
    let lost = scene.env.subject("lost.a");
    scene.enqueue("order-1", &lost, Some("k")).await;
    scene.enqueue("order-2", &scene.taken, Some("k")).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    let missing = ["no stream takes the subject", lost.as_str()];
    scene.assert_held("order-1", "stream", &missing, &["oncebox relay --stream"]).await;
    scene
        .assert_held("order-2", "ordering-key", &["behind order-1", missing[0]], &["oncebox relay --stream"])
        .await;
    // Without NATS the table alone says why.
    let (code, told) = super::support::why(scene.env.database_url(), "", &["order-1"]).await;
    let answer = &told["answers"][0];
    super::support::assert_held(
        answer,
        "outbox",
        &["it is set aside, after 1 attempt", "try it again at 20"],
        &["create a stream with this subject", "With NATS_URL"],
    );
    assert_eq!(code, 1);
}

#[tokio::test]
async fn a_discarded_message_says_who_gave_it_up() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.env.subject("lost"), None).await;
    drain(&mut connect(&with(&scene.values, [("attempts-max", "1")])).await.worker()).await;
    let discard = ["outbox", "dead", "discard", "--key", "order-1", "--by", "mina", "--note", "INC-7"];
    run_ok(scene.env.database_url(), &discard).await;
    let answer = scene.answer("order-1").await;
    assert_eq!(answer["outcome"], "given-up", "{answer}");
    assert!(answer["what"].as_str().unwrap().contains("discarded by mina at 20"), "{answer}");
    assert_eq!(scene.why("order-1").await.0, 1);
}

#[tokio::test]
async fn a_message_that_can_never_be_sent_says_what_to_change() {
    let scene = Scene::new().await;
    let sql = "SELECT oncebox.enqueue('large', $1, convert_to(repeat('x', 3000000), 'UTF8'))";
    scene.pg.execute(sql, &[&scene.taken]).await.unwrap();
    drain(&mut connect(&scene.values).await.worker()).await;
    let retry = "oncebox outbox dead retry --key 'large'";
    scene.assert_held("large", "outbox", &["it is dead"], &["option object-store", retry]).await;
}

#[tokio::test]
async fn a_replay_that_is_set_aside_holds_what_is_behind_it() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, Some("k")).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    run_ok(scene.env.database_url(), &["outbox", "replay", "--key", "order-1"]).await;
    scene.enqueue("order-2", &scene.taken, Some("k")).await;
    let pause = ["outbox", "pause", "--ordering-key", "k"];
    run_ok(scene.env.database_url(), &pause).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    let what = ["waits behind order-1", "a replay of it", "is still to be sent", "paused"];
    let remedy = ["oncebox outbox resume --ordering-key 'k'"];
    let answer = scene.assert_held("order-2", "ordering-key", &what, &remedy).await;
    scene.mend(&answer).await;
    let mut worker = connect(&scene.values).await.worker();
    oncebox_tests::eventually("all are stored", LIMIT, async || {
        drain(&mut worker).await;
        (scene.answer("order-2").await["passed"][1]["station"] == "stream").then_some(())
    })
    .await;
}
