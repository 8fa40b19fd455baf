//! Leased mode on a line to PostgreSQL that fails.

use std::{pin::pin, time::Duration};

use oncebox_inbox::{Error, Inbox, Verdict};
use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::time::timeout;

use crate::{
    inbox::support::{LIMIT, SCOPE, count, message, replayed},
    leased::{
        crash::{Point, Stops, assert_once, healthy},
        support::{LEASE, expire, receipt, setup},
    },
};

/// The record that an effect begins is written late, while the process is suspended: by its own
/// clock it may not call any more.
#[tokio::test]
async fn a_process_that_wakes_after_its_lease_does_not_call() {
    let (env, _, provider) = setup().await;
    let (proxy, leased) = through_proxy(&env).await;
    let (stops, handler) = Stops::handler(Point::Claimed, &provider);
    let received = message("k", 7);
    let mut hanging = pin!(leased.run(&handler, &received));
    tokio::select! {
        ended = &mut hanging => panic!("{ended:?}"),
        () = stops.reached.notified() => proxy.stall(true),
    }
    stops.go_on.notify_one();
    let on_its_way = timeout(LEASE / 9, &mut hanging).await;
    assert!(on_its_way.is_err(), "{on_its_way:?}");
    tokio::time::sleep(LEASE).await;
    proxy.stall(false);
    let begun = async || (count(&env, "oncebox.inbox_effect").await == 1).then_some(());
    eventually("it is recorded", LIMIT, begun).await;
    let ended = hanging.await;
    assert!(matches!(ended, Ok(Verdict::InFlight)), "{ended:?}");
    assert_eq!(provider.calls("k:reserve"), 0);
}

/// Through a proxy, with connections of its own.
async fn through_proxy(env: &TestEnv) -> (Proxy, oncebox_inbox::Leased) {
    let (proxy, pool) = env.pool_through_proxy(4).await;
    let short = Duration::from_millis(1);
    let inbox = Inbox::builder(pool).scope(SCOPE).single_tenant().backoff(short, short);
    (proxy, inbox.leased(LEASE).build().unwrap())
}

/// The database is away for longer than the lease, or for shorter.
#[tokio::test]
async fn a_database_that_is_away_ends_the_run_before_another_may_begin() {
    let (env, other, provider) = setup().await;
    let (proxy, leased) = through_proxy(&env).await;
    let (stops, handler) = Stops::handler(Point::Worked, &provider);
    let received = message("k", 7);
    let mut away = pin!(leased.run(&handler, &received));
    tokio::select! {
        ended = &mut away => panic!("{ended:?}"),
        () = stops.reached.notified() => proxy.stall(true),
    }
    let ended = timeout(LIMIT, away).await.expect("it gives up");
    assert!(matches!(ended, Err(Error::Unavailable(..))), "{ended:?}");
    assert_eq!((leased.inbox().counts().leases.lost, handler.runs()), (1, 1));
    expire(&env).await;
    let verdict = other.run(&healthy(&provider), &message("k", 7)).await.unwrap();
    assert_eq!(verdict, Verdict::Handled(receipt()));
    proxy.stall(false);
    assert_once(&env, &provider, "away").await;
}

/// A short outage costs no run: the records are written as long as the lease lasts.
#[tokio::test]
async fn a_short_outage_is_waited_out() {
    let (env, _, provider) = setup().await;
    let (proxy, leased) = through_proxy(&env).await;
    let (stops, handler) = Stops::handler(Point::Worked, &provider);
    let received = message("k", 7);
    let mut run = pin!(leased.run(&handler, &received));
    tokio::select! {
        ended = &mut run => panic!("{ended:?}"),
        () = stops.reached.notified() => {}
    }
    // Every connection of the pool is lost; the next statements meet that, and new ones are refused
    // for a while.
    proxy.refuse(true);
    proxy.cut();
    stops.go_on.notify_one();
    let back = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        proxy.refuse(false);
    };
    let (verdict, ()) = tokio::join!(run, back);
    assert_eq!(verdict.unwrap(), Verdict::Handled(receipt()));
    assert_once(&env, &provider, "a short outage").await;
    assert_eq!((handler.runs(), provider.lookups()), (1, 0));
}

/// The answer to the last COMMIT is lost: the next run finds the end.
#[tokio::test]
async fn an_end_whose_answer_is_lost_is_replayed() {
    for forward in [true, false] {
        let (env, other, provider) = setup().await;
        let (proxy, leased) = through_proxy(&env).await;
        let (stops, handler) = Stops::handler(Point::Finishing, &provider);
        let received = message("k", 7);
        let mut run = pin!(leased.run(&handler, &received));
        tokio::select! {
            ended = &mut run => panic!("{ended:?}"),
            () = stops.reached.notified() => {}
        }
        proxy.cut_when_client_sends(b"oncebox_claim;\nCOMMIT", forward);
        stops.go_on.notify_one();
        let lost = run.await;
        assert!(matches!(lost, Err(Error::Unavailable(..))), "{lost:?}");
        expire(&env).await;
        let verdict = other.run(&healthy(&provider), &message("k", 7)).await.unwrap();
        match forward {
            true => assert_eq!(replayed(&verdict), receipt()),
            false => assert_eq!(verdict, Verdict::Handled(receipt())),
        }
        assert_once(&env, &provider, &format!("forward: {forward}")).await;
    }
}
