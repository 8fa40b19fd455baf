//! Leased mode: effects outside the database, once per key. Which test holds which rule (R) and
//! trap (X):

use std::{sync::Arc, time::Duration};

use oncebox_inbox::{Answer, Inbox, Outcome, Received, Verdict};
use oncebox_tests::eventually;
use tokio::{sync::Notify, task::JoinSet, time::timeout};

use crate::{
    inbox::support::{LIMIT, SCOPE, count, dead_letters, effects, environment, message, replayed},
    leased::support::{
        LEASE, Mood, Pays, Provider, age_effects, builder, claim, expire, receipt, run_until_ended, setup,
    },
};

/// With the derived key, and nothing is left of the claim.
#[tokio::test]
async fn an_effect_its_reply_and_its_row_happen_once() {
    let (env, leased, provider) = setup().await;
    let handler = Pays::charge(&provider);
    for delivery in 1..=5 {
        let verdict = leased.run(&handler, &message("k", 7).deliveries(delivery)).await.unwrap();
        match delivery {
            1 => assert_eq!(verdict, Verdict::Handled(receipt())),
            _ => assert_eq!(replayed(&verdict), receipt()),
        }
    }
    assert_eq!((handler.runs(), provider.calls("k:charge"), effects(&env).await), (1, 1, 1));
    for table in ["oncebox.inbox_claim", "oncebox.inbox_effect"] {
        assert_eq!(count(&env, table).await, 0, "{table}");
    }
    let counts = leased.inbox().counts();
    assert_eq!((counts.handled, counts.replayed), (1, 4));
    assert_eq!(counts.leases, oncebox_inbox::LeaseCounts::default());
}

#[tokio::test]
async fn a_no_is_replayed_as_the_same_no() {
    let (env, leased, _) = setup().await;
    let handler = Pays::new(|_, _| Box::pin(async { Ok(Outcome::reject("no".to_owned())) }));
    let no = Answer::Rejected("no".to_owned());
    assert_eq!(leased.run(&handler, &message("k", 7)).await.unwrap(), Verdict::Handled(no.clone()));
    assert_eq!(replayed(&leased.run(&handler, &message("k", 7)).await.unwrap()), no);
    assert_eq!((handler.runs(), effects(&env).await), (1, 1));
}

/// The pool has one connection, and the provider is slow.
#[tokio::test]
async fn a_copy_in_flight_is_answered_at_once_and_without_a_connection_held() {
    let env = environment().await;
    let pool = env.pool(1);
    let leased = Inbox::builder(pool.clone())
        .scope(SCOPE)
        .single_tenant()
        .leased(Duration::from_secs(8))
        .build()
        .unwrap();
    let provider = Arc::new(Provider::default());
    provider.mood(Mood::HoldsAnswers);
    let handler = Pays::charge(&provider);
    let mut tasks = JoinSet::new();
    let (first, first_handler) = (leased.clone(), handler.clone());
    tasks.spawn(async move { first.run(&first_handler, &message("k", 7)).await });
    provider.holding.notified().await;

    let copy = timeout(Duration::from_secs(5), leased.run(&handler, &message("k", 7))).await;
    assert_eq!(copy.expect("no waiting").unwrap(), Verdict::InFlight);
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL \
                AND pid <> pg_backend_pid()";
    let client = pool.get().await.unwrap();
    assert_eq!(client.query_one(open, &[]).await.unwrap().get::<_, i64>(0), 0, "no transaction is open");
    drop(client);
    let in_flight = leased.in_flight().await.unwrap();
    assert_eq!((in_flight.running, in_flight.failed, in_flight.unknown), (1, 0, 0));
    assert!(in_flight.oldest < LIMIT, "{in_flight:?}");
    provider.answer.notify_one();
    assert_eq!(tasks.join_next().await.unwrap().unwrap().unwrap(), Verdict::Handled(receipt()));
    assert_eq!((provider.calls("k:charge"), leased.inbox().counts().in_flight), (1, 1));
    assert_eq!(leased.in_flight().await.unwrap(), oncebox_inbox::InFlight::default());
}

#[tokio::test]
async fn fifty_copies_at_once_have_one_effect() {
    let (env, _, provider) = setup().await;
    // They share eight connections, on which a short lease might not be renewed in time.
    let leased = builder(&env, Duration::from_secs(30)).build().unwrap();
    let handler = Pays::charge(&provider);
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let (leased, handler) = (leased.clone(), handler.clone());
        tasks.spawn(async move { run_until_ended(&leased, &handler, &message("k", 7)).await });
    }
    let verdicts = tasks.join_all().await;
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Handled(receipt())).count(), 1);
    assert_eq!((handler.runs(), provider.calls("k:charge"), effects(&env).await), (1, 1, 1));
}

