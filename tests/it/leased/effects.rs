//! Effects under a lease: their records decide whether they are called again.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use oncebox_inbox::{Answer, EffectError, HandlerError, Lease, Outcome, Verdict, metrics_text};
use oncebox_schema::Key;
use oncebox_tests::eventually;

use crate::{
    inbox::support::{LIMIT, builder, count, dead_letters, effects, message},
    leased::support::{Mood, Pays, charge, claim, claimed, receipt, run_until_ended, setup},
};

/// Neither a retry that charges again, nor a failure for a charge that happened.
#[tokio::test]
async fn a_lost_answer_is_reconciled_not_repeated() {
    let (env, leased, provider) = setup().await;
    let handler = Pays::charge(&provider);
    provider.mood(Mood::LosesAnswers);
    let verdict = leased.run(&handler, &message("k", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("is unknown")),
        "{verdict:?}"
    );
    let (state, reason) = claim(&env).await.unwrap();
    assert_eq!(state, "unknown");
    assert_eq!(reason.unwrap(), "the outcome of effect \"charge\" is unknown: connection reset");
    assert_eq!(leased.in_flight().await.unwrap().unknown, 1);
    // Even a provider that would charge again is not asked to.
    provider.mood(Mood::Works);
    assert_eq!(run_until_ended(&leased, &handler, &message("k", 7)).await, Verdict::Handled(receipt()));
    assert_eq!((provider.calls("k:charge"), provider.lookups(), effects(&env).await), (1, 1, 1));
    let leases = leased.inbox().counts().leases;
    assert_eq!((leases.unknown, leases.reconciled, leases.taken_over), (1, 1, 0));
    let text = metrics_text([leased.inbox()]);
    let line = "oncebox_inbox_leases_total{scope=\"tests:effect\",event=\"reconciled\"} 1";
    assert!(text.lines().any(|other| other == line), "{text}");
}

/// A provider that takes the key as its own is called again with the same one, and not asked.
#[tokio::test]
async fn an_idempotent_provider_is_called_again_with_the_same_key() {
    let (env, leased, provider) = setup().await;
    let handler = {
        let provider = Arc::clone(&provider);
        Pays::new(move |cx, _| {
            let provider = Arc::clone(&provider);
            Box::pin(async move {
                let provider = &provider;
                let effect = cx.effect("charge");
                let call = effect.call(|key| async move { provider.charge(key.as_str()).await });
                Ok(Outcome::done(call.provider_idempotent().await?))
            })
        })
    };
    provider.mood(Mood::LosesAnswers);
    leased.run(&handler, &message("k", 7)).await.unwrap();
    provider.mood(Mood::Works);
    assert_eq!(run_until_ended(&leased, &handler, &message("k", 7)).await, Verdict::Handled(receipt()));
    assert_eq!((provider.calls("k:charge"), provider.lookups(), effects(&env).await), (2, 0, 1));
}

/// A call that failed says nothing about an earlier call whose result is unknown. First a timeout,
/// then a 429.
#[tokio::test]
async fn a_failed_call_leaves_an_earlier_one_unknown() {
    let (env, leased, provider) = setup().await;
    let handler = {
        let provider = Arc::clone(&provider);
        Pays::new(move |cx, _| {
            let provider = Arc::clone(&provider);
            Box::pin(async move {
                let provider = &provider;
                let call = |key: Key| async move { provider.charge(key.as_str()).await };
                let charged = cx.effect("charge").call(call).provider_idempotent().await;
                // Within a run as well.
                if charged.is_err() {
                    provider.mood(Mood::Fails);
                    cx.effect("charge").call(call).provider_idempotent().await?;
                }
                Ok(Outcome::done(charged?))
            })
        })
    };
    provider.mood(Mood::LosesAnswers);
    for calls in [2, 4] {
        let verdict = eventually("it runs", LIMIT, async || {
            Some(leased.run(&handler, &message("k", 7)).await.unwrap())
                .filter(|verdict| *verdict != Verdict::InFlight)
        })
        .await;
        assert!(
            matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("is unknown")),
            "{verdict:?}"
        );
        assert_eq!((claim(&env).await.unwrap().0.as_str(), provider.calls("k:charge")), ("unknown", calls));
        assert_eq!(count(&env, "oncebox.inbox_effect WHERE state = 'started'").await, 1);
    }
    // A step that asks the provider finds that the effect happened, and does not call again.
    provider.mood(Mood::Works);
    let asking = Pays::charge(&provider);
    assert_eq!(run_until_ended(&leased, &asking, &message("k", 7)).await, Verdict::Handled(receipt()));
    assert_eq!((provider.calls("k:charge"), provider.lookups(), effects(&env).await), (4, 1, 1));
}

