//! Owners whose claim another has taken over, and who believe in it still, by their own clock: each
//! of their statements is refused, and changes no row of the new owner.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::BoxFuture;
use oncebox_inbox::{CallError, Error, Inbox, Leased, LeasedContext, Outcome, Reconciled, Verdict};
use oncebox_tests::TestEnv;
use tokio::{sync::Notify, task::JoinSet, time::timeout};

use crate::{
    inbox::support::{LIMIT, SCOPE, count, dead_letters, effects, environment, message},
    leased::support::{Pays, Returned, expire},
};

type Ended = Result<Verdict<String>, Error>;

/// Where an owner stops, and goes on when it is told to.
#[derive(Clone, Default)]
struct Stop(Arc<(Notify, Notify)>);

impl Stop {
    async fn here(&self) {
        self.0.0.notify_one();
        self.0.1.notified().await;
    }

    async fn reached(&self) {
        timeout(LIMIT, self.0.0.notified()).await.expect("the owner gets there");
    }

    fn go(&self) {
        self.0.1.notify_one();
    }
}

/// Two owners of one claim.
struct Stolen {
    env: TestEnv,
    of_first: Stop,
    first: JoinSet<Ended>,
    of_second: Stop,
    second: JoinSet<Ended>,
    /// The rows of the claim and its effects, as the second owner found them.
    stands: String,
}

impl Stolen {
    /// The first owner runs `action` and stops in it, and there the claim is taken over. Leases are
    /// long, so that nothing is renewed.
    async fn new<F>(action: F) -> Self
    where
        F: for<'a> Fn(&'a LeasedContext<'a>, Stop) -> BoxFuture<'a, Returned> + Send + Sync + 'static,
    {
        let env = environment().await;
        let first = Inbox::builder(env.pool(4))
            .scope(SCOPE)
            .single_tenant()
            .leased(Duration::from_secs(8))
            .build()
            .unwrap();
        let second = first.clone();
        Self::between(env, first, second, action).await
    }

    async fn between<F>(env: TestEnv, first: Leased, second: Leased, action: F) -> Self
    where
        F: for<'a> Fn(&'a LeasedContext<'a>, Stop) -> BoxFuture<'a, Returned> + Send + Sync + 'static,
    {
        let (of_first, of_second) = (Stop::default(), Stop::default());
        let stop = of_first.clone();
        let first = start(first, Pays::new(move |cx, _| action(cx, stop.clone())));
        of_first.reached().await;
        assert_eq!(expire(&env).await, 1);
        let stop = of_second.clone();
        let ends = Pays::new(move |_, _| {
            let stop = stop.clone();
            Box::pin(async move {
                stop.here().await;
                Ok(Outcome::done("the second owner's".to_owned()))
            })
        });
        let second = start(second, ends);
        of_second.reached().await;
        let stands = stands(&env).await;
        Self { env, of_first, first, of_second, second, stands }
    }

    /// The first owner goes on, and changes nothing; then the second one ends the claim.
    async fn first_goes_on_in_vain(self) -> TestEnv {
        self.of_first.go();
        self.first_ends_in_vain().await
    }

    async fn first_ends_in_vain(mut self) -> TestEnv {
        let verdict = ended(&mut self.first).await;
        assert!(matches!(verdict, Ok(Verdict::InFlight)), "{verdict:?}");
        assert_eq!(stands(&self.env).await, self.stands, "the first owner changed what is the second one's");
        assert_eq!((effects(&self.env).await, count(&self.env, "oncebox.inbox").await), (0, 0));
        assert!(dead_letters(&self.env).await.is_empty());
        self.of_second.go();
        let verdict = ended(&mut self.second).await;
        assert!(matches!(verdict, Ok(Verdict::Handled(_))), "{verdict:?}");
        assert_eq!((effects(&self.env).await, count(&self.env, "oncebox.inbox_claim").await), (1, 0));
        self.env
    }
}

fn start(leased: Leased, handler: Pays) -> JoinSet<Ended> {
    let mut run = JoinSet::new();
    run.spawn(async move { leased.run(&handler, &message("k", 7)).await });
    run
}

async fn ended(run: &mut JoinSet<Ended>) -> Ended {
    timeout(LIMIT, run.join_next()).await.expect("it ends").unwrap().unwrap()
}

/// All rows of the claim and its effects.
async fn stands(env: &TestEnv) -> String {
    let sql = "SELECT concat((SELECT string_agg(c::text, ';') FROM oncebox.inbox_claim AS c), '|',
                             (SELECT string_agg(e::text, ';') FROM oncebox.inbox_effect AS e))";
    env.pg().await.query_one(sql, &[]).await.unwrap().get(0)
}

/// An effect is recorded before it begins, and that is refused: the provider hears nothing.
#[tokio::test]
async fn an_owner_begins_no_effect_after_another_has_taken_over() {
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let stolen = Stolen::new(move |cx, stop| {
        let calls = Arc::clone(&counted);
        Box::pin(async move {
            stop.here().await;
            let call = cx.effect("charge").call(|_| async move {
                *calls.lock().unwrap() += 1;
                Ok("receipt".to_owned())
            });
            Ok(Outcome::done(call.provider_idempotent().await?))
        })
    })
    .await;
    stolen.first_goes_on_in_vain().await;
    assert_eq!(*calls.lock().unwrap(), 0);
}

