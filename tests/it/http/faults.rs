//! The HTTP layer when clients, copies, connections and servers misbehave.

use std::{sync::atomic::Ordering, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http_body_util::Full;
use oncebox_http::IdempotencyLayer;
use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower_service::Service;

use crate::{
    http::support::{LIMIT, Reply, Shop, order, reply, request, send},
    inbox::support::environment,
};

const SHORT: Duration = Duration::from_millis(100);

/// Connections that can be cut, and the shop that uses them.
async fn through_proxy() -> (Proxy, Shop) {
    let env = environment().await;
    let (proxy, pool) = env.pool_through_proxy(2).await;
    let shop = Shop::on(env, IdempotencyLayer::builder(pool)).await;
    (proxy, shop)
}

/// No 201 for a commit without an answer; the next attempt finds out, and nothing is done twice.
#[tokio::test]
async fn a_lost_commit_is_not_answered_as_done() {
    let (proxy, shop) = through_proxy().await;
    for (key, arrives) in [("arrives", true), ("does-not", false)] {
        shop.layer.check().await.unwrap();
        let runs = shop.runs();
        proxy.cut_when_client_sends(b"CLOSE oncebox_claim", arrives);
        let lost = shop.order(key, 7, "order").await;
        assert_eq!((lost.status, lost.problem().as_str()), (503, "unavailable"), "{lost:?}");
        assert_eq!(lost.header("retry-after"), "1");
        assert!(!proxy.is_armed(), "the commit went through the proxy");
        let found = shop.order(key, 7, "order").await;
        assert_eq!((found.status, found.replayed()), (201, if arrives { "true" } else { "false" }));
        assert_eq!(shop.runs() - runs, if arrives { 1 } else { 2 });
    }
    assert_eq!(shop.effects().await, 2);
}

#[tokio::test]
async fn without_postgres_requests_are_refused_for_now() {
    let (proxy, shop) = through_proxy().await;
    assert_eq!(shop.order("k", 7, "order").await.status, 201);
    proxy.refuse(true);
    proxy.cut();
    for key in ["k", "l"] {
        let refused = shop.order(key, 7, "order").await;
        assert_eq!((refused.status, refused.problem().as_str()), (503, "unavailable"));
        assert_eq!(refused.header("retry-after"), "1");
        assert!(!refused.text().to_lowercase().contains("connect"), "nothing internal: {refused:?}");
    }
    proxy.refuse(false);
    assert_eq!(shop.order("k", 7, "order").await.replayed(), "true");
    assert_eq!((shop.order("l", 7, "order").await.status, shop.effects().await), (201, 2));
}

/// The handler runs to its end, its response is stored, and the client's next attempt gets it.
#[tokio::test]
async fn a_client_that_goes_away_does_not_cut_the_work() {
    let shop = Shop::open().await;
    let mut client = TcpStream::connect(shop.address).await.unwrap();
    let head = "POST /orders HTTP/1.1\r\nhost: shop\r\nidempotency-key: k\r\nx-do: wait\r\ncontent-length: 1\r\n\r\n7";
    client.write_all(head.as_bytes()).await.unwrap();
    shop.state.entered.notified().await;
    client.set_zero_linger().unwrap();
    drop(client);
    // The server has seen the reset before it sees this: both go through the same loopback.
    assert_eq!(shop.send(request("GET", "/orders", &[], "")).await.status, 200);
    sleep(SHORT).await;
    shop.state.leave.notify_one();
    eventually("the row is committed", LIMIT, async || (shop.rows().await == 1).then_some(())).await;
    let again = shop.order("k", 7, "wait").await;
    assert_eq!((again.status, again.replayed()), (201, "true"));
    assert_eq!((shop.runs(), shop.effects().await), (1, 1));
}

/// A copy waits for the first one, without a connection, and gets its answer rather than a
/// conflict.
#[tokio::test]
async fn copies_of_a_request_in_flight_wait_and_get_its_answer() {
    let env = environment().await;
    let pool = env.pool(4);
    let builder = IdempotencyLayer::builder(pool.clone()).in_flight_wait(LIMIT);
    let shop = Shop::on(env, builder).await;
    let mut all = JoinSet::new();
    for _ in 0..20 {
        all.spawn(send(shop.address, order("k", 7, "wait")));
    }
    shop.state.entered.notified().await;
    sleep(SHORT).await;
    assert_eq!((pool.status().size, shop.runs()), (1, 1), "those that wait need no connection");
    shop.state.leave.notify_one();
    let replies = timeout(LIMIT, all.join_all()).await.unwrap();
    assert!(replies.iter().all(|reply| reply.status == 201 && reply.body == replies[0].body));
    assert_eq!(replies.iter().filter(|reply| reply.replayed() == "false").count(), 1);
    assert_eq!((shop.runs(), shop.effects().await), (1, 1));
}

/// Across processes the copy sees that the key is in flight, waits as long as it was told, and then
/// says so; or gets the answer, should that come in time.
#[tokio::test]
async fn a_copy_in_another_process_waits_then_says_so() {
    let shop =
        Shop::with(|builder| builder.in_flight_wait(3 * SHORT).retry_after(Duration::from_secs(7))).await;
    let elsewhere = |wait: Duration| {
        let pool = shop.env.pool(1);
        let builder = IdempotencyLayer::builder(pool.clone()).scope("shop").in_flight_wait(wait);
        (builder.tenant(|_| Some("main".to_owned())).build().unwrap(), pool)
    };
    // The state is shared, so that the test sees all runs; the layers share nothing but the
    // database.
    let other = |layer: &IdempotencyLayer| {
        let act =
            async |_: String| -> &'static str { unreachable!("the other process does not run the handler") };
        axum::Router::new().route("/orders", axum::routing::post(act)).route_layer(layer.clone())
    };
    let mut first = JoinSet::new();
    first.spawn(send(shop.address, order("k", 7, "wait")));
    shop.state.entered.notified().await;

    let (impatient, pool) = elsewhere(3 * SHORT);
    let began = Instant::now();
    let conflict = in_process(&other(&impatient), order("k", 7, "wait")).await;
    assert_eq!((conflict.status, conflict.problem().as_str()), (409, "in-flight"));
    assert_eq!(conflict.header("retry-after"), "1");
    assert!(began.elapsed() >= 3 * SHORT, "it has waited");
    assert_eq!(pool.status().available, 1, "and holds no connection");
    let here = shop.order("k", 7, "wait").await;
    assert_eq!((here.problem().as_str(), here.header("retry-after")), ("in-flight", "7"));

    let (patient, _) = elsewhere(LIMIT);
    let mut second = JoinSet::new();
    let router = other(&patient);
    second.spawn(async move { in_process(&router, order("k", 7, "wait")).await });
    sleep(SHORT).await;
    shop.state.leave.notify_one();
    let (first, second) =
        (first.join_next().await.unwrap().unwrap(), second.join_next().await.unwrap().unwrap());
    assert_eq!((first.replayed(), second.replayed(), &second.body), ("false", "true", &first.body));
    assert_eq!((shop.runs(), shop.effects().await), (1, 1));
}

/// Without a socket.
async fn in_process(router: &axum::Router, request: axum::http::Request<Full<Bytes>>) -> Reply {
    let response = router.clone().call(request.map(Body::new)).await;
    match response {
        Ok(response) => reply(response).await,
    }
}

/// The hot key: 200 sockets and 9,800 calls within the process, all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_with_one_key_take_one_connection_and_one_run() {
    let env = environment().await;
    let pool = env.pool(4);
    let builder = IdempotencyLayer::builder(pool.clone()).in_flight_wait(LIMIT);
    let shop = Shop::on(env, builder).await;
    let mut all = JoinSet::new();
    for number in 0..10_000 {
        let (address, router) = (shop.address, shop.router.clone());
        all.spawn(async move {
            let request = order("hot", 7, "sleep:300");
            if number % 50 == 0 { send(address, request).await } else { in_process(&router, request).await }
        });
    }
    let replies = timeout(LIMIT, all.join_all()).await.expect("all in time");
    assert_eq!((shop.runs(), shop.effects().await), (1, 1));
    assert_eq!(replies.len(), 10_000);
    for reply in &replies {
        assert_eq!((reply.status, &reply.body), (201, &replies[0].body), "{reply:?}");
    }
    assert_eq!(replies.iter().filter(|reply| reply.replayed() == "false").count(), 1);
    assert!(pool.status().size <= 2, "{:?}: the others waited without a connection", pool.status());
}

