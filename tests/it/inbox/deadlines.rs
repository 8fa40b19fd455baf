//! A network that swallows packets: each of the inbox's own statements has a deadline, and its
//! connection is used no more.

use std::time::Duration;

use futures_util::future::join_all;
use oncebox_inbox::{Error, Inbox, Verdict};
use oncebox_tests::{Proxy, eventually};
use tokio::time::{Instant, timeout};

use crate::inbox::support::{Does, LIMIT, SCOPE, Silent, count, effects, environment, message};

/// Nothing passes any more once the packet is lost that the proxy waits for: no end of a connection
/// either.
async fn swallow_from_then_on(proxy: &Proxy) {
    eventually("it is sent", LIMIT, async || (!proxy.is_armed()).then_some(())).await;
    proxy.stall(true);
}

/// Packets are lost, and the connection stays open, as with a firewall that has forgotten it.
#[tokio::test]
async fn begin_claim_and_commit_have_deadlines() {
    let env = environment().await;
    for (n, needle) in (1..).zip(["BEGIN ISOLATION", "pg_try_advisory_xact_lock", "COMMIT\0"]) {
        let (proxy, pool) = env.pool_through_proxy(1).await;
        let inbox = Inbox::builder(pool)
            .scope(SCOPE)
            .single_tenant()
            .handler_timeout(Duration::from_secs(1))
            .acquire_timeout(Duration::from_secs(1))
            .build()
            .unwrap();
        inbox.check().await.unwrap();
        let (handler, received) = (Silent(Does::effect()), message(&format!("k{n}"), 7));
        proxy.lose_when_client_sends(needle.as_bytes());
        let (lost, ()) =
            tokio::join!(timeout(LIMIT, inbox.run(&handler, &received)), swallow_from_then_on(&proxy));
        let lost = lost.expect("a deadline");
        assert!(matches!(lost, Err(Error::Unavailable(..))), "{needle}: {lost:?}");
        proxy.stall(false);
        // The only connection of the pool is a new one.
        let again = async {
            loop {
                match inbox.run(&handler, &received).await.unwrap() {
                    // The server does not know yet that no COMMIT will come.
                    Verdict::InFlight => tokio::task::yield_now().await,
                    verdict => return verdict,
                }
            }
        };
        let again = timeout(LIMIT, again).await.expect("it ends");
        assert!(matches!(again, Verdict::Handled(_)), "{needle}: {again:?}");
        assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (n, n), "{needle}");
    }
}

/// The transaction of a batch has deadlines too. After one, all its messages are reported as
/// unavailable at once.
#[tokio::test]
async fn a_batch_has_deadlines() {
    let env = environment().await;
    let (proxy, pool) = env.pool_through_proxy(1).await;
    let limit = Duration::from_secs(1);
    let inbox = Inbox::builder(pool)
        .scope(SCOPE)
        .single_tenant()
        .handler_timeout(limit)
        .acquire_timeout(limit)
        .build()
        .unwrap();
    inbox.check().await.unwrap();
    let messages: Vec<_> = (0..5).map(|n| message(&format!("k{n}"), n)).collect();
    let handler = Does::effect();
    proxy.lose_when_client_sends(b"CLOSE oncebox_claim");
    let (lost, ()) =
        tokio::join!(timeout(LIMIT, inbox.run_batch(&handler, &messages)), swallow_from_then_on(&proxy));
    let lost = lost.expect("a deadline");
    assert!(lost.iter().all(|result| matches!(result, Err(Error::Unavailable(..)))), "{lost:?}");
    proxy.stall(false);
    let begun = Instant::now();
    let mut open: Vec<_> = messages.iter().collect();
    while !open.is_empty() {
        let results = timeout(LIMIT, inbox.run_batch(&handler, open.clone())).await.expect("a deadline");
        open = open
            .into_iter()
            .zip(results)
            .filter(|(_, result)| !matches!(result, Ok(Verdict::Handled(_))))
            .map(|(message, _)| message)
            .collect();
        assert!(begun.elapsed() < LIMIT, "{open:?}");
    }
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (5, 5));
}

/// The tasks beside the messages hold a connection of the pool as well.
#[tokio::test]
async fn the_deletion_of_old_rows_has_deadlines() {
    let env = environment().await;
    let sweep = async |needle: &'static str| {
        let (proxy, pool) = env.pool_through_proxy(1).await;
        let limit = Duration::from_secs(1);
        let builder = Inbox::builder(pool).scope(SCOPE).single_tenant().retention(LIMIT);
        let inbox = builder.handler_timeout(limit).acquire_timeout(limit).build().unwrap();
        inbox.check().await.unwrap();
        proxy.lose_when_client_sends(needle.as_bytes());
        let (lost, ()) = tokio::join!(timeout(LIMIT, inbox.sweep_once()), swallow_from_then_on(&proxy));
        let lost = lost.expect("a deadline");
        assert!(matches!(lost, Err(Error::Unavailable(..))), "{needle}: {lost:?}");
        proxy.stall(false);
        let again = timeout(LIMIT, inbox.sweep_once()).await.expect("it ends");
        assert!(again.is_ok(), "{needle}: the only connection of the pool is a new one: {again:?}");
    };
    // Side by side, since each takes as long as an answer may.
    join_all(["inbox_snooze AS p", "inbox_attempt AS a", "sweep_inboxes"].map(sweep)).await;
}
