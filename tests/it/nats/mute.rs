//! Messages without an answer, while NATS and all other streams work: they wait or are parked, and
//! stop no other.

use std::time::Duration;

use async_nats::{Subscriber, jetstream::stream::Config};
use oncebox_tests::{Nats, NatsCluster, TestEnv, eventually};
use tokio::time::Instant;

use crate::{
    nats::refusals::{Effect, Scene, parked},
    operator::doctor::run_with,
    relay::{
        process::Process,
        support::{
            LIMIT, assert_delivered, await_messages, connect, enqueue, fresh_stream, stored, stream_config,
            through_proxy, values, with,
        },
    },
};

/// Silence is noticed after a second.
const SOON: (&str, &str) = ("ack-timeout-seconds", "1");

/// A subscriber that never answers, so that the server does not report that there is none.
async fn listener(url: &str, subject: &str) -> (async_nats::Client, Subscriber) {
    let client = async_nats::connect(url).await.unwrap();
    let subscriber = client.subscribe(subject.to_owned()).await.unwrap();
    client.flush().await.unwrap();
    (client, subscriber)
}

#[tokio::test]
async fn a_subject_with_a_subscriber_to_everything_and_no_stream_is_parked() {
    let mut scene = Scene::start().await;
    let _listener = listener(&scene.nats.url(), ">").await;
    let relay = scene.relay(Effect::Parks, "no stream stores it; create a stream", &[SOON]).await;
    assert_eq!(relay.get("/readyz").await.0, 200);
    let environment = [("DATABASE_URL", scene.env.database_url()), ("NATS_URL", &scene.nats.url())];
    let (_, text, log) = run_with(&["status"], &environment).await;
    assert!(text.contains("no stream stores it") && !text.contains("nothing is seen"), "{text}{log}");
    let bad = scene.create(stream_config("BAD", "bad.>")).await;
    scene.mended(relay, &bad).await;
}

#[tokio::test]
async fn a_single_message_that_is_not_answered_does_not_end_the_connection() {
    let env = TestEnv::new().await;
    let (nats, client) = (Nats::start().await.unwrap(), env.pg().await);
    let _listener = listener(&nats.url(), "bad.>").await;
    enqueue(&client, "bad.a", "bad-", 0..1, 0).await;
    let settings = [("http-listen", "127.0.0.1:0"), SOON];
    let relay = Process::relay(&with(&values(env.database_url(), &nats.url()), settings));
    eventually("it is tried again", LIMIT, async || {
        let parked = parked(&client).await;
        (parked.attempts >= 3 && parked.reasons.contains("no stream stores it")).then_some(())
    })
    .await;
    assert_eq!(relay.metric("oncebox_nats_reconnects_total").await, 0.0, "{}", relay.log());
    relay.kill().await;
}

/// The question about a silent message gets no answer either, while others are acknowledged.
#[tokio::test]
async fn a_silent_api_does_not_end_a_connection_on_which_other_workers_are_answered() {
    let env = TestEnv::new().await;
    let (nats, client) = (Nats::start().await.unwrap(), env.pg().await);
    fresh_stream(&nats.url(), stream_config("GOOD", "good.>")).await;
    let _silent = (listener(&nats.url(), "bad.>").await, listener(&nats.url(), "silent.>").await);
    // Passes without rounds lock only lanes with messages, and leave the others to other workers.
    let settings =
        [("http-listen", "127.0.0.1:0"), ("nats-api-prefix", "silent.API"), ("poll-min-milliseconds", "5")];
    let relay = Process::relay(&with(&values(env.database_url(), &nats.url()), settings));
    relay.await_log("relay is running").await;
    enqueue(&client, "bad.a", "bad-", 0..1, 0).await;
    let mut number = 0;
    eventually("it is set aside", LIMIT, async || {
        enqueue(&client, "good.a", "good-", number..number + 1, 0).await;
        number += 1;
        (parked(&client).await.all == 1).then_some(())
    })
    .await;
    assert_eq!(relay.metric("oncebox_nats_reconnects_total").await, 0.0, "{}", relay.log());
    relay.kill().await;
}

#[tokio::test]
async fn a_stream_that_acknowledges_nothing_gets_no_copy_after_copy() {
    let mut scene = Scene::start().await;
    // A window too short to hide copies.
    let config = Config {
        no_ack: true,
        duplicate_window: Duration::from_millis(100),
        ..stream_config("BAD", "bad.>")
    };
    let bad = scene.create(config.clone()).await;
    let relay = scene
        .relay(Effect::Parks, "acknowledge nothing (no_ack)", &[SOON, ("attempts-max", "1000000")])
        .await;
    // Each of the four ordering keys has sent its first message, once.
    eventually("it is tried five times", LIMIT, async || {
        (parked(&scene.client).await.attempts >= 5).then_some(())
    })
    .await;
    assert_eq!(bad.get_info().await.unwrap().state.messages, 4, "{:?}", stored(&bad).await);
    scene.jetstream.update_stream(Config { no_ack: false, ..config }).await.unwrap();
    eventually("nothing is parked any more", LIMIT, async || {
        // The next attempt may be half a minute away by now.
        let sql = "UPDATE oncebox.parked SET next_attempt_at = now() WHERE next_attempt_at > now()";
        scene.client.batch_execute(sql).await.unwrap();
        (parked(&scene.client).await.all == 0).then_some(())
    })
    .await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    let keys: Vec<String> = (0..40).map(|number| format!("bad-{number}")).collect();
    assert_eq!(assert_delivered(&stored(&bad).await, &keys), 4, "the first ones were stored twice");
}

