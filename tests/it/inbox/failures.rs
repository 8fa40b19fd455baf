//! How handlers fail, and how the inbox reacts.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use oncebox_inbox::{Answer, Error, HandlerError, Inbox, Outcome, Received, Verdict};
use oncebox_tests::Log;
use tokio::time::timeout;

use crate::inbox::support::{
    Does, SCOPE, Silent, builder, count, dead_letters, effects, environment, inbox, insert, message,
    replayed, rested, tried,
};

#[tokio::test]
async fn a_no_is_committed_and_replayed_as_the_same_no() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            Ok(Outcome::reject("insufficient funds".to_owned()))
        })
    });
    let no = Answer::Rejected("insufficient funds".to_owned());
    assert_eq!(inbox.run(&handler, &message("k", 7)).await.unwrap(), Verdict::Handled(no.clone()));
    assert_eq!(replayed(&inbox.run(&handler, &message("k", 7)).await.unwrap()), no);
    assert_eq!((handler.runs(), effects(&env).await, inbox.counts().rejected), (1, 1, 1));
}

/// The inbox rolls back a message that is given up, records it, and gives the same answer ever
/// after.
#[tokio::test]
async fn a_dead_message_is_rolled_back_recorded_and_not_run_again() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            Ok(Outcome::dead("no such customer"))
        })
    });
    for _ in 0..3 {
        let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
        assert_eq!(verdict, Verdict::Dead { reason: "no such customer".to_owned() });
    }
    assert_eq!((handler.runs(), effects(&env).await), (1, 0));
    assert_eq!(dead_letters(&env).await, ["no such customer"]);
    let row = env
        .pg()
        .await
        .query_one("SELECT headers::text, payload, key FROM oncebox.dead_letter", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, String>(0), "{\"Idempotency-Key\": \"k\"}");
    assert_eq!((row.get::<_, Vec<u8>>(1), row.get::<_, String>(2)), (b"{\"n\":7}".to_vec(), "k".to_owned()));
}

/// It is rolled back before it is given up in another transaction: its own claim is not in the way.
#[tokio::test]
async fn what_a_handler_gives_up_is_given_up_by_its_first_run() {
    const MESSAGES: i64 = 200;
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Does::new(|_, _| Box::pin(async { Ok(Outcome::dead("no")) }));
    // Two connections, in turns.
    let (a, b) = (message("a", 0), message("b", 0));
    tokio::try_join!(inbox.run(&handler, &a), inbox.run(&handler, &b)).unwrap();
    for n in 0..MESSAGES {
        let verdict = inbox.run(&handler, &message(&n.to_string(), n)).await.unwrap();
        assert_eq!(verdict, Verdict::Dead { reason: "no".to_owned() }, "{n}");
    }
    assert_eq!(i64::try_from(handler.runs()).unwrap(), MESSAGES + 2);
}

/// Messages that kill the process: the limit is checked before the handler runs.
#[tokio::test]
async fn the_delivery_limit_ends_a_message() {
    let env = environment().await;
    let inbox = builder(&env).attempts_max(3).build().unwrap();
    let failing = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            Err(HandlerError::message("no luck"))
        })
    });
    for delivery in 1..=2 {
        let verdict = inbox.run(&failing, &message("k", 7).deliveries(delivery)).await.unwrap();
        let Verdict::Retry { after, reason } = verdict else { panic!("{verdict:?}") };
        assert!(after > Duration::ZERO && reason == "no luck");
        rested(&env).await;
    }
    let verdict = inbox.run(&failing, &message("k", 7).deliveries(3)).await.unwrap();
    assert_eq!(verdict, Verdict::Dead { reason: "delivery limit of 3 reached: no luck".to_owned() });

    tried(&env, "killer", 3).await;
    let killer = inbox.run(&failing, &message("killer", 7).deliveries(2)).await.unwrap();
    assert!(matches!(killer, Verdict::Dead { .. }), "{killer:?}");
    assert_eq!(failing.runs(), 3, "the killer did not run a fourth time");
    assert_eq!((effects(&env).await, dead_letters(&env).await.len()), (0, 2));

    let handler = Does::effect();
    inbox.run(&handler, &message("late", 7)).await.unwrap();
    let verdict = inbox.run(&handler, &message("late", 7).deliveries(9)).await.unwrap();
    assert!(matches!(verdict, Verdict::Replayed(_)), "done is done: {verdict:?}");
}