/// While it is in flight, after it failed, and after it ended.
#[tokio::test]
async fn the_same_key_with_another_payload_is_refused_whatever_became_of_it() {
    let (env, leased, provider) = setup().await;
    let handler = Pays::charge(&provider);
    provider.mood(Mood::Fails);
    leased.run(&handler, &message("k", 7)).await.unwrap();
    assert_eq!(leased.run(&handler, &message("k", 8)).await.unwrap(), Verdict::Mismatch);
    provider.mood(Mood::Works);
    assert_eq!(run_until_ended(&leased, &handler, &message("k", 7)).await, Verdict::Handled(receipt()));
    assert_eq!(leased.run(&handler, &message("k", 8)).await.unwrap(), Verdict::Mismatch);
    assert_eq!(replayed(&leased.run(&handler, &message("k", 7)).await.unwrap()), receipt());
    assert_eq!((handler.runs(), leased.inbox().counts().mismatched, effects(&env).await), (2, 2, 1));
    assert_eq!(dead_letters(&env).await, ["the key was used before with another payload"; 2]);
}

/// The call takes several leases.
#[tokio::test]
async fn a_slow_handler_keeps_its_lease() {
    let (env, leased, provider) = setup().await;
    provider.mood(Mood::HoldsAnswers);
    let handler = Pays::charge(&provider);
    let mut tasks = JoinSet::new();
    let (first, first_handler) = (leased.clone(), handler.clone());
    tasks.spawn(async move { first.run(&first_handler, &message("k", 7)).await });
    provider.holding.notified().await;
    let until = "SELECT extract(epoch FROM lease_until)::float8 FROM oncebox.inbox_claim";
    let pg = env.pg().await;
    let read = async || pg.query_one(until, &[]).await.unwrap().get::<_, f64>(0);
    let begun = read().await;
    eventually("the lease is renewed for long", LIMIT, async || {
        let copy = leased.run(&handler, &message("k", 7)).await.unwrap();
        assert_eq!(copy, Verdict::InFlight);
        (read().await > begun + LEASE.as_secs_f64() * 3.0).then_some(())
    })
    .await;
    provider.answer.notify_one();
    assert_eq!(tasks.join_next().await.unwrap().unwrap().unwrap(), Verdict::Handled(receipt()));
    assert_eq!((handler.runs(), leased.inbox().counts().leases.taken_over), (1, 0));
}