/// Any answer that comes after the claim was taken over. The new owner may be asking the provider
/// about that very effect: its record must neither end nor vanish beneath it.
#[tokio::test]
async fn an_owner_ends_no_effect_after_another_has_taken_over() {
    type Answer = fn() -> Result<String, CallError>;
    let answers: [(&str, Answer); 3] = [
        ("happened", || Ok("receipt".to_owned())),
        ("rejected", || Err(CallError::rejected("card declined"))),
        ("failed", || Err(CallError::failed("too many requests"))),
    ];
    for (what, answer) in answers {
        let stolen = Stolen::new(move |cx, stop| {
            Box::pin(async move {
                let call = cx.effect("charge").call(|_| async move {
                    stop.here().await;
                    answer()
                });
                Ok(Outcome::done(call.provider_idempotent().await?))
            })
        })
        .await;
        assert!(stolen.stands.contains("charge,started"), "{what}: {}", stolen.stands);
        stolen.first_goes_on_in_vain().await;
    }
}

/// It had asked the provider about an effect of unknown outcome, and would call it again.
#[tokio::test]
async fn an_owner_calls_nothing_again_after_another_has_taken_over() {
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let env = environment().await;
    let leased = crate::leased::support::builder(&env, Duration::from_secs(30)).build().unwrap();
    // An earlier run, whose call got lost.
    let lost = Pays::new(|cx, _| {
        Box::pin(async move {
            let lost = std::io::Error::other("connection reset");
            let call = cx.effect("charge").call(|_| async { Err::<String, _>(lost.into()) });
            Ok(Outcome::done(call.provider_idempotent().await?))
        })
    });
    let verdict = leased.run(&lost, &message("k", 7)).await.unwrap();
    assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");
    expire(&env).await;
    let stolen = Stolen::between(env, leased.clone(), leased, move |cx, stop| {
        let calls = Arc::clone(&counted);
        Box::pin(async move {
            let receipt = cx
                .effect("charge")
                .settles_within(Duration::ZERO)
                .call(|_| async move {
                    *calls.lock().unwrap() += 1;
                    Ok("receipt".to_owned())
                })
                .reconcile(|_| async move {
                    stop.here().await;
                    Ok(Reconciled::Absent)
                })
                .await?;
            Ok(Outcome::done(receipt))
        })
    })
    .await;
    stolen.first_goes_on_in_vain().await;
    assert_eq!(*calls.lock().unwrap(), 0);
}

/// Its writes in the midst of a run are rolled back.
#[tokio::test]
async fn an_owner_writes_nothing_after_another_has_taken_over() {
    let stolen = Stolen::new(|cx, stop| {
        Box::pin(async move {
            let reserved: i64 = cx
                .write("reserve", |transaction| {
                    Box::pin(async move {
                        // Within its transaction, which it opened as the owner.
                        stop.here().await;
                        let sql = "INSERT INTO effect (key, n) VALUES ('k', 0) RETURNING n";
                        Ok(transaction.query_one(sql, &[]).await?.get(0))
                    })
                })
                .await?;
            Ok(Outcome::done(reserved.to_string()))
        })
    })
    .await;
    stolen.first_goes_on_in_vain().await;
}

/// It failed, asks to run again, or gives up: the key is not its own to leave to others, or to
/// bury.
#[tokio::test]
async fn an_owner_leaves_and_buries_no_claim_that_another_has_taken_over() {
    type End = fn() -> Returned;
    let ends: [End; 3] = [
        || Err("no luck".into()),
        || Ok(Outcome::retry(Duration::ZERO)),
        || Ok(Outcome::dead("no such account")),
    ];
    for end in ends {
        let stolen = Stolen::new(move |_, stop| {
            Box::pin(async move {
                stop.here().await;
                end()
            })
        })
        .await;
        stolen.first_goes_on_in_vain().await;
    }
}

/// Its renewal is refused, which ends its run wherever that waits; the new owner's lease stays as
/// it is.
#[tokio::test]
async fn an_owner_renews_no_lease_that_another_has_taken_over() {
    let env = environment().await;
    let builder =
        |lease| Inbox::builder(env.pool(4)).scope(SCOPE).single_tenant().leased(lease).build().unwrap();
    // Renewed for the first time after three seconds: time enough to take over before.
    let first = builder(Duration::from_secs(9));
    let second = builder(Duration::from_secs(3600));
    let counts = first.clone();
    let stolen = Stolen::between(env, first, second, |_, stop| {
        Box::pin(async move {
            stop.here().await;
            Ok(Outcome::done("the first owner's".to_owned()))
        })
    })
    .await;
    // It is not told to go on.
    stolen.first_ends_in_vain().await;
    assert_eq!(counts.inbox().counts().leases.lost, 1);
}