#[tokio::test]
async fn what_failed_for_sure_is_called_again_without_asking() {
    let (env, leased, provider) = setup().await;
    let handler = Pays::charge(&provider);
    provider.mood(Mood::Fails);
    leased.run(&handler, &message("k", 7)).await.unwrap();
    let (state, reason) = claim(&env).await.unwrap();
    assert_eq!((&*state, &*reason.unwrap()), ("failed", "effect \"charge\" failed: out of order"));
    assert_eq!(count(&env, "oncebox.inbox_effect").await, 0);
    provider.mood(Mood::Works);
    assert_eq!(run_until_ended(&leased, &handler, &message("k", 7)).await, Verdict::Handled(receipt()));
    assert_eq!((provider.calls("k:charge"), provider.lookups()), (2, 0));
}

/// Given up when the handler passes it on; the handler may also make a no of it.
#[tokio::test]
async fn what_a_provider_rejects_is_given_up_for_good() {
    let (env, leased, provider) = setup().await;
    provider.mood(Mood::Declines);
    let handler = Pays::charge(&provider);
    for _ in 0..2 {
        let verdict = leased.run(&handler, &message("k", 7)).await.unwrap();
        let reason = "effect \"charge\" was rejected: card declined".to_owned();
        assert_eq!(verdict, Verdict::Dead { reason });
    }
    let polite = {
        let provider = Arc::clone(&provider);
        Pays::new(move |cx, _| {
            let provider = Arc::clone(&provider);
            Box::pin(async move {
                let error = charge(cx, &provider, "charge").await.unwrap_err().to_string();
                // The first run dies here, after the no is remembered.
                if cx.attempts() == 1 {
                    return Err(HandlerError::message("the process is tired"));
                }
                Ok(Outcome::reject(error))
            })
        })
    };
    let verdict = run_until_ended(&leased, &polite, &message("polite", 7)).await;
    let no = "effect \"charge\" was rejected: card declined".to_owned();
    assert_eq!(verdict, Verdict::Handled(Answer::Rejected(no)));
    assert_eq!((provider.calls("k:charge"), provider.calls("polite:charge")), (1, 1));
    assert_eq!(dead_letters(&env).await.len(), 1);
}

/// The handler says done, but an effect may or may not have happened.
#[tokio::test]
async fn a_run_with_an_unknown_effect_never_ends_well() {
    let (env, leased, provider) = setup().await;
    provider.mood(Mood::LosesRequests);
    let careless = {
        let provider = Arc::clone(&provider);
        Pays::new(move |cx, _| {
            let provider = Arc::clone(&provider);
            Box::pin(async move {
                let _ = charge(cx, &provider, "charge").await;
                Ok(Outcome::done("fine".to_owned()))
            })
        })
    };
    for _ in 0..3 {
        let verdict = leased.run(&careless, &message("k", 7)).await.unwrap();
        assert!(
            matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("is unknown")),
            "{verdict:?}"
        );
        assert_eq!((claim(&env).await.unwrap().0, effects(&env).await), ("unknown".to_owned(), 0));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // Given up in the end; the dead letter says which question a person has to answer, and the
    // record stays.
    claimed(&env, 19).await;
    let dead = leased.run(&careless, &message("k", 7)).await.unwrap();
    assert!(
        matches!(&dead, Verdict::Dead { reason } if reason.contains("\"charge\" is unknown")),
        "{dead:?}"
    );
    assert_eq!((count(&env, "oncebox.inbox_claim").await, count(&env, "oncebox.inbox_effect").await), (0, 1));
}

/// An operator has a dead message run again: its effects are not forgotten.
#[tokio::test]
async fn a_dead_message_that_runs_again_remembers_its_effects() {
    let (env, leased, provider) = setup().await;
    let handler = |fails: bool| {
        let provider = Arc::clone(&provider);
        Pays::new(move |cx, _| {
            let provider = Arc::clone(&provider);
            Box::pin(async move {
                let receipt = charge(cx, &provider, "charge").await?;
                Ok(if fails { Outcome::dead("a mistake of ours") } else { Outcome::done(receipt) })
            })
        })
    };
    let dead = leased.run(&handler(true), &message("k", 7)).await.unwrap();
    assert!(matches!(dead, Verdict::Dead { .. }), "{dead:?}");
    env.pg().await.execute("DELETE FROM oncebox.inbox", &[]).await.unwrap();
    assert_eq!(leased.run(&handler(false), &message("k", 7)).await.unwrap(), Verdict::Handled(receipt()));
    assert_eq!(provider.calls("k:charge"), 1);
}

