//! Leases that end: processes that die at any point, hang past their lease, or lose the database.
//!
//! A process that died is a future that is dropped; one that hangs, or is suspended, is a future
//! that is not polled. `gateway` does the same to real processes.

use std::{pin::pin, sync::Arc, time::Duration};

use oncebox_inbox::{Answer, Inbox, Outcome, Verdict};
use oncebox_tests::{TestEnv, eventually};
use tokio::{
    sync::{Barrier, Notify},
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    inbox::support::{LIMIT, SCOPE, count, effects, message, replayed},
    leased::support::{LEASE, Mood, Pays, Provider, book, charge, claim, expire, receipt, setup},
};

/// Where a run stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    Claimed,
    /// The effect is recorded as begun; the provider has not heard of it.
    Begun,
    /// The provider has done its work; the inbox has no record of it.
    Worked,
    /// Its result is remembered.
    Remembered,
    /// In the transaction that ends the claim, after the handler's writes.
    Finishing,
}

impl Point {
    const ALL: [Self; 5] = [Self::Claimed, Self::Begun, Self::Worked, Self::Remembered, Self::Finishing];
}

/// Two effects, `reserve` and `charge`. A run stops before, in or after the second one.
pub(crate) struct Stops {
    at: Point,
    pub(crate) reached: Notify,
    pub(crate) go_on: Notify,
}

impl Stops {
    pub(crate) fn handler(at: Point, provider: &Arc<Provider>) -> (Arc<Self>, Pays) {
        let stops = Arc::new(Self { at, reached: Notify::new(), go_on: Notify::new() });
        let (of_handle, of_finish) = (Arc::clone(&stops), Arc::clone(&stops));
        let provider = Arc::clone(provider);
        let handler = Pays::new(move |cx, _| {
            let (stops, provider) = (Arc::clone(&of_handle), Arc::clone(&provider));
            Box::pin(async move {
                stops.pass(Point::Claimed).await;
                charge(cx, &provider, "reserve").await?;
                let receipt = cx
                    .effect("charge")
                    .settles_within(Duration::ZERO)
                    .call(|key| {
                        let (stops, provider) = (&stops, &provider);
                        async move {
                            stops.pass(Point::Begun).await;
                            let result = provider.charge(key.as_str()).await;
                            stops.pass(Point::Worked).await;
                            result
                        }
                    })
                    .reconcile(|key| {
                        let provider = &provider;
                        async move { provider.find(key.as_str()).await }
                    })
                    .await?;
                stops.pass(Point::Remembered).await;
                // Nothing after a stop may happen when the lease was lost meanwhile.
                charge(cx, &provider, "mail").await?;
                Ok(Outcome::done(receipt))
            })
        });
        let handler = handler.finishing(move |cx| {
            let stops = Arc::clone(&of_finish);
            Box::pin(async move {
                book(cx).await?;
                stops.pass(Point::Finishing).await;
                Ok(())
            })
        });
        (stops, handler)
    }

    async fn pass(&self, point: Point) {
        if self.at == point {
            self.reached.notify_one();
            self.go_on.notified().await;
        }
    }
}

pub(crate) fn healthy(provider: &Arc<Provider>) -> Pays {
    let provider = Arc::clone(provider);
    Pays::new(move |cx, _| {
        let provider = Arc::clone(&provider);
        Box::pin(async move {
            charge(cx, &provider, "reserve").await?;
            let receipt = charge(cx, &provider, "charge").await?;
            charge(cx, &provider, "mail").await?;
            Ok(Outcome::done(receipt))
        })
    })
}

pub(crate) async fn assert_once(env: &TestEnv, provider: &Provider, context: &str) {
    for step in ["k:reserve", "k:charge", "k:mail"] {
        assert_eq!(provider.effects(step), 1, "{context}: effects of {step}");
        assert_eq!(provider.calls(step), 1, "{context}: calls of {step}");
    }
    assert_eq!(effects(env).await, 1, "{context}: rows");
    for table in ["oncebox.inbox_claim", "oncebox.inbox_effect"] {
        assert_eq!(count(env, table).await, 0, "{context}: {table}");
    }
}

/// A process that takes over goes on after the last effect that is known.
#[tokio::test]
async fn wherever_a_process_dies_the_next_one_goes_on() {
    for at in Point::ALL {
        let (env, leased, provider) = setup().await;
        let (stops, handler) = Stops::handler(at, &provider);
        {
            let received = message("k", 7);
            let mut dying = pin!(leased.run(&handler, &received));
            tokio::select! {
                ended = &mut dying => panic!("{at:?}: {ended:?}"),
                () = stops.reached.notified() => {}
            }
        }
        let early = leased.run(&healthy(&provider), &message("k", 7)).await.unwrap();
        assert_eq!(early, Verdict::InFlight, "{at:?}: its lease has not ended");
        assert_eq!(expire(&env).await, 1, "{at:?}");
        let verdict = leased.run(&healthy(&provider), &message("k", 7)).await.unwrap();
        assert_eq!(verdict, Verdict::Handled(receipt()), "{at:?}");
        assert_once(&env, &provider, &format!("{at:?}")).await;
        let asked = u64::from(matches!(at, Point::Begun | Point::Worked));
        assert_eq!(provider.lookups(), asked, "{at:?}: only the effect of unknown outcome is asked about");
        let leases = leased.inbox().counts().leases;
        assert_eq!((leases.taken_over, leases.reconciled), (1, asked), "{at:?}");
    }
}

