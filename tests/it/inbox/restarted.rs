//! Handlers that end their transaction by themselves: the inbox notices it, since their later
//! writes would have no key.

use std::collections::VecDeque;

use oncebox_inbox::{Error, Handler, HandlerError, Outcome, Received, Source, Verdict};
use oncebox_tests::TestEnv;
use tokio_postgres::types::Type;

use super::support::{
    Does, Job, Returned, Silent, builder, count, dead_letters, effects, environment, inbox, insert, message,
};
use crate::leased::support::{Pays, setup};

/// Statements that a handler sends by itself, between its effect and another one; and whether its
/// first effect stays.
const STATEMENTS: [(&str, bool); 7] = [
    ("ROLLBACK", false),
    ("ROLLBACK; BEGIN", false),
    ("ROLLBACK; BEGIN DEFERRABLE", false),
    ("ROLLBACK AND CHAIN", false),
    ("COMMIT; BEGIN", true),
    ("COMMIT AND CHAIN", true),
    ("COMMIT; BEGIN; SELECT 1", true),
];

/// Its effect, these statements, and, in a transaction, its effect again.
fn sends(statements: &'static str, fails: bool) -> Does {
    Does::new(move |cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            cx.transaction().batch_execute(statements).await?;
            if statements != "ROLLBACK" {
                insert(cx, &Job { n: -job.n }).await?;
            }
            if fails {
                Err(HandlerError::message("the second half failed"))
            } else {
                Ok(Outcome::done(String::new()))
            }
        })
    })
}

/// Its effect, these statements, and a second effect that it leaves to the commit.
fn defers(statements: &'static str) -> Does {
    Does::new(move |cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            // In the midst of an aborted transaction, or after its end, all the same.
            let _ = cx.transaction().batch_execute(statements).await;
            let (key, n) = (cx.key().as_str(), -job.n);
            let sql = "INSERT INTO effect (key, n, line) VALUES ($1, $2, '')";
            cx.defer_typed(sql, &[(&key, Type::TEXT), (&n, Type::INT8)])?;
            Ok(Outcome::done(String::new()))
        })
    })
}

/// A message that waits for the first, so that the pipeline claims its key after the commit.
struct Two(VecDeque<Received>, Vec<String>);

impl<R: std::fmt::Debug> Source<R> for Two {
    type Message = std::sync::Arc<Received>;

    fn next(&mut self) -> Option<Self::Message> {
        self.0.pop_front().map(std::sync::Arc::new)
    }

    fn ended(&mut self, _: Self::Message, result: Result<Verdict<R>, Error>) {
        self.1.push(format!("{result:?}"));
    }
}

/// The rows of the first effect, of the second, and of keys that count as handled.
async fn left(env: &TestEnv) -> (i64, i64, i64) {
    let second = count(env, "effect WHERE n < 0").await;
    let handled = count(env, "oncebox.inbox WHERE status <> 'dead'").await;
    (effects(env).await - second, second, handled)
}

async fn check<H: Handler<Message = Job>>(handler: H, statements: &str, stays: bool)
where
    H::Reply: std::fmt::Debug,
{
    let env = environment().await;
    let inbox = inbox(&env);
    let first = format!("{:?}", inbox.run(&handler, &message("alone", 1)).await);
    let mut two = Two([message("a", 2), message("b", 3)].into(), Vec::new());
    inbox.run_each(&handler, &mut two).await;
    let verdicts = [vec![first], two.1].concat();
    let expected = if stays { ["Dead", "sent COMMIT by itself"] } else { ["Retry", "ended the transaction"] };
    for verdict in &verdicts {
        assert!(expected.iter().all(|part| verdict.contains(part)), "{statements}: {verdict}");
    }
    let stayed = if stays { 3 } else { 0 };
    assert_eq!((left(&env).await, verdicts.len()), ((stayed, 0, 0), 3), "{statements}");
    // A copy is answered in the same way, and makes no effect.
    let copy = format!("{:?}", inbox.run(&handler, &message("alone", 1)).await);
    assert!(copy.contains(expected[0]), "{statements}: {copy}");
    assert_eq!(left(&env).await, (stayed, 0, 0), "{statements}");
    let letters = dead_letters(&env).await;
    assert_eq!(letters.len(), usize::try_from(stayed).unwrap(), "{statements}: {letters:?}");
}

/// A1: with a reply, whose row is written after the handler, and without one.
#[tokio::test]
async fn a_handler_that_ends_its_transaction_is_found_out() {
    for (statements, stays) in STATEMENTS {
        check(sends(statements, false), statements, stays).await;
        check(Silent(sends(statements, false)), statements, stays).await;
        check(defers(statements), statements, stays).await;
    }
    // Outside of a transaction each write that is deferred would be committed by itself.
    check(defers("COMMIT"), "COMMIT", true).await;
}