/// The same for an effect that may have happened. The key's claims are counted from one again, and
/// the earlier owner's record must not look like the new one's, who knows that it has called
/// nothing yet.
#[tokio::test]
async fn a_dead_message_that_runs_again_reconciles_what_may_have_happened() {
    let (env, leased, provider) = setup().await;
    let handler = Pays::charge(&provider);
    provider.mood(Mood::LosesAnswers);
    let once = builder(&env).attempts_max(1).leased(Duration::from_secs(8)).build().unwrap();
    let dead = once.run(&handler, &message("k", 7)).await.unwrap();
    assert!(
        matches!(&dead, Verdict::Dead { reason } if reason.contains("\"charge\" is unknown")),
        "{dead:?}"
    );
    env.pg().await.execute("DELETE FROM oncebox.inbox", &[]).await.unwrap();
    provider.mood(Mood::Works);
    assert_eq!(leased.run(&handler, &message("k", 7)).await.unwrap(), Verdict::Handled(receipt()));
    assert_eq!((provider.calls("k:charge"), provider.effects("k:charge"), provider.lookups()), (1, 1, 1));
}

#[tokio::test]
async fn a_step_is_used_once_in_a_run() {
    let (_env, leased, provider) = setup().await;
    let handler = {
        let provider = Arc::clone(&provider);
        Pays::new(move |cx, _| {
            let provider = Arc::clone(&provider);
            Box::pin(async move {
                charge(cx, &provider, "charge").await?;
                Ok(Outcome::done(charge(cx, &provider, "charge").await?))
            })
        })
    };
    let verdict = leased.run(&handler, &message("k", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("name of its own")),
        "{verdict:?}"
    );
    let bad = Pays::new(move |cx, _| {
        Box::pin(async move {
            let call = cx.effect("No such: step").call(|_| async { Ok(1) });
            let refused = call.provider_idempotent().await.unwrap_err();
            assert!(matches!(refused, EffectError::Refused { .. }), "{refused}");
            Err(refused.into())
        })
    });
    let verdict = leased.run(&bad, &message("bad", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("No such: step")),
        "{verdict:?}"
    );
    assert_eq!(provider.calls("k:charge"), 1);
}

/// A write in the midst of a run is remembered like an effect.
#[tokio::test]
async fn a_write_in_the_midst_happens_once() {
    let (env, leased, _) = setup().await;
    let handler = Pays::new(|cx, _| {
        Box::pin(async move {
            let id: i64 = cx
                .write("reserve", |transaction| {
                    Box::pin(async move {
                        let sql = "INSERT INTO effect (key, n) VALUES ('reserve', 1) RETURNING id";
                        Ok(transaction.query_one(sql, &[]).await?.get(0))
                    })
                })
                .await?;
            if cx.attempts() < 3 {
                return Err(HandlerError::message("after the write"));
            }
            Ok(Outcome::done(format!("reservation {id}")))
        })
    });
    let verdict = run_until_ended(&leased, &handler, &message("k", 7)).await;
    assert_eq!(verdict, Verdict::Handled(Answer::Done("reservation 1".to_owned())));
    assert_eq!((handler.runs(), effects(&env).await), (3, 2), "the reservation, and the row of the end");
}

/// A copy of the lease that outlives its run begins nothing, though no other process has claimed
/// the key.
#[tokio::test]
async fn a_lease_ends_with_its_run() {
    let (_env, leased, provider) = setup().await;
    let kept = Arc::new(Mutex::new(None));
    let keeping = Pays::new({
        let kept = Arc::clone(&kept);
        move |cx, _| {
            *kept.lock().unwrap() = Some(Lease::clone(cx));
            Box::pin(async { Err(HandlerError::message("not today")) })
        }
    });
    leased.run(&keeping, &message("k", 7)).await.unwrap();
    let lease: Lease = kept.lock().unwrap().take().unwrap();
    let late = lease.effect("charge").call(|key| {
        let provider = &provider;
        async move { provider.charge(key.as_str()).await }
    });
    let refused = late.provider_idempotent().await.unwrap_err();
    assert!(matches!(refused, EffectError::LeaseLost), "{refused}");
    assert_eq!(provider.calls("k:charge"), 0);
}
