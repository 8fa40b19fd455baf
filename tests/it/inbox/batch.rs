//! Many messages in one transaction: exactly the duplicates are reported, and a bad message fails
//! no other.

use std::{sync::Arc, time::Duration};

use oncebox_inbox::{Answer, Error, Inbox, Outcome, Received, Verdict};
use oncebox_tests::TestEnv;
use tokio::{sync::Barrier, task::JoinSet, time::timeout};

use crate::inbox::support::{
    Does, LIMIT, builder, count, dead_letters, effects, environment, inbox, insert, message, replayed, tried,
};

/// Runs them, and returns the names of the verdicts.
pub(crate) async fn batch(inbox: &Inbox, handler: &Does, messages: &[Received]) -> Vec<String> {
    named(messages, timeout(LIMIT, inbox.run_batch(handler, messages)).await.expect("a batch ends"))
}

/// The key of each message with the name of its verdict.
pub(crate) fn named(messages: &[Received], results: Vec<Result<Verdict<String>, Error>>) -> Vec<String> {
    let named = |(message, result): (&Received, Result<Verdict<String>, Error>)| {
        let key = message.header_value("Idempotency-Key").unwrap_or_default();
        match result {
            Ok(Verdict::Handled(Answer::Done(_))) => format!("{key} handled"),
            Ok(Verdict::Handled(_)) => format!("{key} rejected"),
            Ok(Verdict::Replayed(_)) => format!("{key} replayed"),
            Ok(Verdict::Mismatch) => format!("{key} mismatch"),
            Ok(Verdict::Retry { .. }) => format!("{key} retry"),
            Ok(Verdict::Dead { .. }) => format!("{key} dead"),
            Ok(other) => format!("{key} {other:?}"),
            Err(Error::Unavailable(..)) => format!("{key} unavailable"),
            Err(error) => format!("{key} error: {error}"),
        }
    };
    assert_eq!(results.len(), messages.len());
    messages.iter().zip(results).map(named).collect()
}

pub(crate) fn in_line(line: &str, message: Received) -> Received {
    message.header("Oncebox-Ordering-Key", line)
}

/// Plain messages `prefix0`, `prefix1` and so on.
pub(crate) fn plain(prefix: &str, numbers: std::ops::Range<i64>) -> Vec<Received> {
    numbers.map(|n| message(&format!("{prefix}{n}"), n)).collect()
}

/// How many transactions have claimed the keys that are stored.
pub(crate) async fn transactions(env: &TestEnv) -> i64 {
    let sql = "SELECT count(DISTINCT xmin::text) FROM oncebox.inbox";
    env.pg().await.query_one(sql, &[]).await.unwrap().get(0)
}

/// Ends in as many ways as a handler can.
fn every_way() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            match job.n {
                1 => Ok(Outcome::done(reply)),
                2 => Ok(Outcome::reject(reply)),
                3 => Ok(Outcome::retry(LIMIT)),
                4 => Ok(Outcome::dead("no")),
                5 => panic!("a mistake"),
                6 => Err("a failure".into()),
                7 => Ok(Outcome::done("x".repeat(2 << 20))),
                8 => {
                    drop(cx.transaction().batch_execute("SELECT 1/0").await);
                    Ok(Outcome::done(reply))
                }
                _ => {
                    tokio::time::sleep(LIMIT).await;
                    Ok(Outcome::done(reply))
                }
            }
        })
    })
}

