//! The consumer runtime in batches.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use oncebox_inbox::{Consumer, Error, HandlerError, Order, Outcome};
use oncebox_tests::eventually;

use crate::inbox::{
    batch::transactions,
    consumer::{Running, consumer, publish, settled},
    order::{assert_in_order, lines, publish_lines},
    support::{Does, LIMIT, builder, dead_letters, effects, inbox, insert, stream_environment},
};

/// With more than a message per transaction, and a dead one among them.
#[tokio::test]
async fn a_consumer_in_batches_has_each_effect_once() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    for round in 0..2 {
        for n in 0..200 {
            publish(&jetstream, env.subject(&format!("r{round}")), &format!("k{n}"), n, None).await;
        }
    }
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            match job.n {
                7 => Ok(Outcome::dead("no")),
                _ => Ok(Outcome::done(insert(cx, &job).await?)),
            }
        })
    });
    let inbox = inbox(&env);
    let running = Running::start(consumer(&env).await.concurrency(2).batch(50), inbox.clone(), handler);
    eventually("all effects", LIMIT, async || (effects(&env).await >= 199).then_some(())).await;
    settled(&env).await;
    running.stop().await;
    assert_eq!((effects(&env).await, dead_letters(&env).await), (199, vec!["no".to_owned()]));
    assert_eq!((inbox.counts().handled, inbox.counts().replayed), (199, 200));
    let transactions = transactions(&env).await;
    assert!(transactions <= 40, "{transactions} transactions for 200 messages");
}

/// Some messages fail at first: those after them wait, in the same batch and after it.
#[tokio::test]
async fn a_retry_keeps_its_place_in_its_line_in_batches() {
    let env = stream_environment().await;
    publish_lines(&env, 0, 140).await;
    let failed: Arc<Mutex<HashMap<i64, u64>>> = Arc::default();
    let handler = Does::new(move |cx, job| {
        let runs = *failed.lock().unwrap().entry(job.n).and_modify(|runs| *runs += 1).or_insert(1);
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            match (job.n % 5, runs) {
                (0, 1..=4) => Err(HandlerError::message("not yet")),
                (1, 1) => Ok(Outcome::retry(Duration::from_millis(20))),
                _ => Ok(Outcome::done(reply)),
            }
        })
    });
    let inbox = builder(&env).backoff(Duration::from_millis(10), Duration::from_millis(50)).build().unwrap();
    let running = Running::start(consumer(&env).await.concurrency(3).batch(20), inbox.clone(), handler);
    eventually("all effects", LIMIT, async || (effects(&env).await == 140).then_some(())).await;
    running.stop().await;
    let lines = lines(&env).await;
    assert_eq!(lines.len(), 7);
    assert_in_order(&lines);
    let transactions = transactions(&env).await;
    assert!(transactions < 120, "{transactions} transactions for 140 messages");
}

/// Killed with everything it holds, batches in the middle of their transactions among it.
#[tokio::test]
async fn strict_order_survives_the_death_of_processes_in_batches() {
    let env = stream_environment().await;
    let total = 700;
    publish_lines(&env, 0, total).await;
    let start = async || {
        let handler = Does::new(|cx, job| {
            Box::pin(async move {
                let reply = insert(cx, &job).await?;
                tokio::time::sleep(Duration::from_millis(u64::try_from(job.n * 7 % 9).unwrap())).await;
                Ok(Outcome::done(reply))
            })
        });
        let strict = consumer(&env).await.order(Order::Strict).concurrency(4).batch(16);
        Running::start(strict.ack_wait(Duration::from_secs(20)), builder(&env).build().unwrap(), handler)
    };
    let mut processes = vec![start().await, start().await];
    for death in 0..6 {
        let goal = total / 8 * (death + 1);
        eventually("progress", LIMIT, async || (effects(&env).await >= goal).then_some(())).await;
        let mut victim = processes.remove(0);
        victim.tasks.shutdown().await;
        processes.push(start().await);
    }
    eventually("all effects", LIMIT * 2, async || (effects(&env).await == total).then_some(())).await;
    let lines = lines(&env).await;
    assert_in_order(&lines);
    assert_eq!(lines.values().map(Vec::len).sum::<usize>(), usize::try_from(total).unwrap());
    for process in processes {
        process.stop().await;
    }
}

#[tokio::test]
async fn a_batch_without_bounds_is_refused() {
    let env = stream_environment().await;
    for (consumer, part) in [
        (consumer(&env).await.batch(0), "batch is not 1 to 1000"),
        (consumer(&env).await.batch(1001), "batch is not 1 to 1000"),
        (consumer(&env).await.batch(1000).concurrency(21), "more than 20000 messages"),
    ] {
        let consumer: Consumer = consumer;
        let error = consumer.run(inbox(&env), Does::effect(), Default::default()).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid(problem) if problem.to_string().contains(part)), "{error}");
    }
}
