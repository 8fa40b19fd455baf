//! One message through the inbox. Which test holds which rule (R) and trap (X) of the idempotency
//! notes:

use std::{sync::Arc, time::Duration};

use oncebox_inbox::{Answer, Error, Inbox, KeySource, Received, Verdict};
use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::{sync::Notify, task::JoinSet, time::timeout};

use crate::inbox::support::{
    Does, LIMIT, SCOPE, Silent, builder, count, dead_letters, effects, environment, inbox, insert, message,
    replayed, transactions,
};

fn done(reply: &str) -> Answer<String> {
    Answer::Done(reply.to_owned())
}

#[tokio::test]
async fn ten_deliveries_have_one_effect_and_one_reply() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    for delivery in 1..=10 {
        let verdict = inbox.run(&handler, &message("k", 7).deliveries(delivery)).await.unwrap();
        match delivery {
            1 => assert_eq!(verdict, Verdict::Handled(done("effect 1"))),
            _ => assert_eq!(replayed(&verdict), done("effect 1")),
        }
    }
    assert_eq!((handler.runs(), effects(&env).await), (1, 1));
    assert_eq!((inbox.counts().handled, inbox.counts().replayed), (1, 9));
}

/// The second copy neither runs nor waits, and learns of the outcome later.
#[tokio::test]
async fn a_copy_of_a_message_in_flight_is_answered_at_once() {
    let env = environment().await;
    let inbox = inbox(&env);
    let (handler, entered, leave) = Does::effect_that_waits();
    let mut first = JoinSet::new();
    first.spawn({
        let (inbox, handler) = (inbox.clone(), handler.clone());
        async move { inbox.run(&handler, &message("k", 7)).await.unwrap() }
    });
    entered.notified().await;
    let second = timeout(Duration::from_secs(5), inbox.run(&handler, &message("k", 7).deliveries(2))).await;
    assert_eq!(second.expect("no waiting").unwrap(), Verdict::InFlight);
    leave.notify_one();
    assert_eq!(first.join_next().await.unwrap().unwrap(), Verdict::Handled(done("effect 1")));
    assert_eq!(replayed(&inbox.run(&handler, &message("k", 7)).await.unwrap()), done("effect 1"));
    assert_eq!((handler.runs(), inbox.counts().in_flight), (1, 1));
}

#[tokio::test]
async fn fifty_copies_at_once_have_one_effect() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    let mut copies = JoinSet::new();
    for _ in 0..50 {
        let (inbox, handler) = (inbox.clone(), handler.clone());
        copies.spawn(async move { inbox.run(&handler, &message("k", 7)).await.unwrap() });
    }
    let verdicts = copies.join_all().await;
    assert_eq!(verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Handled(_))).count(), 1);
    assert!(
        verdicts.iter().all(|v| matches!(v, Verdict::Handled(_) | Verdict::Replayed(_) | Verdict::InFlight))
    );
    assert_eq!((handler.runs(), effects(&env).await), (1, 1));
}

/// The process dies after the effect and before the commit; the connection is used again.
#[tokio::test]
async fn a_crash_before_the_commit_leaves_nothing() {
    let env = environment().await;
    let inbox = Inbox::builder(env.pool(1)).scope(SCOPE).single_tenant().build().unwrap();
    let entered = Arc::new(Notify::new());
    let stuck = Does::new({
        let entered = Arc::clone(&entered);
        move |cx, job| {
            let entered = Arc::clone(&entered);
            Box::pin(async move {
                insert(cx, &job).await?;
                entered.notify_one();
                std::future::pending().await
            })
        }
    });
    let mut process = JoinSet::new();
    process.spawn({
        let inbox = inbox.clone();
        async move { inbox.run(&stuck, &message("k", 7)).await.map(drop) }
    });
    entered.notified().await;
    process.shutdown().await;
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (0, 0));
    // PostgreSQL may not have ended the session yet, which holds the key.
    eventually("the key is free", LIMIT, async || {
        let verdict = inbox.run(&Does::effect(), &message("k", 7)).await;
        matches!(verdict, Ok(Verdict::Handled(_))).then_some(())
    })
    .await;
    assert_eq!(effects(&env).await, 1);
}