#[tokio::test]
async fn each_message_of_a_batch_ends_as_it_would_alone() {
    let env = environment().await;
    let inbox = builder(&env).handler_timeout(Duration::from_secs(1)).build().unwrap();
    let handler = every_way();
    let messages = [
        message("a", 1),
        message("a", 1),
        message("b", 2),
        message("c", 3),
        message("d", 4),
        message("e", 5),
        message("f", 6),
        message("g", 7),
        message("h", 1),
        message("a", 2),
        message("b", 2),
        message("d", 4),
        Received::new("s.t", "{").header("Idempotency-Key", "j"),
        Received::new("s.t", "{\"n\":1}"),
        message("over", 1).deliveries(21),
        message("swallowed", 8),
        message("slow", 9),
        message("k", 1),
        message("swallowed-last", 8),
    ];
    tried(&env, "over", 20).await;
    let ended = batch(&inbox, &handler, &messages).await;
    let expected = [
        "a handled",
        "a replayed",
        "b rejected",
        "c retry",
        "d dead",
        "e retry",
        "f retry",
        "g dead",
        "h handled",
        "a mismatch",
        "b replayed",
        "d dead",
        "j dead",
        " dead",
        "over dead",
        "swallowed retry",
        "slow retry",
        "k handled",
        "swallowed-last retry",
    ];
    assert_eq!(ended, expected);
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (4, 8));
    assert_eq!(dead_letters(&env).await.len(), 6);
    let counts = inbox.counts();
    assert_eq!((counts.handled, counts.rejected, counts.replayed, counts.mismatched), (4, 1, 3, 1));
    assert_eq!((counts.retried, counts.dead, counts.in_flight), (6, 5, 0));
    // A failed message's key is free.
    let again = batch(&inbox, &Does::effect(), &[message("c", 3), message("e", 5), message("f", 6)]).await;
    assert_eq!(again, ["c handled", "e handled", "f handled"]);
}

/// The replies are those of each message, and the duplicates', of the first run.
#[tokio::test]
async fn a_batch_shares_a_commit_and_its_duplicates_get_the_same_replies() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Does::new(|_, job| Box::pin(async move { Ok(Outcome::done(format!("reply {}", job.n))) }));
    let messages = plain("k", 0..60);
    let first = inbox.run_batch(&handler, &messages).await;
    assert_eq!(transactions(&env).await, 1);
    let second = inbox.run_batch(&handler, messages.iter().rev()).await;
    for (n, (first, second)) in first.into_iter().zip(second.into_iter().rev()).enumerate() {
        let answer = Answer::Done(format!("reply {n}"));
        assert_eq!(first.unwrap(), Verdict::Handled(answer.clone()));
        assert_eq!(replayed(&second.unwrap()), answer);
    }
    assert_eq!(handler.runs(), 60);
    assert_eq!(inbox.run_batch(&handler, &[]).await.len(), 0);
    // More than a transaction takes, with a pooler that keeps nothing prepared.
    let pooled = builder(&env).behind_pooler().build().unwrap();
    let ended = batch(&pooled, &Does::effect(), &plain("m", 0..150)).await;
    assert!(ended.iter().all(|verdict| verdict.ends_with("handled")), "{ended:?}");
    // Three more, unless the machine is so busy that a round ends before it has 64.
    let all = transactions(&env).await;
    assert!(effects(&env).await == 150 && (4..=20).contains(&all), "{all} transactions");
}