/// With the lease that comes by default.
#[tokio::test]
async fn what_a_killed_owner_held_goes_on_within_ten_seconds() {
    let (env, _, provider) = setup().await;
    let leased = || {
        Inbox::builder(env.pool(4))
            .scope(SCOPE)
            .single_tenant()
            .leased(Duration::from_secs(8))
            .build()
            .unwrap()
    };
    let (stops, handler) = Stops::handler(Point::Claimed, &provider);
    {
        let (owner, received) = (leased(), message("k", 7));
        let mut dying = pin!(owner.run(&handler, &received));
        tokio::select! {
            ended = &mut dying => panic!("{ended:?}"),
            () = stops.reached.notified() => {}
        }
    }
    let (killed, other) = (Instant::now(), leased());
    eventually("another process goes on", LIMIT, async || {
        let verdict = other.run(&healthy(&provider), &message("k", 7)).await.unwrap();
        (verdict == Verdict::Handled(receipt())).then_some(())
    })
    .await;
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_once(&env, &provider, "after the kill").await;
}

/// It is suspended past its lease, another takes over, and then it wakes.
#[tokio::test]
async fn wherever_a_process_hangs_past_its_lease_it_changes_nothing_afterwards() {
    for at in Point::ALL {
        let (env, leased, provider) = setup().await;
        // Another process: connections and counts of its own.
        let other = crate::leased::support::leased(&env);
        let (stops, handler) = Stops::handler(at, &provider);
        let received = message("k", 7);
        let mut hanging = pin!(leased.run(&handler, &received));
        tokio::select! {
            ended = &mut hanging => panic!("{at:?}: {ended:?}"),
            () = stops.reached.notified() => {}
        }
        assert_eq!(expire(&env).await, 1, "{at:?}");
        let taking = timeout(LIMIT, other.run(&healthy(&provider), &message("k", 7))).await;
        let verdict = taking.expect("nobody is waited for").unwrap();
        // A call that is on its way and will arrive cannot be helped here, only by
        // `settles_within`, which is zero in these tests. Everywhere else one call is all.
        if at != Point::Begun {
            assert_eq!(verdict, Verdict::Handled(receipt()), "{at:?}");
            stops.go_on.notify_one();
            assert_eq!(hanging.await.unwrap(), Verdict::InFlight, "{at:?}");
            assert_once(&env, &provider, &format!("{at:?}")).await;
            assert_eq!(leased.inbox().counts().leases.lost, 1, "{at:?}");
            assert_eq!(leased.inbox().counts().handled, 0, "{at:?}");
        }
        let stored = "SELECT convert_from(outcome, 'UTF8') FROM oncebox.inbox";
        let stored: String = env.pg().await.query_one(stored, &[]).await.unwrap().get(0);
        assert_eq!(stored, "\"receipt of k:charge\"", "{at:?}");
    }
}

/// Suspended before an effect, for longer than its lease, and no other process has taken over: by
/// its own clock it may no longer call, but the database gives it a new lease.
#[tokio::test]
async fn a_lease_that_nobody_took_over_is_taken_up_again() {
    let (env, leased, provider) = setup().await;
    let (stops, handler) = Stops::handler(Point::Claimed, &provider);
    let received = message("k", 7);
    let mut hanging = pin!(leased.run(&handler, &received));
    tokio::select! {
        ended = &mut hanging => panic!("{ended:?}"),
        () = stops.reached.notified() => {}
    }
    let lapsed = "SELECT lease_until < clock_timestamp() FROM oncebox.inbox_claim";
    let pg = env.pg().await;
    while !pg.query_one(lapsed, &[]).await.unwrap().get::<_, bool>(0) {
        tokio::time::sleep(LEASE / 10).await;
    }
    stops.go_on.notify_one();
    assert_eq!(hanging.await.unwrap(), Verdict::Handled(receipt()));
    assert_once(&env, &provider, "taken up again").await;
}