async fn through_proxy(env: &TestEnv) -> (Proxy, Inbox) {
    let (proxy, pool) = env.pool_through_proxy(2).await;
    (proxy, Inbox::builder(pool).scope(SCOPE).single_tenant().build().unwrap())
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_unknown_and_the_next_run_finds_out() {
    let env = environment().await;
    let (proxy, inbox) = through_proxy(&env).await;
    let handler = Silent(Does::effect());
    for (key, arrives) in [("arrives", true), ("does-not", false)] {
        inbox.check().await.unwrap();
        proxy.cut_when_client_sends(b"COMMIT\0", arrives);
        let lost = inbox.run(&handler, &message(key, 7)).await;
        assert!(matches!(lost, Err(Error::Unavailable(..))), "{lost:?}");
        let again = eventually("PostgreSQL is back", LIMIT, async || {
            inbox.run(&handler, &message(key, 7).deliveries(2)).await.ok().filter(|v| *v != Verdict::InFlight)
        })
        .await;
        assert_eq!(matches!(again, Verdict::Replayed(_)), arrives, "{again:?}");
    }
    assert_eq!((handler.0.runs(), effects(&env).await), (3, 2));
}

/// The last commit of a connection leaves no empty transaction, which would take a ROLLBACK.
#[tokio::test]
async fn a_message_alone_takes_one_transaction() {
    let env = environment().await;
    let (_, before) = transactions(&env).await;
    let inbox = inbox(&env);
    for n in 0..5 {
        let verdict = inbox.run(&Silent(Does::effect()), &message(&format!("k{n}"), n)).await.unwrap();
        assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    }
    drop(inbox);
    let (_, after) = transactions(&env).await;
    assert_eq!((effects(&env).await, after - before), (5, 0));
}

/// And the stored outcome stays.
#[tokio::test]
async fn the_same_key_with_another_payload_is_refused() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    inbox.run(&handler, &message("k", 7)).await.unwrap();
    assert_eq!(inbox.run(&handler, &message("k", 8)).await.unwrap(), Verdict::Mismatch);
    assert_eq!(dead_letters(&env).await, ["the key was used before with another payload"]);
    assert_eq!(replayed(&inbox.run(&handler, &message("k", 7)).await.unwrap()), done("effect 1"));
    assert_eq!((handler.runs(), effects(&env).await, inbox.counts().mismatched), (1, 1, 1));
}

#[tokio::test]
async fn tenants_and_scopes_do_not_meet() {
    let env = environment().await;
    let handler = Does::effect();
    let tenants = Inbox::builder(env.pool(2)).scope("a:b").tenant_header("tenant").build().unwrap();
    let other = Inbox::builder(env.pool(2)).scope("a:c").tenant_header("tenant").build().unwrap();
    let mut replies = Vec::new();
    for (inbox, tenant) in [(&tenants, "acme"), (&tenants, "bolt"), (&other, "acme")] {
        let message = message("k", 7).header("Tenant", tenant);
        let Verdict::Handled(Answer::Done(reply)) = inbox.run(&handler, &message).await.unwrap() else {
            panic!("{tenant} was not handled");
        };
        assert_eq!(replayed(&inbox.run(&handler, &message).await.unwrap()), done(&reply));
        replies.push(reply);
    }
    assert_eq!(replies, ["effect 1", "effect 2", "effect 3"]);
}

/// Poison headers end as dead letters, not in an endless redelivery or in one shared key.
#[tokio::test]
async fn messages_without_identity_become_dead_letters() {
    let env = environment().await;
    let handler = Does::effect();
    let inbox = builder(&env).tenant_header("tenant").build().unwrap();
    let keyed = || message("k", 7);
    let bare = || Received::new("s.t", "{\"n\":7}").header("tenant", "acme");
    let poison = [
        (keyed(), "tenant header \"tenant\" is missing"),
        (bare(), "no key: none of the headers"),
        (bare().header("Idempotency-Key", ""), "does not hold a key"),
        (bare().header("Idempotency-Key", "x".repeat(256)), "256 bytes"),
        (bare().header("Idempotency-Key", "a\u{0}b"), "does not hold a key"),
        (bare().header("Idempotency-Key", "a").header("Idempotency-Key", "b"), "several different values"),
    ];
    for (message, reason) in poison {
        let verdict = inbox.run(&handler, &message).await.unwrap();
        let Verdict::Dead { reason: found } = verdict else { panic!("{verdict:?} for {reason}") };
        assert!(found.contains(reason), "{found}");
    }
    assert_eq!(dead_letters(&env).await.len(), 6, "each of them, although none came from a stream");
    assert_eq!((handler.runs(), effects(&env).await, inbox.counts().dead), (0, 0, 6));
}

#[tokio::test]
async fn a_replay_of_the_relay_is_recognised_by_its_message_id() {
    let env = environment().await;
    let inbox =
        builder(&env).key_from([KeySource::header("Idempotency-Key"), KeySource::MsgId]).build().unwrap();
    let handler = Does::effect();
    inbox.run(&handler, &message("k", 7)).await.unwrap();
    let copy =
        Received::new("elsewhere", "{\"n\":7}").header("Nats-Msg-Id", "0123456789ab/AAAAAAAAAAAAAAAA/r2/k");
    assert_eq!(replayed(&inbox.run(&handler, &copy).await.unwrap()), done("effect 1"));
}
