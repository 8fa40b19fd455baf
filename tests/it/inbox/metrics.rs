//! The measurements of claims, runs and requests, in every mode.

use std::{sync::Arc, time::Duration};

use oncebox_http::IdempotencyLayer;
use oncebox_inbox::{Handler, Inbox, Measured, Outcome, Received, metrics_text};
use oncebox_tests::{TestEnv, eventually};
use tokio::sync::Notify;

use crate::{
    http::support::{Shop, order, request},
    inbox::{
        consumer::{Running, consumer, publish, settled},
        support::{Does, LIMIT, SCOPE, environment, message, stream_environment},
    },
    leased::support::{Mood, Pays, setup},
    operator::metrics::{assert_promtool_agrees, value_of},
};

const WAIT: Duration = Duration::from_millis(400);

fn of(text: &str, series: &str) -> f64 {
    value_of(text, &series.replace('$', SCOPE))
}

/// An inbox with one connection, which another task has for a while.
async fn crowded(env: &TestEnv) -> Inbox {
    let pool = env.pool(1);
    let inbox = Inbox::builder(pool.clone()).scope(SCOPE).single_tenant().build().unwrap();
    inbox.check().await.unwrap();
    let taken = pool.get().await.unwrap();
    env.keep(async move {
        tokio::time::sleep(WAIT).await;
        drop(taken);
        std::future::pending().await
    });
    inbox
}

async fn waited(handling: impl AsyncFnOnce(&Inbox, &Does)) -> (f64, f64) {
    let env = environment().await;
    let inbox = crowded(&env).await;
    handling(&inbox, &Does::effect()).await;
    let text = metrics_text([&inbox]);
    (
        of(&text, "oncebox_inbox_claim_seconds_count{scope=\"$\"}"),
        of(&text, "oncebox_inbox_claim_seconds_sum{scope=\"$\"}"),
    )
}

/// The wait for a connection is part of the wait for a claim, in each mode; each message is counted
/// once.
#[tokio::test]
async fn the_wait_for_a_claim_is_measured_from_asking_for_it() {
    let messages: Vec<Received> = (0..5).map(|n| message(&format!("k{n}"), n)).collect();
    let alone = waited(async |inbox, handler| drop(inbox.run(handler, &message("k", 1)).await.unwrap()));
    let (count, sum) = alone.await;
    assert!(count == 1.0 && (0.3..5.0).contains(&sum), "{count} {sum}");
    let batch = waited(async |inbox, handler| drop(inbox.run_batch(handler, &messages).await));
    let (count, sum) = batch.await;
    assert!(count == 5.0 && (1.5..25.0).contains(&sum), "each of them waited: {count} {sum}");

    // A chain: the first waits for the connection, the others for the commit before them.
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    for n in 0..20 {
        publish(&jetstream, env.subject("a"), &format!("k{n}"), n, None).await;
    }
    let inbox = crowded(&env).await;
    let running = Running::start(consumer(&env).await.concurrency(1), inbox.clone(), Does::effect());
    eventually("all are handled", LIMIT, async || (inbox.counts().handled == 20).then_some(())).await;
    settled(&env).await;
    running.stop().await;
    let text = metrics_text([&inbox]);
    assert_eq!(of(&text, "oncebox_inbox_claim_seconds_count{scope=\"$\"}"), 20.0, "{text}");
    assert!(of(&text, "oncebox_inbox_claim_seconds_bucket{scope=\"$\",le=\"0.25\"}") >= 10.0, "{text}");
}

async fn until_oldest_is(what: &str, inbox: &Inbox, holds: impl Fn(f64) -> bool) {
    eventually(what, LIMIT, async || {
        holds(of(&metrics_text([inbox]), "oncebox_inbox_oldest_run_seconds{scope=\"$\"}")).then_some(())
    })
    .await;
}