#[tokio::test]
async fn a_user_who_may_not_ask_has_silent_messages_parked_all_the_same() {
    let permissions = "authorization { users = [
        { user: admin, password: a }
        { user: relay, password: r, permissions = { publish: [\"good.>\", \"bad.>\"] } }
    ] }\nno_auth_user: admin";
    let mut scene = Scene::new(Nats::start_with(permissions).await.unwrap()).await;
    let listener = listener(&scene.nats.url(), "bad.>").await;
    let settings = [("nats-user", "relay"), ("nats-password", "r"), SOON];
    let relay = scene.relay(Effect::Parks, "NATS does not let the relay ask why", &settings).await;
    drop(listener);
    let bad = scene.create(stream_config("BAD", "bad.>")).await;
    scene.mended(relay, &bad).await;
}

/// Its only server hangs: connections to it stay open, and it answers nothing.
#[tokio::test]
async fn a_stream_that_hangs_is_waited_for_and_the_others_flow() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let mut cluster = NatsCluster::start().await.unwrap();
    let replicated = |name, subject, num_replicas| Config { num_replicas, ..stream_config(name, subject) };
    cluster.create_stream(replicated("BAD", "bad.>", 1)).await.unwrap();
    let node = cluster.leader("BAD").await.unwrap();
    let other = (node + 1) % 3;
    let url = cluster.nodes()[other].url();
    cluster.create_stream(replicated("GOOD", "good.>", 3)).await.unwrap();
    // Asked over a connection of its own: the cluster's may be to the node that will hang.
    let jetstream = async_nats::jetstream::new(async_nats::connect(&url).await.unwrap());
    let (good, bad) =
        (jetstream.get_stream("GOOD").await.unwrap(), jetstream.get_stream("BAD").await.unwrap());
    let settings = [("http-listen", "127.0.0.1:0"), ("attempts-max", "1"), SOON];
    let relay = Process::relay(&with(&values(env.database_url(), &url), settings));
    relay.await_log("relay is running").await;
    cluster.nodes_mut()[node].suspend(true).await;
    let bad_keys = enqueue(&client, "bad.a", "bad-", 0..100, 5).await;
    let good_keys = enqueue(&client, "good.a", "good-", 0..500, 5).await;
    eventually("the other stream's messages arrive", LIMIT * 2, async || {
        let parked = parked(&client).await;
        assert_eq!((parked.attempts, parked.dead), (0, 0), "{parked:?}");
        (good.get_info().await.ok()?.state.messages >= good_keys.len() as u64 && parked.all > 0).then_some(())
    })
    .await;
    cluster.nodes_mut()[node].suspend(false).await;
    eventually("the stream's own messages arrive", LIMIT * 2, async || {
        (bad.get_info().await.ok()?.state.messages >= bad_keys.len() as u64).then_some(())
    })
    .await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    assert_delivered(&stored(&bad).await, &bad_keys);
    assert_delivered(&stored(&good).await, &good_keys);
}

/// Each question takes a fifth of a second: a hundred would take twenty, with the transaction open.
#[tokio::test]
async fn questions_take_no_longer_than_an_acknowledgement_may() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (proxy, url) = through_proxy(env.nats_url()).await;
    let client = env.pg().await;
    for number in 0..100 {
        enqueue(&client, &format!("nowhere.{number}"), "bad-", number..number + 1, 0).await;
    }
    let changes = [("nats-url", &*url), SOON, ("batch-lanes", "256")];
    let mut worker = connect(&with(&values(env.database_url(), &url), changes)).await.worker();
    proxy.slow(0, Duration::from_millis(100));
    let started = Instant::now();
    worker.run_once().await.unwrap();
    let took = started.elapsed();
    assert!(took.as_secs_f64() < 8.0, "{took:?}");
    let parked = parked(&client).await;
    assert_eq!((parked.all, parked.dead), (100, 0), "{parked:?}");
    proxy.slow(0, Duration::ZERO);
    enqueue(&client, &env.subject("a"), "good-", 0..10, 0).await;
    worker.run_once().await.unwrap();
    await_messages(&stream, 10).await;
}
