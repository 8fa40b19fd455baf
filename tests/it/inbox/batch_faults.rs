//! Batches whose transaction is lost: a bad message, or a lost connection, fails no other message.

use std::{mem, time::Duration};

use oncebox_inbox::{Inbox, Outcome, Verdict};
use tokio::time::timeout;

use crate::inbox::{
    batch::{batch, plain},
    support::{Does, LIMIT, SCOPE, Silent, builder, count, effects, environment, inbox, insert},
};

/// All keys are claimed before the first handler runs: if they were committed then, the others'
/// messages would be lost.
#[tokio::test]
async fn a_handler_that_ends_the_transaction_loses_no_other_message() {
    let env = environment().await;
    let inbox = inbox(&env);
    for (n, sql) in ["COMMIT", "COMMIT AND CHAIN", "ROLLBACK", "ROLLBACK AND CHAIN"].into_iter().enumerate() {
        let ending = Does::new(move |cx, job| {
            Box::pin(async move {
                if job.n == 2 {
                    let _ = cx.transaction().batch_execute(sql).await;
                    // It does not look whether that worked, and dies.
                    std::future::pending::<()>().await;
                }
                Ok(Outcome::done(insert(cx, &job).await?))
            })
        });
        let messages = plain(&format!("r{n}-"), 0..5);
        // The process dies while the handler runs.
        let cut = timeout(Duration::from_millis(500), inbox.run_batch(&ending, &messages)).await;
        assert!(cut.is_err());
        let ended = batch(&inbox, &Does::effect(), &messages).await;
        assert!(ended.iter().all(|verdict| verdict.ends_with("handled")), "{sql}: {ended:?}");
        assert_eq!(effects(&env).await, 5 * (i64::try_from(n).unwrap() + 1), "{sql}");
    }
    assert_eq!(count(&env, "oncebox.inbox_batch").await, 0);
}

/// A handler rolls the whole batch back and goes on: the other messages are handled, and only its
/// own message fails.
#[tokio::test]
async fn a_handler_that_rolls_everything_back_fails_alone() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            match job.n {
                1 => cx.transaction().batch_execute("ROLLBACK").await?,
                // Its connection is the batch's.
                2 => drop(
                    cx.transaction().execute("SELECT pg_terminate_backend(pg_backend_pid())", &[]).await?,
                ),
                _ => {}
            }
            Ok(Outcome::done(reply))
        })
    });
    let ended = batch(&inbox, &handler, &plain("k", 0..5)).await;
    assert_eq!(ended, ["k0 handled", "k1 retry", "k2 unavailable", "k3 handled", "k4 handled"]);
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (3, 3));
}

/// A check at COMMIT fails for all; then each is run by itself.
#[tokio::test]
async fn a_message_that_fails_at_the_commit_fails_alone() {
    let env = environment().await;
    let deferred = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN IF NEW.n = 3 THEN RAISE 'refused at commit'; END IF; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
          FOR EACH ROW EXECUTE FUNCTION refuse()";
    env.pg().await.batch_execute(deferred).await.unwrap();
    let inbox = inbox(&env);
    let ended = batch(&inbox, &Does::effect(), &plain("k", 0..5)).await;
    assert_eq!(ended, ["k0 handled", "k1 handled", "k2 handled", "k3 retry", "k4 handled"]);
    assert_eq!((effects(&env).await, inbox.counts().retried), (4, 1));
}

/// A statement that a handler left running does not hold the others up until it ends.
#[tokio::test]
async fn a_statement_that_goes_on_fails_its_own_message_only() {
    let env = environment().await;
    let inbox = builder(&env).handler_timeout(Duration::from_secs(1)).build().unwrap();
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            if job.n == 2 {
                cx.transaction().execute("SELECT pg_sleep(600)", &[]).await?;
            }
            Ok(Outcome::done(reply))
        })
    });
    let ended = batch(&inbox, &handler, &plain("k", 0..5)).await;
    assert_eq!(ended, ["k0 handled", "k1 handled", "k2 retry", "k3 handled", "k4 handled"]);
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (4, 4));
}

/// The connection is lost at the COMMIT, before or after it happened.
#[tokio::test]
async fn a_lost_commit_of_a_batch_doubles_and_loses_nothing() {
    let env = environment().await;
    let (proxy, pool) = env.pool_through_proxy(2).await;
    let inbox = Inbox::builder(pool).scope(SCOPE).single_tenant().build().unwrap();
    let handler = Silent(Does::effect());
    for (arrives, prefix) in [(true, "a"), (false, "b")] {
        inbox.check().await.unwrap();
        proxy.cut_when_client_sends(b"CLOSE oncebox_claim", arrives);
        let mut open = plain(prefix, 0..5);
        let settling = async {
            while !open.is_empty() {
                let results = inbox.run_batch(&handler, &open).await;
                for (message, result) in mem::take(&mut open).into_iter().zip(results) {
                    match result.unwrap() {
                        // The server is still at that COMMIT, or does not know yet that it will
                        // never come.
                        Verdict::InFlight => open.push(message),
                        Verdict::Replayed(_) if arrives => {}
                        Verdict::Handled(_) if !arrives => {}
                        verdict => panic!("{arrives}: {verdict:?}"),
                    }
                }
            }
        };
        timeout(LIMIT, settling).await.expect("it ends");
        assert!(!proxy.is_armed(), "the connection was not lost");
    }
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (10, 10));
}

/// PostgreSQL is away: said for each message, within the time of a few attempts to connect, not of
/// one for each.
#[tokio::test]
async fn without_postgres_a_batch_ends_soon() {
    let env = environment().await;
    let (proxy, pool) = env.pool_through_proxy(2).await;
    let limit = Duration::from_secs(1);
    let inbox = Inbox::builder(pool).scope(SCOPE).single_tenant().acquire_timeout(limit).build().unwrap();
    let handler = Does::effect();
    proxy.stall(true);
    let ended = timeout(5 * limit, batch(&inbox, &handler, &plain("k", 0..100))).await;
    assert!(ended.expect("it ends").iter().all(|verdict| verdict.ends_with("unavailable")));
    proxy.stall(false);
    let ended = batch(&inbox, &handler, &plain("k", 0..100)).await;
    assert!(ended.iter().all(|verdict| verdict.ends_with("handled")), "{ended:?}");
    assert_eq!((effects(&env).await, handler.runs()), (100, 100));
}