/// Twenty takers of one claim whose lease has ended.
#[tokio::test]
async fn of_many_takers_one_takes_over() {
    let (env, leased, provider) = setup().await;
    let (stops, handler) = Stops::handler(Point::Worked, &provider);
    {
        let received = message("k", 7);
        let mut dying = pin!(leased.run(&handler, &received));
        tokio::select! {
            ended = &mut dying => panic!("{ended:?}"),
            () = stops.reached.notified() => {}
        }
    }
    let pool = env.pool(20);
    let other =
        Inbox::builder(pool).scope(SCOPE).single_tenant().leased(Duration::from_secs(8)).build().unwrap();
    let provider_of_taker = Arc::clone(&provider);
    let taker = Pays::new(move |cx, _| {
        let provider = Arc::clone(&provider_of_taker);
        Box::pin(async move {
            // Long enough for all of them to look.
            tokio::time::sleep(Duration::from_millis(200)).await;
            charge(cx, &provider, "reserve").await?;
            let receipt = charge(cx, &provider, "charge").await?;
            charge(cx, &provider, "mail").await?;
            Ok(Outcome::done(receipt))
        })
    });
    let barrier = Arc::new(Barrier::new(20));
    expire(&env).await;
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let (other, taker, barrier) = (other.clone(), taker.clone(), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            other.run(&taker, &message("k", 7)).await.unwrap()
        });
    }
    let verdicts = tasks.join_all().await;
    let won = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Handled(_))).count();
    assert_eq!((won, taker.runs(), other.inbox().counts().leases.taken_over), (1, 1, 1), "{verdicts:?}");
    assert_once(&env, &provider, "twenty takers").await;
}

/// The claim ends between a copy's look at the key and its own claim.
#[tokio::test]
async fn a_claim_that_comes_right_after_the_end_is_none() {
    let (env, leased, provider) = setup().await;
    // Its look finds nothing, its insertion waits for this transaction, which then ends the key.
    let mut ending = env.pg().await;
    let transaction = ending.transaction().await.unwrap();
    let claim = "INSERT INTO oncebox.inbox_claim (scope, tenant, key, fingerprint, owner, lease_until)
                 VALUES ($1::text, '', 'k', sha256('x'), gen_random_uuid(), clock_timestamp())";
    transaction.execute(claim, &[&SCOPE]).await.unwrap();
    let handler = Pays::charge(&provider);
    let late = async { leased.run(&handler, &message("k", 7)).await.unwrap() };
    let end = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        transaction.execute("DELETE FROM oncebox.inbox_claim", &[]).await.unwrap();
        let end = "INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status, outcome)
                   SELECT $1::text, '', 'k', sha256(convert_to('oncebox payload 1', 'UTF8') || '\\x00' || '{\"n\":7}'::bytea),
                          'completed', '\"earlier\"'";
        transaction.execute(end, &[&SCOPE]).await.unwrap();
        transaction.commit().await.unwrap();
    };
    let (verdict, ()) = tokio::join!(late, end);
    assert_eq!(replayed(&verdict), Answer::Done("earlier".to_owned()));
    assert_eq!((handler.runs(), count(&env, "oncebox.inbox_claim").await), (0, 0));
}

/// A statement of the last writes failed and was swallowed; the effects stay remembered.
#[tokio::test]
async fn an_end_that_is_rolled_back_is_no_end() {
    let (env, leased, provider) = setup().await;
    let swallowing = Pays::charge(&provider).finishing(|cx| {
        Box::pin(async move {
            book(cx).await?;
            let _ = cx.transaction().execute("SELECT 1 / 0", &[]).await;
            Ok(())
        })
    });
    let verdict = leased.run(&swallowing, &message("k", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("had failed")),
        "{verdict:?}"
    );
    assert_eq!((effects(&env).await, claim(&env).await.unwrap().0), (0, "failed".to_owned()));
    tokio::time::sleep(Duration::from_millis(3)).await;
    let verdict = leased.run(&Pays::charge(&provider), &message("k", 7)).await.unwrap();
    assert_eq!(verdict, Verdict::Handled(receipt()));
    provider.mood(Mood::Works);
    assert_eq!((provider.calls("k:charge"), effects(&env).await), (1, 1));
}

/// An owner that believes in its lease still, by its own clock, ends nothing that another has taken
/// over.
#[tokio::test]
async fn an_owner_ends_nothing_that_another_has_taken_over() {
    let (env, _, _) = setup().await;
    // A long lease, so that nothing is renewed meanwhile.
    let leased = Inbox::builder(env.pool(4))
        .scope(SCOPE)
        .single_tenant()
        .leased(Duration::from_secs(8))
        .build()
        .unwrap();
    let mut owners = Vec::new();
    for _ in 0..2 {
        let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let signals = (Arc::clone(&begun), Arc::clone(&go));
        let handler = Pays::new(move |_, _| {
            let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
            Box::pin(async move {
                begun.notify_one();
                go.notified().await;
                Ok(Outcome::done("receipt".to_owned()))
            })
        });
        expire(&env).await;
        let leased = leased.clone();
        let mut run = JoinSet::new();
        run.spawn(async move { leased.run(&handler, &message("k", 7)).await });
        timeout(LIMIT, signals.0.notified()).await.unwrap();
        owners.push((signals.1, run));
    }
    let (go, mut first) = owners.remove(0);
    go.notify_one();
    let verdict = timeout(LIMIT, first.join_next()).await.unwrap().unwrap().unwrap();
    assert!(!matches!(verdict, Ok(Verdict::Handled(_))), "{verdict:?}");
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (0, 0));
    let (go, mut second) = owners.remove(0);
    go.notify_one();
    let verdict = timeout(LIMIT, second.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    assert_eq!(effects(&env).await, 1);
}