/// COMMIT of an aborted transaction reports success to the driver.
#[tokio::test]
async fn a_swallowed_sql_error_is_not_success() {
    let env = environment().await;
    let inbox = inbox(&env);
    let swallowing = |reply: bool| {
        Does::new(move |cx, job| {
            Box::pin(async move {
                insert(cx, &job).await?;
                let _ = cx.transaction().execute("SELECT 1 / 0", &[]).await;
                let outcome =
                    if reply { Outcome::done("fine".to_owned()) } else { Outcome::reject(String::new()) };
                Ok(outcome)
            })
        })
    };
    for handler in [swallowing(true), swallowing(false)] {
        let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
        let Verdict::Retry { reason, .. } = verdict else { panic!("{verdict:?}") };
        assert!(reason.contains("went on after a statement had failed"), "{reason}");
    }
    // Without a reply nothing is stored after the handler, and over a connection that has prepared
    // every statement only the one before COMMIT can tell.
    let inbox = Inbox::builder(env.pool(1)).scope(SCOPE).single_tenant().build().unwrap();
    let replying = Does::new(|_, _| Box::pin(async { Ok(Outcome::done("a reply".to_owned())) }));
    let first = inbox.run(&replying, &message("first", 7)).await.unwrap();
    assert!(matches!(first, Verdict::Handled(_)), "{first:?}");
    let verdict = inbox.run(&Silent(swallowing(true)), &message("silent", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("had failed")),
        "{verdict:?}"
    );
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (0, 1));
}

/// And the connection that the panic left does no harm to the next message.
#[tokio::test]
async fn a_panic_and_a_timeout_are_contained() {
    let env = environment().await;
    let pool = env.pool(1);
    let inbox = Inbox::builder(pool)
        .scope(SCOPE)
        .single_tenant()
        .handler_timeout(Duration::from_secs(3))
        .build()
        .unwrap();
    let panicking = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            panic!("on purpose")
        })
    });
    let slow = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            cx.transaction().execute("SELECT pg_sleep(20)", &[]).await?;
            Ok(Outcome::done(String::new()))
        })
    });
    for (handler, part) in [(panicking, "panicked: on purpose"), (slow, "longer than 3s")] {
        let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
        assert!(matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains(part)), "{verdict:?}");
        let (effect, after) = (Does::effect(), message(&part.replace([' ', ':'], "-"), 7));
        let next = timeout(Duration::from_secs(10), inbox.run(&effect, &after)).await;
        assert!(matches!(next.expect("no waiting").unwrap(), Verdict::Handled(_)));
    }
    assert_eq!(effects(&env).await, 2);
}

/// The server does not notice that the connection was closed: the session is ended.
#[tokio::test]
async fn a_statement_ends_with_its_handler() {
    let env = environment().await;
    let inbox = builder(&env).handler_timeout(Duration::from_secs(1)).build().unwrap();
    let slow = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            cx.transaction().execute("SELECT pg_sleep(600)", &[]).await?;
            Ok(Outcome::done(String::new()))
        })
    });
    let verdict = inbox.run(&slow, &message("k", 7)).await.unwrap();
    assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");
    let pg = env.pg().await;
    let sleeping = "SELECT count(*) FROM pg_stat_activity \
                    WHERE datname = current_database() AND query LIKE '%pg_sleep(600)' AND state = 'active'";
    let count = async || pg.query_one(sleeping, &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!(count().await, 0);
}

/// Conflicts are run again at once, by SQLSTATE.
#[tokio::test]
async fn serialization_failures_run_again() {
    let env = environment().await;
    let inbox = inbox(&env);
    let failing = |times: u64, code: &'static str| {
        let left = std::sync::atomic::AtomicU64::new(times);
        let left = Arc::new(left);
        Does::new(move |cx, job| {
            let left = Arc::clone(&left);
            Box::pin(async move {
                let reply = insert(cx, &job).await?;
                let more = left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
                if more {
                    let raise =
                        format!("DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '{code}'; END $$");
                    cx.transaction().batch_execute(&raise).await?;
                }
                Ok(Outcome::done(reply))
            })
        })
    };
    let twice = failing(2, "40001");
    assert!(matches!(inbox.run(&twice, &message("a", 7)).await.unwrap(), Verdict::Handled(_)));
    assert_eq!(twice.runs(), 3);
    let always = failing(1000, "40P01");
    assert!(matches!(inbox.run(&always, &message("b", 7)).await.unwrap(), Verdict::Retry { .. }));
    assert_eq!(always.runs(), 5, "a bounded number of times");
    let other = failing(1, "23514");
    assert!(matches!(inbox.run(&other, &message("c", 7)).await.unwrap(), Verdict::Retry { .. }));
    assert_eq!(other.runs(), 1);
    assert_eq!(effects(&env).await, 1);
}