/// A handler that hangs is seen while it hangs, and not after.
#[tokio::test]
async fn the_oldest_run_is_told_while_it_is_under_way() {
    let env = environment().await;
    let inbox = crate::inbox::support::inbox(&env);
    let leave = Arc::new(Notify::new());
    let hangs = Does::new({
        let leave = Arc::clone(&leave);
        move |_, _| {
            let leave = Arc::clone(&leave);
            Box::pin(async move {
                leave.notified().await;
                Ok(Outcome::done(String::new()))
            })
        }
    });
    until_oldest_is("nothing runs", &inbox, |oldest| oldest == 0.0).await;
    let asked = message("k", 1);
    let (ended, ()) = tokio::join!(inbox.run(&hangs, &asked), async {
        until_oldest_is("it runs", &inbox, |oldest| oldest > 0.2).await;
        leave.notify_one();
    });
    ended.unwrap();
    until_oldest_is("nothing runs any more", &inbox, |oldest| oldest == 0.0).await;

    let (_env, leased, provider) = setup().await;
    provider.mood(Mood::HoldsAnswers);
    let (handler, asked) = (Pays::charge(&provider), message("k", 1));
    let (ended, ()) = tokio::join!(leased.run(&handler, &asked), async {
        until_oldest_is("it calls", leased.inbox(), |oldest| oldest > 0.2).await;
        provider.answer.notify_one();
    });
    ended.unwrap();
    until_oldest_is("nothing runs any more", leased.inbox(), |oldest| oldest == 0.0).await;
    let text = metrics_text([&leased]);
    assert_eq!(of(&text, "oncebox_inbox_claim_seconds_count{scope=\"$\"}"), 1.0, "{text}");
}

/// Each request in one outcome, a missing key among them.
#[tokio::test]
async fn requests_are_counted_by_how_they_ended() {
    let shop = Shop::open().await;
    shop.order("k", 7, "order").await;
    shop.order("k", 7, "order").await;
    shop.order("k", 8, "order").await;
    shop.order("no", 7, "keep:402").await;
    shop.order("broken", 7, "status:500").await;
    shop.send(request("POST", "/orders", &[], "7")).await;
    shop.send(request("POST", "/orders", &[("idempotency-key", "")], "7")).await;
    shop.send(order("panics", 7, "panic")).await;
    let text = metrics_text([&shop.layer]);
    for (outcome, expected) in [
        ("done", 1.0),
        ("rejected", 1.0),
        ("replayed", 1.0),
        ("released", 1.0),
        ("in_flight", 0.0),
        ("mismatched", 1.0),
        ("key_missing", 1.0),
        ("refused", 1.0),
        ("unavailable", 0.0),
        ("failed", 1.0),
    ] {
        let series = format!("oncebox_http_requests_total{{scope=\"shop\",outcome=\"{outcome}\"}}");
        assert_eq!(value_of(&text, &series), expected, "{outcome}: {text}");
    }
    let claims = value_of(&text, "oncebox_http_claim_seconds_count{scope=\"shop\"}");
    assert!(claims >= 6.0, "every request with a good key looked: {text}");
    assert!(!text.contains("oncebox_inbox_"), "no inbox was given: {text}");
    assert_promtool_agrees(&text);
}

/// A scrape has each series once: scopes that are shared are added up, clones are the same inbox.
#[tokio::test]
async fn what_shares_a_scope_is_added_up_and_a_clone_counts_once() {
    let env = environment().await;
    let [first, second] = [(); 2].map(|()| crate::inbox::support::inbox(&env));
    run(&first, &Does::effect(), "a").await;
    run(&second, &Does::effect(), "b").await;
    run(&second, &Does::effect(), "b").await;
    let layers = [(); 2]
        .map(|()| IdempotencyLayer::builder(env.pool(1)).scope("shop").single_tenant().build().unwrap());
    let clone = second.clone();
    let text = metrics_text([
        Measured::from(&first),
        (&second).into(),
        (&clone).into(),
        (&layers[0]).into(),
        (&layers[1]).into(),
    ]);
    let ended = |outcome: &str| {
        of(&text, &format!("oncebox_inbox_messages_total{{scope=\"$\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!((ended("done"), ended("replayed")), (2.0, 1.0), "{text}");
    let mut series: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, _)| name)
        .collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all, "{text}");
    assert_promtool_agrees(&text);
}

async fn run(inbox: &Inbox, handler: &impl Handler, key: &str) {
    inbox.run(handler, &message(key, 1)).await.unwrap();
}