/// When the first one fails, its key is free, and one of those who wait is the next to try: one,
/// not all.
#[tokio::test]
async fn after_a_failure_one_of_those_who_wait_tries_again() {
    let shop = Shop::with(|builder| builder.in_flight_wait(LIMIT)).await;
    let mut all = JoinSet::new();
    for _ in 0..50 {
        all.spawn(send(shop.address, order("k", 7, "fails-first")));
    }
    let replies = timeout(LIMIT, all.join_all()).await.unwrap();
    let with = |status| replies.iter().filter(|reply| reply.status == status).count();
    assert_eq!((with(500), with(201)), (1, 49));
    assert_eq!((shop.runs(), shop.effects().await), (2, 1));
}

#[tokio::test]
async fn a_drain_waits_for_what_runs_and_refuses_what_comes() {
    let shop = Shop::open().await;
    let mut first = JoinSet::new();
    first.spawn(send(shop.address, order("k", 7, "wait")));
    shop.state.entered.notified().await;
    let (layer, draining) = (shop.layer.clone(), shop.layer.clone());
    let mut drain = JoinSet::new();
    drain.spawn(async move { draining.drain(LIMIT).await });
    let refused = eventually("requests are refused", LIMIT, async || {
        let refused = shop.order("l", 7, "order").await;
        (refused.status == 503).then_some(refused)
    });
    assert_eq!(refused.await.problem(), "draining");
    assert_eq!(drain.try_join_next().map(drop), None, "something still runs");
    shop.state.leave.notify_one();
    assert!(drain.join_next().await.unwrap().unwrap());
    assert_eq!(first.join_next().await.unwrap().unwrap().status, 201);
    assert!(layer.drain(SHORT).await, "again, after the end");
}

