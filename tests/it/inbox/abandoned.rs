//! Handlers that are cut short at the delivery limit, with a statement still running: their
//! messages end as dead letters.

use std::time::Duration;

use futures_util::poll;
use oncebox_inbox::{Inbox, Outcome, Verdict};
use tokio::time::timeout;

use crate::inbox::support::{
    Does, LIMIT, SCOPE, builder, count, dead_letters, effects, environment, insert, message,
};

const SLEEPING: &str = "(SELECT FROM pg_stat_activity WHERE datname = current_database() \
                        AND query LIKE '%pg_sleep(600)' AND state = 'active') AS sleeping";

/// Else its key is in flight whenever it is to be given up, and it is run again, for ever.
#[tokio::test]
async fn a_statement_that_hangs_at_the_delivery_limit_ends_as_a_dead_letter() {
    let env = environment().await;
    let hanging = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            cx.transaction().execute("SELECT pg_sleep(600)", &[]).await?;
            Ok(Outcome::done(String::new()))
        })
    });
    // With one connection, too: the statement's own is not needed to end it.
    for connections in [1, 8] {
        let pool = env.pool(connections);
        let limits = Inbox::builder(pool).attempts_max(1).handler_timeout(Duration::from_secs(1));
        let inbox = limits.scope(SCOPE).single_tenant().build().unwrap();
        let key = format!("k{connections}");
        let ended = timeout(LIMIT, inbox.run(&hanging, &message(&key, 7))).await.expect("it ends").unwrap();
        assert!(
            matches!(&ended, Verdict::Dead { reason } if reason.contains("limit of 1") && reason.contains("longer than 1s")),
            "{ended:?}"
        );
        assert_eq!(count(&env, SLEEPING).await, 0, "its session has ended");
    }
    assert_eq!((hanging.runs(), effects(&env).await, dead_letters(&env).await.len()), (2, 0, 2));
}

/// The panic's transaction is rolled back before the message is given up, not some time after.
#[tokio::test]
async fn a_panic_at_the_delivery_limit_ends_as_a_dead_letter() {
    const MESSAGES: i64 = 100;
    let env = environment().await;
    let inbox = builder(&env).attempts_max(1).build().unwrap();
    let panicking = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            if job.n % 50 == 49 {
                // With a statement that no task waits for any more.
                let mut asleep = Box::pin(cx.transaction().batch_execute("SELECT pg_sleep(600)"));
                let _ = poll!(asleep.as_mut());
            }
            panic!("on purpose")
        })
    });
    for n in 0..MESSAGES {
        let received = message(&format!("k{n}"), n);
        let ended = timeout(LIMIT, inbox.run(&panicking, &received)).await.expect("it ends").unwrap();
        assert!(
            matches!(&ended, Verdict::Dead { reason } if reason.contains("on purpose")),
            "{n}: {ended:?}"
        );
    }
    assert_eq!((i64::try_from(panicking.runs()).unwrap(), effects(&env).await), (MESSAGES, 0));
    assert_eq!(count(&env, SLEEPING).await, 0);
}