/// Batches with the same keys in any order run beside each other; no batch waits for a claim.
#[tokio::test]
async fn batches_with_the_same_keys_neither_deadlock_nor_run_anything_twice() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Does::effect();
    let mut workers = JoinSet::new();
    for worker in 0_i64..8 {
        let (inbox, handler) = (inbox.clone(), handler.clone());
        workers.spawn(async move {
            for round in 0..30 {
                // Each in an order of its own: steps of different odd widths through the same 40
                // keys.
                let keys = (0..40).map(|place| round * 40 + (place * (2 * worker + 3) + worker) % 40);
                let mut left: Vec<Received> = keys.map(|n| message(&format!("k{n}"), n)).collect();
                while !left.is_empty() {
                    let results = inbox.run_batch(&handler, &left).await;
                    let ended = results.into_iter().map(|result| {
                        !matches!(result.expect("no error"), Verdict::InFlight | Verdict::Retry { .. })
                    });
                    let ended: Vec<bool> = ended.collect();
                    let mut ended = ended.into_iter();
                    left.retain(|_| !ended.next().unwrap());
                }
            }
        });
    }
    let all = async {
        while let Some(ended) = workers.join_next().await {
            ended.unwrap()
        }
    };
    // They work all the time: on a machine that has other work this takes a while.
    timeout(LIMIT * 4, all).await.expect("nobody waits for ever");
    assert_eq!(effects(&env).await, 1200);
    let sql = "SELECT count(*) FROM (SELECT FROM effect GROUP BY key HAVING count(*) > 1) AS twice";
    let pg = env.pg().await;
    assert_eq!(pg.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(pg.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
    assert_eq!((inbox.counts().retried, inbox.counts().handled), (0, 1200));
}

/// Handlers order their own locks; a deadlock costs no message an attempt, and neither batch its
/// effects.
#[tokio::test]
async fn a_deadlock_of_handlers_costs_no_attempt() {
    let env = environment().await;
    env.pg().await.batch_execute("INSERT INTO effect (key, n) VALUES ('x', 0), ('y', 1)").await.unwrap();
    let inbox = inbox(&env);
    let met = Arc::new(Barrier::new(2));
    let handler = Does::new(move |cx, job| {
        let met = Arc::clone(&met);
        Box::pin(async move {
            cx.transaction().execute("UPDATE effect SET line = line WHERE n = $1", &[&(job.n % 2)]).await?;
            if job.n < 2 {
                // Each has its first row now, and wants the other's.
                let _ = timeout(Duration::from_secs(2), met.wait()).await;
            }
            Ok(Outcome::done(String::new()))
        })
    });
    let (one, other) = ([message("a", 0), message("b", 3)], [message("c", 1), message("d", 2)]);
    let (one, other) = tokio::join!(batch(&inbox, &handler, &one), batch(&inbox, &handler, &other));
    assert_eq!(
        (one, other),
        (vec!["a handled".into(), "b handled".into()], vec!["c handled".into(), "d handled".into()])
    );
    assert_eq!((inbox.counts().handled, inbox.counts().retried), (4, 0));
}

/// The order per ordering key: those after a message without effect are not run, other lines are.
#[tokio::test]
async fn those_behind_a_failure_wait_in_their_line() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            match job.n {
                1 => Err("a failure".into()),
                2 => Ok(Outcome::retry(LIMIT)),
                3 => Ok(Outcome::dead("no")),
                _ => Ok(Outcome::done(reply)),
            }
        })
    });
    let messages = [
        in_line("fails", message("a", 1)),
        in_line("asks", message("b", 2)),
        in_line("dies", message("c", 3)),
        in_line("fails", message("d", 7)),
        in_line("asks", message("e", 7)),
        in_line("dies", message("f", 7)),
        in_line("fails", Received::new("s.t", "{}").header("Idempotency-Key", "g")),
        message("h", 7),
    ];
    let ended = batch(&inbox, &handler, &messages).await;
    let expected =
        ["a retry", "b retry", "c dead", "d Behind", "e Behind", "f handled", "g Behind", "h handled"];
    assert_eq!(ended, expected);
    assert_eq!((handler.runs(), effects(&env).await), (6, 2), "the failure was run once more by itself");
    assert_eq!(count(&env, "oncebox.inbox").await, 3);
}

/// A key that another transaction works on is in flight at once, and holds its line up.
#[tokio::test]
async fn a_key_that_another_works_on_is_in_flight() {
    let env = environment().await;
    let inbox = inbox(&env);
    let (started, over) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let slow = {
        let (started, over) = (Arc::clone(&started), Arc::clone(&over));
        Does::new(move |cx, job| {
            let (started, over) = (Arc::clone(&started), Arc::clone(&over));
            Box::pin(async move {
                started.wait().await;
                over.wait().await;
                Ok(Outcome::done(insert(cx, &job).await?))
            })
        })
    };
    let first = message("a", 1);
    let working = inbox.run(&slow, &first);
    let other = async {
        started.wait().await;
        let messages =
            [in_line("l", message("a", 1)), message("a", 1), in_line("l", message("b", 2)), message("c", 3)];
        let ended = batch(&inbox, &Does::effect(), &messages).await;
        assert_eq!(ended, ["a InFlight", "a InFlight", "b Behind", "c handled"]);
        over.wait().await;
    };
    let (verdict, ()) = tokio::join!(working, other);
    assert!(matches!(verdict, Ok(Verdict::Handled(_))));
    assert_eq!(effects(&env).await, 2);
}
