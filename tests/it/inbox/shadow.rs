//! Shadow mode, and the causes of duplicates: how an inbox would decide, and why copies come.

use std::sync::Arc;

use oncebox_inbox::{Answer, HandlerError, Inbox, Outcome, Received, Verdict, metrics_text};
use oncebox_tests::{Log, TestEnv, eventually};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use crate::inbox::support::{
    Does, LIMIT, builder, count, dead_letters, effects, environment, inbox, insert, message, replayed,
};

fn shadow(env: &TestEnv) -> Inbox {
    builder(env).shadow().build().unwrap()
}

/// Duplicates, other payloads, dead messages and messages in flight: all are handled, and reported.
#[tokio::test]
async fn a_shadow_suppresses_nothing_and_reports_what_it_would() {
    let env = environment().await;
    let (inbox, handler) = (shadow(&env), Does::effect());
    for (n, shadowed) in [(7, 0), (7, 1), (8, 2)] {
        let verdict = inbox.run(&handler, &message("k", n)).await.unwrap();
        let Verdict::Handled(Answer::Done(reply)) = verdict else { panic!("{n}: {verdict:?}") };
        assert_eq!(reply, format!("effect {}", shadowed + 1));
        assert_eq!(inbox.counts().shadowed, shadowed);
    }
    let gives_up = Does::new(|_, _| Box::pin(async { Ok(Outcome::dead("never")) }));
    inbox.run(&gives_up, &message("dead", 7)).await.unwrap();
    assert!(matches!(inbox.run(&handler, &message("dead", 7)).await.unwrap(), Verdict::Handled(_)));
    assert_eq!(effects(&env).await, 4);
    assert_eq!(dead_letters(&env).await, ["never"]);
    assert_eq!((inbox.counts().handled, inbox.counts().shadowed, inbox.counts().replayed), (4, 3, 0));

    // The record is the first copy's, and an inbox without shadow mode finds it later.
    let real = self::inbox(&env);
    let first = real.run(&handler, &message("k", 7)).await.unwrap();
    assert_eq!(replayed(&first), Answer::Done("effect 1".to_owned()));
    let dead = real.run(&handler, &message("dead", 7)).await.unwrap();
    assert_eq!(dead, Verdict::Dead { reason: "never".to_owned() });
}

#[tokio::test]
async fn a_shadow_suppresses_nothing_in_batches_either() {
    let env = environment().await;
    let (inbox, handler) = (shadow(&env), Does::effect());
    let copies = [message("k", 7), message("l", 7), message("k", 7), message("k", 7)];
    for result in inbox.run_batch(&handler, &copies).await {
        assert!(matches!(result.unwrap(), Verdict::Handled(_)));
    }
    assert_eq!((effects(&env).await, inbox.counts().shadowed), (4, 2));
}

/// The record commits with the effect: a run that failed leaves no record, so the message is not a
/// duplicate when it comes again.
#[tokio::test]
async fn in_a_shadow_a_failure_is_no_record() {
    let env = environment().await;
    let inbox = shadow(&env);
    let fails = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            Err(HandlerError::message("not yet"))
        })
    });
    assert!(matches!(inbox.run(&fails, &message("k", 7)).await.unwrap(), Verdict::Retry { .. }));
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (0, 0));
    assert!(matches!(inbox.run(&Does::effect(), &message("k", 7)).await.unwrap(), Verdict::Handled(_)));
    assert!(matches!(inbox.run(&fails, &message("k", 7)).await.unwrap(), Verdict::Retry { .. }));
    assert_eq!(
        (inbox.counts().shadowed, effects(&env).await),
        (1, 1),
        "a copy that fails leaves nothing either"
    );
}

#[tokio::test]
async fn in_a_shadow_copies_run_side_by_side() {
    let env = environment().await;
    let inbox = shadow(&env);
    let permits = Arc::new(Semaphore::new(0));
    let handler = Does::new({
        let permits = Arc::clone(&permits);
        move |cx, job| {
            let permits = Arc::clone(&permits);
            Box::pin(async move {
                let reply = insert(cx, &job).await?;
                permits.acquire().await?.forget();
                Ok(Outcome::done(reply))
            })
        }
    });
    let mut copies = JoinSet::new();
    for _ in 0..3 {
        let (inbox, handler) = (inbox.clone(), handler.clone());
        copies.spawn(async move { inbox.run(&handler, &message("k", 7)).await.unwrap() });
    }
    eventually("all run", LIMIT, async || (handler.runs() == 3).then_some(())).await;
    permits.add_permits(3);
    for verdict in timeout(LIMIT, copies.join_all()).await.unwrap() {
        assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    }
    assert_eq!((effects(&env).await, inbox.counts().shadowed), (3, 2));
}

/// Every duplicate is logged and has a cause, in a shadow too.
#[tokio::test]
async fn each_duplicate_is_logged_with_its_key_and_counted_under_its_cause() {
    let env = environment().await;
    let log = Log::default();
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    let _guard = tracing::subscriber::set_default(lines.with_writer(log.clone()).finish());
    let with_id = |id: &str| message("k", 7).header("Oncebox-Id", id);
    let copies: [(Received, &str); 5] = [
        (with_id("5").deliveries(2), "redelivery"),
        (with_id("5"), "republish"),
        (message("k", 7).header("Nats-Msg-Id", "0123456789ab/AAAAAAAAAAAAAAAA/r1/k"), "republish"),
        (message("k", 7), "client_retry"),
        (with_id("6"), "other_message"),
    ];
    for inbox in [inbox(&env), shadow(&env)] {
        inbox.run(&Does::effect(), &with_id("5")).await.unwrap();
        for (copy, cause) in &copies {
            log.clear();
            inbox.run(&Does::effect(), copy).await.unwrap();
            let text = log.text();
            let is_told = |line: &&str| line.contains("stored outcome") && line.contains("key=\"k\"");
            assert_eq!(text.lines().filter(is_told).count(), 1, "{cause}: {text}");
        }
        let text = metrics_text([&inbox]);
        for cause in ["redelivery", "republish", "client_retry", "other_message"] {
            let mut expected = copies.iter().filter(|(_, other)| *other == cause).count();
            // The shadow finds the key that the other inbox has stored.
            expected += usize::from(cause == "republish" && inbox.counts().shadowed > 0);
            let line = format!(
                "oncebox_inbox_duplicates_total{{scope=\"tests:effect\",cause=\"{cause}\"}} {expected}"
            );
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
