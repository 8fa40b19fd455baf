//! Handlers above READ COMMITTED: their snapshots, and the end of a lost race.

use std::time::Duration;

use std::sync::Arc;

use oncebox_inbox::{Answer, Inbox, IsolationLevel, Outcome, Verdict};
use oncebox_tests::{TestEnv, eventually};
use tokio::sync::Barrier;

use crate::inbox::{
    pipeline::each,
    support::{Does, LIMIT, builder, count, dead_letters, environment, message, replayed},
};

const ABOVE: [(IsolationLevel, &str); 2] =
    [(IsolationLevel::RepeatableRead, "repeatable read"), (IsolationLevel::Serializable, "serializable")];

fn inbox(env: &TestEnv, level: IsolationLevel) -> Inbox {
    builder(env).isolation_level(level).build().unwrap()
}

#[tokio::test]
async fn a_handler_gets_the_level_that_its_inbox_has() {
    let env = environment().await;
    for (level, name) in ABOVE {
        let inbox = inbox(&env, level);
        let handler = Does::new(|cx, _| {
            Box::pin(async move {
                let row = cx.transaction().query_one("SHOW transaction_isolation", &[]).await?;
                Ok(Outcome::done(row.get(0)))
            })
        });
        // Alone, chained to the one before, and together.
        let key = |tail: &str| message(&format!("{name}-{tail}").replace(' ', "-"), 1);
        inbox.run(&handler, &key("a")).await.unwrap();
        let chained = [key("b"), key("c"), key("d")];
        assert_eq!(each(&inbox, &handler, chained.clone()).await.len(), 3);
        let batch = [key("e"), key("f")];
        assert!(inbox.run_batch(&handler, &batch).await.iter().all(Result::is_ok));
        for message in [key("a")].iter().chain(&chained).chain(&batch) {
            let verdict = inbox.run(&handler, message).await.unwrap();
            assert_eq!(replayed(&verdict), Answer::Done(name.to_owned()));
        }
    }
}

/// The claim's snapshot is older than the copy's commit. The key is claimed again, and the message
/// answered; that does not count as an attempt.
#[tokio::test]
async fn a_copy_that_is_committed_behind_the_snapshot_is_found() {
    let env = environment().await;
    for (level, name) in ABOVE {
        let (key, handler) = (name.replace(' ', "-"), Does::effect());
        let mut other = env.pg().await;
        // Delivered before, so that the claim expects a copy and a conflict is an error of its own.
        let received = message(&key, 1).deliveries(2);
        let inbox = inbox(&env, level);
        assert!(inbox.run(&handler, &message(&key, 1)).await.is_ok());
        let hide = "CREATE TEMPORARY TABLE copy AS TABLE oncebox.inbox; DELETE FROM oncebox.inbox";
        other.batch_execute(hide).await.unwrap();
        let copy = other.transaction().await.unwrap();
        // A claim takes its snapshot, and then waits for this lock.
        let commit_key = "LOCK TABLE oncebox.inbox IN SHARE ROW EXCLUSIVE MODE;
                          INSERT INTO oncebox.inbox SELECT * FROM copy; DROP TABLE copy";
        copy.batch_execute(commit_key).await.unwrap();
        let run = inbox.run(&handler, &received);
        let commit = async {
            let waits = "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
                         WHERE d.datname = current_database() AND relation = 'oncebox.inbox'::regclass AND NOT granted";
            let client = env.pg().await;
            eventually("the claim waits", LIMIT, async || {
                (client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0).then_some(())
            })
            .await;
            copy.commit().await.unwrap();
        };
        let (verdict, ()) = tokio::join!(run, commit);
        assert!(matches!(verdict, Ok(Verdict::Replayed(_))), "{name}: {verdict:?}");
        assert_eq!((handler.runs(), inbox.counts().retried), (1, 0), "of the first copy alone");
    }
}

/// Two handlers that each count the other's rows: one of them has to see the other's row.
#[tokio::test]
async fn serializable_handlers_run_as_if_one_after_another() {
    let env = environment().await;
    let inbox = inbox(&env, IsolationLevel::Serializable);
    let both = Arc::new(Barrier::new(2));
    let handler = Does::new(move |cx, job| {
        let both = Arc::clone(&both);
        Box::pin(async move {
            let transaction = cx.transaction();
            let seen: i64 = transaction.query_one("SELECT count(*) FROM effect", &[]).await?.get(0);
            if seen == 0 {
                both.wait().await;
            }
            let sql = "INSERT INTO effect (key, n, line) VALUES ($1, $2, '')";
            transaction.execute(sql, &[&cx.key().as_str(), &seen]).await?;
            Ok(Outcome::done(job.n.to_string()))
        })
    });
    let (a, b) = (message("a", 1), message("b", 2));
    let (a, b) = tokio::join!(inbox.run(&handler, &a), inbox.run(&handler, &b));
    assert!(matches!((&a, &b), (Ok(Verdict::Handled(_)), Ok(Verdict::Handled(_)))), "{a:?} {b:?}");
    let rows = env.pg().await.query("SELECT n FROM effect ORDER BY n", &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [0, 1]);
    assert_eq!((inbox.counts().retried, dead_letters(&env).await.len()), (0, 0));
    assert_eq!(count(&env, "oncebox.inbox_attempt").await, 0, "a conflict does not count as an attempt");
}

#[tokio::test]
async fn leased_handlers_have_no_level() {
    let env = environment().await;
    let built =
        builder(&env).isolation_level(IsolationLevel::Serializable).leased(Duration::from_secs(8)).build();
    assert!(built.unwrap_err().to_string().contains("isolation_level(..) is for handlers in a transaction"));
}