/// A hard cap, however well the lease is renewed.
#[tokio::test]
async fn a_handler_that_takes_too_long_is_cut_off_with_its_call_unknown() {
    let env = environment().await;
    let inbox = Inbox::builder(env.pool(4)).scope(SCOPE).single_tenant();
    let leased =
        inbox.handler_timeout(Duration::from_millis(700)).leased(Duration::from_secs(8)).build().unwrap();
    let provider = Arc::new(Provider::default());
    provider.mood(Mood::HoldsAnswers);
    let verdict = leased.run(&Pays::charge(&provider), &message("k", 7)).await.unwrap();
    let Verdict::Retry { reason, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(reason, "the handler took longer than 700ms; the outcome of effect \"charge\" is unknown");
    assert_eq!(claim(&env).await.unwrap().0, "unknown");
}

#[tokio::test]
async fn a_panic_in_the_midst_of_a_call_is_an_unknown_outcome() {
    let (env, leased, provider) = setup().await;
    let panicking = Pays::new(|cx, _| {
        Box::pin(async move {
            let call = cx.effect("charge").call(|_| async { panic!("on purpose") });
            Ok(Outcome::done(call.provider_idempotent().await?))
        })
    });
    let verdict = leased.run(&panicking, &message("k", 7)).await.unwrap();
    let Verdict::Retry { reason, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(reason, "the handler panicked: on purpose; the outcome of effect \"charge\" is unknown");
    assert_eq!(claim(&env).await.unwrap().0, "unknown");
    age_effects(&env).await;
    assert_eq!(
        run_until_ended(&leased, &Pays::charge(&provider), &message("k", 7)).await,
        Verdict::Handled(receipt())
    );
    let finish = Pays::charge(&provider).finishing(|_| Box::pin(async { panic!("at the end") }));
    let verdict = leased.run(&finish, &message("end", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("at the end")),
        "{verdict:?}"
    );
    assert_eq!(
        (run_until_ended(&leased, &Pays::charge(&provider), &message("end", 7)).await, effects(&env).await),
        (Verdict::Handled(Answer::Done("receipt of end:charge".to_owned())), 2)
    );
    assert_eq!(provider.calls("end:charge"), 1, "remembered from the run whose end panicked");
}

/// Others leave it alone until its pause is over, by the database's clock.
#[tokio::test]
async fn a_failed_key_rests_for_its_pause() {
    let env = environment().await;
    let long = Duration::from_secs(60);
    let inbox = Inbox::builder(env.pool(4)).scope(SCOPE).single_tenant().backoff(long, long);
    let leased = inbox.leased(Duration::from_secs(8)).build().unwrap();
    let failing = Pays::new(|_, _| Box::pin(async { Err("no luck".into()) }));
    let verdict = leased.run(&failing, &message("k", 7)).await.unwrap();
    assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");
    for _ in 0..3 {
        assert_eq!(leased.run(&failing, &message("k", 7)).await.unwrap(), Verdict::InFlight);
    }
    assert_eq!(failing.runs(), 1);
    expire(&env).await;
    assert!(matches!(leased.run(&failing, &message("k", 7)).await.unwrap(), Verdict::Retry { .. }));
    assert_eq!(failing.runs(), 2);
}

/// A handler that ends its process leaves a claim that counts.
#[tokio::test]
async fn attempts_that_leave_no_trace_end_as_dead() {
    let env = environment().await;
    let inbox = Inbox::builder(env.pool(4)).scope(SCOPE).single_tenant();
    let leased = inbox.attempts_max(3).leased(Duration::from_secs(8)).build().unwrap();
    let entered = Arc::new(Notify::new());
    let deadly = Pays::new({
        let entered = Arc::clone(&entered);
        move |_, _| {
            entered.notify_one();
            Box::pin(std::future::pending())
        }
    });
    for _ in 0..3 {
        // Killed here, without a trace but the claim; the broker's own count is lost as well.
        let received = message("k", 7);
        tokio::select! {
            ended = leased.run(&deadly, &received) => panic!("{ended:?}"),
            () = entered.notified() => {}
        }
        assert_eq!(expire(&env).await, 1);
    }
    let verdict = leased.run(&deadly, &message("k", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Dead { reason } if reason.contains("end the process")),
        "{verdict:?}"
    );
    assert_eq!((deadly.runs(), dead_letters(&env).await.len()), (3, 1));
    assert!(matches!(leased.run(&deadly, &message("k", 7)).await.unwrap(), Verdict::Dead { .. }));
    assert_eq!((deadly.runs(), dead_letters(&env).await.len()), (3, 1), "dead is dead");
}

/// And the text of an error is bounded.
#[tokio::test]
async fn reasons_have_no_payload_and_an_end() {
    let (env, leased, provider) = setup().await;
    let garbage = Received::new("s.t", "{\"n\":\"secret\"}").header("Idempotency-Key", "garbage");
    let verdict = leased.run(&Pays::charge(&provider), &garbage).await.unwrap();
    assert!(matches!(&verdict, Verdict::Dead { reason } if !reason.contains("secret")), "{verdict:?}");
    let nameless = leased.run(&Pays::charge(&provider), &Received::new("s.t", "{}")).await.unwrap();
    assert!(matches!(nameless, Verdict::Dead { .. }), "{nameless:?}");
    let verbose = Pays::new(|cx, _| {
        Box::pin(async move {
            let call = cx
                .effect("charge")
                .call(|_| async { Err::<(), _>(format!("x\0{}", "ä".repeat(9000)).into()) });
            call.provider_idempotent().await?;
            Ok(Outcome::done(String::new()))
        })
    });
    let verdict = leased.run(&verbose, &message("k", 7)).await.unwrap();
    assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");
    assert!(claim(&env).await.unwrap().1.unwrap().len() <= 1000);
    let large = Pays::new(|cx, _| {
        Box::pin(async move {
            let call = cx.effect("charge").call(|_| async { Ok("x".repeat(1 << 20)) });
            Ok(Outcome::done(call.provider_idempotent().await?))
        })
    });
    let verdict = leased.run(&large, &message("large", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("the limit is 1048576")),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn all_mistakes_are_reported_at_once() {
    let env = environment().await;
    let built = builder(&env, Duration::ZERO).build();
    assert!(built.unwrap_err().to_string().contains("lease is not 100 milliseconds to 1 hour"));
    let built = Inbox::builder(env.pool(1))
        .scope(SCOPE)
        .single_tenant()
        .shadow()
        .leased(Duration::from_secs(8))
        .build();
    assert!(built.unwrap_err().to_string().contains("shadow() is for handlers in a transaction"));
    let built = Inbox::builder(env.pool(1)).attempts_max(0).leased(LIMIT * 1000).build();
    let text = built.unwrap_err().to_string();
    for part in ["lease is not", "scope", "single_tenant", "attempts_max"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

/// After two processes that died with their messages, those that may be to blame run one at a time:
/// the others are not counted.
#[tokio::test]
async fn what_two_dead_processes_had_is_taken_over_one_by_one() {
    let (env, leased, _) = setup().await;
    let entered = Arc::new(Notify::new());
    let hangs = Pays::new({
        let entered = Arc::clone(&entered);
        move |_, _| {
            entered.notify_one();
            Box::pin(std::future::pending())
        }
    });
    let (first, second) = (message("a", 7), message("b", 7));
    for _ in 0..2 {
        for received in [&first, &second] {
            tokio::select! {
                ended = leased.run(&hangs, received) => panic!("{ended:?}"),
                () = entered.notified() => {}
            }
        }
        assert_eq!(expire(&env).await, 2);
    }
    tokio::select! {
        ended = leased.run(&hangs, &first) => panic!("{ended:?}"),
        verdict = async {
            entered.notified().await;
            leased.run(&hangs, &second).await
        } => assert_eq!(verdict.unwrap(), Verdict::InFlight),
    }
    let sql = "SELECT attempts FROM oncebox.inbox_claim WHERE key = $1";
    for (key, attempts) in [("a", 3), ("b", 2)] {
        let found: i32 = env.pg().await.query_one(sql, &[&key]).await.unwrap().get(0);
        assert_eq!(found, attempts, "{key}");
    }
}