/// A constraint that is checked at the commit fails it: no effect, and a log line with the key.
#[tokio::test]
async fn a_commit_that_fails_is_no_success_and_is_logged() {
    let env = environment().await;
    let deferred =
        "CREATE TABLE once (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once VALUES (7)";
    env.pg().await.batch_execute(deferred).await.unwrap();
    let (log, _guard) = Log::of_this_thread();
    let inbox = inbox(&env);
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            cx.transaction().execute("INSERT INTO once VALUES ($1)", &[&job.n]).await?;
            Ok(Outcome::done(insert(cx, &job).await?))
        })
    });
    let alone = inbox.run(&handler, &message("alone", 7)).await.unwrap();
    let batch = inbox.run_batch(&handler, &[message("in-a-batch", 7), message("good", 8)]).await;
    let told = log.text();
    for (key, verdict) in [("alone", &alone), ("in-a-batch", batch[0].as_ref().unwrap())] {
        assert!(matches!(verdict, Verdict::Retry { .. }), "{key}: {verdict:?}");
        assert_eq!(told.matches(&format!("key=\"{key}\"")).count(), 1, "{told}");
    }
    assert_eq!((log.count("WARN"), told.matches("once_n_key").count()), (2, 2), "{told}");
    assert!(matches!(batch[1], Ok(Verdict::Handled(_))), "{batch:?}");
    assert_eq!((effects(&env).await, inbox.counts().handled, inbox.counts().retried), (1, 1, 2));
    assert_eq!(count(&env, "oncebox.inbox").await, 1);
}

#[tokio::test]
async fn a_lost_connection_costs_no_attempt() {
    let env = environment().await;
    let inbox = builder(&env).attempts_max(1).build().unwrap();
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            cx.transaction().execute("SELECT pg_terminate_backend(pg_backend_pid())", &[]).await?;
            Ok(Outcome::done(String::new()))
        })
    });
    let lost = inbox.run(&handler, &message("k", 7)).await;
    assert!(matches!(lost, Err(Error::Unavailable(..))), "{lost:?}");
    assert_eq!((dead_letters(&env).await.len(), effects(&env).await), (0, 0));
    assert!(matches!(inbox.run(&Does::effect(), &message("k", 7)).await.unwrap(), Verdict::Handled(_)));
}

#[tokio::test]
async fn what_cannot_be_decoded_or_stored_says_so() {
    let env = environment().await;
    let inbox = inbox(&env);
    let garbage = Received::new("s.t", "{\"n\":\"secret\"}").header("Idempotency-Key", "garbage");
    let verdict = inbox.run(&Does::effect(), &garbage).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Dead { reason } if reason.contains("decodes") && !reason.contains("secret")),
        "{verdict:?}"
    );
    let large = Does::new(|_, _| Box::pin(async { Ok(Outcome::done("x".repeat(1 << 20))) }));
    let verdict = inbox.run(&large, &message("large", 7)).await.unwrap();
    // Another run would give the same reply.
    assert!(
        matches!(&verdict, Verdict::Dead { reason } if reason.contains("the limit is 1048576")),
        "{verdict:?}"
    );
}

/// A status of a newer version is an error, not one of ours.
#[tokio::test]
async fn an_unknown_status_is_an_error() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    inbox.run(&handler, &message("k", 7)).await.unwrap();
    env.pg().await.batch_execute("UPDATE oncebox.inbox SET status = 'parked'").await.unwrap();
    let error = inbox.run(&handler, &message("k", 7)).await.unwrap_err();
    assert!(matches!(&error, Error::UnknownStatus { status, .. } if status == "parked"), "{error}");
    assert_eq!(handler.runs(), 1);
}

#[tokio::test]
async fn another_schema_version_is_refused() {
    let env = environment().await;
    env.pg()
        .await
        .batch_execute("INSERT INTO oncebox.migration (version, name) VALUES (9999, 'future')")
        .await
        .unwrap();
    let error = inbox(&env).run(&Does::effect(), &message("k", 7)).await.unwrap_err();
    assert!(matches!(error, Error::Version(_)), "{error}");
    assert!(error.to_string().contains("9999"), "{error}");
}
