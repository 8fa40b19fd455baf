//! Optimistic versions: no handler waits, and one that is too late runs again.

use std::time::Duration;

use oncebox_inbox::{Outcome, Verdict};
use tokio::time::sleep;

use crate::inbox::{
    locks::{BALANCE, bank, cents, expected, run_all},
    support::{Does, builder, effects, insert, message},
};

/// No handler waits for a lock; the one that commits second runs again and reads the new row.
#[tokio::test]
async fn a_version_that_moved_runs_again_and_sums_are_right() {
    let env = bank().await;
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            let sql = "SELECT cents, version FROM account WHERE id = 0";
            let row = cx.transaction().query_one(sql, &[]).await?;
            let (cents, version): (i64, i32) = (row.get(0), row.get(1));
            sleep(Duration::from_millis(3)).await;
            let sql = "UPDATE account SET cents = $2, version = version + 1 WHERE id = 0 AND version = $1";
            cx.update_version(sql, &[&version, &(cents + job.n)]).await?;
            Ok(Outcome::done(String::new()))
        })
    });
    run_all(&env, &handler, 20).await;
    assert_eq!(cents(&env).await[0], BALANCE + (1..=20).sum::<i64>());
    assert!(handler.runs() > 20, "nobody met anybody: the test is too gentle");
    assert_eq!(effects(&env).await, 20, "those that were too late left nothing");
}

#[tokio::test]
async fn an_update_of_no_single_version_is_no_success() {
    let env = bank().await;
    let inbox = builder(&env).build().unwrap();
    for (number, (condition, reason, runs)) in
        [("version = 7", "no longer the one", 5), ("version = 0", "changed 4 rows", 1)]
            .into_iter()
            .enumerate()
    {
        let handler = Does::new(move |cx, job| {
            Box::pin(async move {
                insert(cx, &job).await?;
                cx.update_version(&format!("UPDATE account SET cents = 0 WHERE {condition}"), &[]).await?;
                Ok(Outcome::done(String::new()))
            })
        });
        let verdict = inbox.run(&handler, &message(&format!("k{number}"), 7)).await.unwrap();
        assert!(
            matches!(&verdict, Verdict::Retry { reason: text, .. } if text.contains(reason)),
            "{verdict:?}"
        );
        assert_eq!(handler.runs(), runs);
    }
    assert_eq!((effects(&env).await, cents(&env).await), (0, expected(0)));
}