#[tokio::test]
async fn a_drain_ends_at_its_limit_and_what_still_runs_is_rolled_back() {
    let shop = Shop::open().await;
    let mut first = JoinSet::new();
    first.spawn(send(shop.address, order("k", 7, "wait")));
    shop.state.entered.notified().await;
    assert!(!shop.layer.drain(SHORT).await);
    let ended = first.join_next().await.unwrap().unwrap();
    assert_eq!((ended.status, ended.problem().as_str()), (503, "draining"));
    assert_eq!((shop.effects().await, shop.rows().await), (0, 0));
}

#[tokio::test]
async fn a_handler_that_is_too_slow_is_dropped_and_rolled_back() {
    let shop = Shop::with(|builder| builder.handler_timeout(SHORT)).await;
    let slow = shop.order("k", 7, "wait").await;
    assert_eq!((slow.status, slow.problem().as_str(), slow.header("retry-after")), (503, "too-slow", "1"));
    assert_eq!((shop.effects().await, shop.rows().await), (0, 0));
    assert_eq!((shop.order("k", 7, "order").await.status, shop.runs()), (201, 2));
}

/// Every bound refuses an excess, and is as before afterwards.
#[tokio::test]
async fn more_requests_or_bytes_than_allowed_are_refused_for_now() {
    let shop = Shop::with(|builder| builder.requests_max(1)).await;
    let bytes = |key: &str, n: usize| request("POST", "/orders", &[("idempotency-key", key)], &"1".repeat(n));
    let full = async |shop: &Shop, next| {
        let mut first = JoinSet::new();
        first.spawn(send(shop.address, order("k", 7, "wait")));
        shop.state.entered.notified().await;
        let refused = shop.send(next).await;
        assert_eq!((refused.status, refused.problem().as_str()), (503, "overloaded"));
        assert_eq!(refused.header("retry-after"), "1");
        shop.state.leave.notify_one();
        assert_eq!(first.join_next().await.unwrap().unwrap().status, 201);
        assert_eq!((shop.runs(), shop.effects().await), (1, 1));
    };
    full(&shop, bytes("l", 1)).await;
    assert_eq!(shop.send(bytes("l", 1)).await.status, 201);
    let shop = Shop::with(|builder| builder.request_body_max(10).buffered_max(10)).await;
    full(&shop, bytes("l", 10)).await;
    assert_eq!(shop.send(bytes("l", 10)).await.status, 201);
}

/// A transaction that a task keeps rolls back when the task lets it go, and its connection is used
/// again.
#[tokio::test]
async fn a_claim_that_is_kept_is_rolled_back_when_it_is_dropped() {
    let env: TestEnv = environment().await;
    let pool = env.pool(1);
    let shop = Shop::on(env, IdempotencyLayer::builder(pool.clone()).in_flight_wait(SHORT)).await;
    assert_eq!(shop.order("k", 7, "hold").await.problem(), "failed");
    assert_eq!(pool.status().available, 0, "the claim has the connection");
    shop.state.claims.lock().unwrap().clear();
    assert_eq!((shop.order("k", 7, "order").await.status, shop.effects().await), (201, 1));
    assert_eq!(shop.state.runs.load(Ordering::SeqCst), 2);
}

/// A body that never ends does not hold a place for ever.
#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    let shop = Shop::with(|builder| builder.request_body_timeout(SHORT)).await;
    let mut client = TcpStream::connect(shop.address).await.unwrap();
    let head = "POST /orders HTTP/1.1\r\nhost: shop\r\nidempotency-key: k\r\ncontent-length: 2\r\n\r\n7";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let length = timeout(LIMIT, client.read(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body-too-slow"), "{answer}");
    assert_eq!((shop.runs(), shop.rows().await), (0, 0));
}