/// A1: its copy was answered as handled, and the second half was lost.
#[tokio::test]
async fn a_handler_that_commits_and_then_fails_is_given_up() {
    for statements in ["COMMIT", "COMMIT; BEGIN", "COMMIT AND CHAIN"] {
        let env = environment().await;
        let inbox = builder(&env).attempts_max(5).build().unwrap();
        for run in 1..=2 {
            let verdict =
                inbox.run(&sends(statements, true), &message("k", 1).deliveries(run)).await.unwrap();
            let Verdict::Dead { reason } = verdict else { panic!("{statements}: {verdict:?}") };
            assert!(reason.contains("sent COMMIT by itself"), "{statements}: {reason}");
        }
        let letters = dead_letters(&env).await;
        assert!(letters.len() == 1 && letters[0].contains("second half failed"), "{statements}: {letters:?}");
        assert_eq!(left(&env).await.2, 0, "{statements}");
    }
}

/// Its statement still runs when the inbox gives up on it.
#[tokio::test]
async fn a_handler_that_commits_and_then_hangs_is_given_up() {
    let env = environment().await;
    let inbox = builder(&env).handler_timeout(std::time::Duration::from_millis(500)).build().unwrap();
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            cx.transaction().batch_execute("COMMIT; BEGIN; SELECT pg_sleep(60)").await?;
            Ok(Outcome::done(String::new()))
        })
    });
    for run in 1..=2 {
        let verdict = inbox.run(&handler, &message("k", 1).deliveries(run)).await.unwrap();
        assert!(
            matches!(&verdict, Verdict::Dead { reason } if reason.contains("sent COMMIT")),
            "{verdict:?}"
        );
    }
    assert_eq!((effects(&env).await, dead_letters(&env).await.len()), (1, 1));
}

/// The writes in the midst of a run under a lease have a transaction of their own.
#[tokio::test]
async fn a_write_under_a_lease_that_ends_its_transaction_is_found_out() {
    // After a plain ROLLBACK the second effect would be committed by itself.
    for (statements, stays) in STATEMENTS.into_iter().filter(|(statements, _)| *statements != "ROLLBACK") {
        let (env, leased, _) = setup().await;
        let handler = Pays::new(move |cx, _| {
            Box::pin(async move {
                let reserve = cx.write("reserve", |transaction| {
                    Box::pin(async move {
                        let effect = "INSERT INTO effect (key, n) VALUES ('k', 1)";
                        transaction.batch_execute(effect).await?;
                        transaction.batch_execute(statements).await?;
                        transaction.batch_execute("INSERT INTO effect (key, n) VALUES ('k', -1)").await?;
                        Ok(())
                    })
                });
                reserve.await?;
                Ok(Outcome::done(String::new()))
            })
        });
        let verdict = format!("{:?}", leased.run(&handler, &message("k", 1)).await);
        let expected =
            if stays { ["Dead", "sent COMMIT by itself"] } else { ["Retry", "ended the transaction"] };
        assert!(expected.iter().all(|part| verdict.contains(part)), "{statements}: {verdict}");
        assert_eq!(left(&env).await, (i64::from(stays), 0, 0), "{statements}");
    }
}

/// In a batch such a message is told from those that share its transaction.
#[tokio::test]
async fn in_a_batch_those_around_it_are_handled() {
    for (statements, _) in STATEMENTS {
        let env = environment().await;
        let inbox = inbox(&env);
        let handler = Does::new(move |cx, job| -> futures_util::future::BoxFuture<'_, Returned> {
            Box::pin(async move {
                insert(cx, &job).await?;
                if job.n == 2 {
                    let _ = cx.transaction().batch_execute(statements).await;
                    cx.defer_typed("INSERT INTO effect (key, n) VALUES ('late', -2)", &[])?;
                }
                Ok(Outcome::done(String::new()))
            })
        });
        let messages: Vec<Received> = (1..=3).map(|n| message(&format!("k{n}"), n)).collect();
        let verdicts = inbox.run_batch(&handler, &messages).await;
        let ends: Vec<String> = verdicts.iter().map(|verdict| format!("{verdict:?}")).collect();
        assert!(ends[0].contains("Handled") && ends[2].contains("Handled"), "{statements}: {ends:?}");
        assert!(ends[1].contains("Retry") || ends[1].contains("Dead"), "{statements}: {ends:?}");
        assert_eq!(count(&env, "effect WHERE n IN (1, 3)").await, 2, "{statements}");
        assert_eq!(count(&env, "effect WHERE n < 0").await, 0, "{statements}");
        assert_eq!(
            count(&env, "oncebox.inbox WHERE key = 'k2' AND status <> 'dead'").await,
            0,
            "{statements}"
        );
    }
}
