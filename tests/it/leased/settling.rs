//! Calls that may still arrive: when a provider that knows nothing of one is taken at its word.

use std::{sync::Arc, time::Duration};

use oncebox_inbox::{Inbox, Outcome, Verdict};

use crate::{
    inbox::support::{SCOPE, message},
    leased::support::{Mood, Pays, Provider, age_effects, expire, receipt, run_until_ended, setup},
};

/// One effect, `charge`, of which each call may take this time, and settles when it settles by
/// default.
fn charges_within(provider: &Arc<Provider>, timeout: Duration) -> Pays {
    let provider = Arc::clone(provider);
    Pays::new(move |cx, _| {
        let provider = Arc::clone(&provider);
        Box::pin(async move {
            let provider = &provider;
            let call = cx
                .effect("charge")
                .timeout(timeout)
                .call(|key| async move { provider.charge(key.as_str()).await })
                .reconcile(|key| async move { provider.find(key.as_str()).await });
            Ok(Outcome::done(call.await?))
        })
    })
}

/// A request may wait on a slow line; a provider that knows nothing of it yet is not called at
/// once.
#[tokio::test]
async fn an_absent_effect_is_called_again_only_when_it_has_settled() {
    let (env, leased, provider) = setup().await;
    let handler = charges_within(&provider, Duration::from_secs(30));
    provider.mood(Mood::LosesRequests);
    for lookups in 0..3 {
        let verdict = leased.run(&handler, &message("k", 7)).await.unwrap();
        assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");
        assert_eq!((provider.calls("k:charge"), provider.lookups()), (1, lookups));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    age_effects(&env).await;
    provider.mood(Mood::Works);
    assert_eq!(run_until_ended(&leased, &handler, &message("k", 7)).await, Verdict::Handled(receipt()));
    assert_eq!((provider.calls("k:charge"), provider.effects("k:charge")), (2, 1));
}

/// The wait for a call that may still arrive is no attempt: with two of them the message is not
/// given up before the provider may be asked again, and the pause is as long as the wait may last.
#[tokio::test]
async fn the_wait_until_a_call_has_settled_is_no_attempt() {
    let (env, _, provider) = setup().await;
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(20));
    let builder = Inbox::builder(env.pool(8)).scope(SCOPE).single_tenant().backoff(short, long);
    let leased = builder.attempts_max(2).leased(long).build().unwrap();
    let handler = charges_within(&provider, Duration::from_secs(30));
    provider.mood(Mood::LosesRequests);
    for early in [false, true, true, true] {
        let verdict = leased.run(&handler, &message("k", 7)).await.unwrap();
        let Verdict::Retry { after, reason } = verdict else { panic!("{verdict:?}") };
        assert_eq!(after == long, early, "{after:?}: {reason}");
        assert_eq!(reason.contains("a call settles within 60s"), early, "{reason}");
        expire(&env).await;
    }
    let attempts = "SELECT attempts FROM oncebox.inbox_claim";
    assert_eq!(env.pg().await.query_one(attempts, &[]).await.unwrap().get::<_, i32>(0), 1);
    age_effects(&env).await;
    provider.mood(Mood::Works);
    assert_eq!(leased.run(&handler, &message("k", 7)).await.unwrap(), Verdict::Handled(receipt()));
    assert_eq!((provider.calls("k:charge"), provider.effects("k:charge")), (2, 1));
}

/// A call that may take two minutes may take effect for longer than one that may take half of one.
#[tokio::test]
async fn an_effect_with_a_long_timeout_settles_later() {
    let (env, leased, provider) = setup().await;
    let handler = charges_within(&provider, Duration::from_secs(120));
    provider.mood(Mood::LosesRequests);
    for calls in [1, 1, 1, 2] {
        let verdict = leased.run(&handler, &message("k", 7)).await.unwrap();
        assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");
        assert_eq!(provider.calls("k:charge"), calls);
        // Twice it counts as under way still, then it is 2 min 30 s old.
        let older = "UPDATE oncebox.inbox_effect SET started_at = started_at - interval '50 s'";
        env.pg().await.batch_execute(older).await.unwrap();
    }
}

/// Each call has its own time to settle, also the second one.
#[tokio::test]
async fn an_effect_that_was_called_again_may_still_settle() {
    let (env, leased, provider) = setup().await;
    let handler = charges_within(&provider, Duration::from_secs(30));
    provider.mood(Mood::LosesRequests);
    for (round, calls) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
        if round % 2 == 1 {
            age_effects(&env).await;
        }
        let verdict = leased.run(&handler, &message("k", 7)).await.unwrap();
        assert!(matches!(verdict, Verdict::Retry { .. }), "{round}: {verdict:?}");
        assert_eq!(provider.calls("k:charge"), calls, "{round}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
