//! Batches of messages that were delivered before: they share transactions like others, and one
//! that may have ended a process runs by itself.

use std::time::Duration;

use oncebox_inbox::{Order, Outcome};
use oncebox_tests::{Log, eventually};

use crate::inbox::{
    batch::{batch, in_line, plain, transactions},
    consumer::{Running, consumer, publish, settled},
    order::lines,
    support::{
        Does, LIMIT, SCOPE, builder, count, effects, environment, inbox, insert, message, stream_environment,
    },
};

/// A handler whose effect needs a record of its run that other sessions can see.
fn needs_record() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            let sql = "SELECT begun FROM oncebox.inbox_attempt WHERE key = $1";
            let row = cx.transaction().query_opt(sql, &[&cx.key().as_str()]).await?;
            if row.is_none_or(|row| row.get::<_, i64>(0) != 1) {
                return Err("the run is not recorded".into());
            }
            Ok(Outcome::done(insert(cx, &job).await?))
        })
    })
}

#[tokio::test]
async fn messages_that_were_delivered_before_share_transactions() {
    let env = environment().await;
    let inbox = inbox(&env);
    let again: Vec<_> = plain("k", 0..60).into_iter().map(|message| message.deliveries(2)).collect();
    let ended = batch(&inbox, &needs_record(), &again).await;
    assert!(ended.iter().all(|verdict| verdict.ends_with("handled")), "{ended:?}");
    assert_eq!(effects(&env).await, 60);
    // One, unless the machine is so busy that a round ends before it has them all.
    let transactions = transactions(&env).await;
    assert!(transactions <= 10, "{transactions} transactions for 60 messages");
    assert_eq!(count(&env, "oncebox.inbox_attempt").await, 0, "nobody has to look at them any more");
    let ended = batch(&inbox, &Does::effect(), &again).await;
    assert!(ended.iter().all(|verdict| verdict.ends_with("replayed")), "{ended:?}");
    assert_eq!(count(&env, "oncebox.inbox_attempt").await, 0);
}

/// It holds up those after it in its line, and no other message.
#[tokio::test]
async fn of_a_batch_only_the_message_whose_run_left_no_trace_runs_by_itself() {
    let env = environment().await;
    let pg = env.pg().await;
    let untraced =
        "INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, begun) VALUES ($1, '', 'b', '', 1)";
    pg.execute(untraced, &[&SCOPE]).await.unwrap();
    let messages = [
        message("a", 1).deliveries(2),
        in_line("l", message("b", 2)).deliveries(2),
        message("c", 3).deliveries(2),
        in_line("l", message("d", 4)).deliveries(2),
        message("e", 5),
        in_line("m", message("f", 6)).deliveries(2),
        message("b", 2).deliveries(2),
    ];
    let (log, _guard) = Log::of_this_thread();
    let ended = batch(&inbox(&env), &Does::effect(), &messages).await;
    let expected =
        ["a handled", "b handled", "c handled", "d handled", "e handled", "f handled", "b replayed"];
    assert_eq!(ended, expected);
    let sql = "SELECT array_agg(key ORDER BY key) FROM oncebox.inbox GROUP BY xmin::text ORDER BY min(key)";
    let rows = pg.query(sql, &[]).await.unwrap();
    let together: Vec<Vec<String>> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(together, [vec!["a", "c", "e", "f"], vec!["b"], vec!["d"]]);
    assert_eq!(lines(&env).await["l"], [2, 4]);
    assert_eq!(log.count("runs alone"), 1, "{}", log.text());
    assert_eq!(count(&env, "oncebox.inbox_attempt").await, 0);
}

/// The one before it in its line rests, or the transaction had no time for it.
#[tokio::test]
async fn a_message_that_runs_by_itself_does_not_overtake_its_line() {
    let env = environment().await;
    let past = "INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, begun, failures, due_at)
                VALUES ($1, '', 'rests', '', 0, 1, now() + interval '1 hour'), ($1, '', 'alone', '', 1, 0, NULL),
                       ($1, '', 'late', '', 1, 0, NULL)";
    env.pg().await.execute(past, &[&SCOPE]).await.unwrap();
    let slow = Does::new(|cx, job| {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(if job.n == 3 { 700 } else { 0 })).await;
            Ok(Outcome::done(insert(cx, &job).await?))
        })
    });
    let messages = [
        in_line("l", message("rests", 1)).deliveries(2),
        in_line("l", message("alone", 2)).deliveries(2),
        message("slow", 3),
        in_line("m", message("early", 4)),
        in_line("m", message("late", 5)).deliveries(2),
    ];
    let ended = batch(&inbox(&env), &slow, &messages).await;
    assert_eq!(ended, ["rests retry", "alone Behind", "slow handled", "early handled", "late handled"]);
    assert_eq!(lines(&env).await["m"], [4, 5]);
}

/// The run that was rolled back with the batch is not taken for one that ended a process.
#[tokio::test]
async fn a_failure_among_them_is_one_attempt_and_costs_no_other_message_one() {
    let env = environment().await;
    let inbox = inbox(&env);
    let again: Vec<_> = plain("k", 0..8).into_iter().map(|message| message.deliveries(2)).collect();
    let fails = Does::new(|cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            if job.n == 3 { Err("a failure".into()) } else { Ok(Outcome::done(reply)) }
        })
    });
    let (log, _guard) = Log::of_this_thread();
    let ended = batch(&inbox, &fails, &again).await;
    assert_eq!(ended.iter().filter(|verdict| verdict.ends_with("handled")).count(), 7, "{ended:?}");
    assert_eq!(ended[3], "k3 retry");
    let sql = "SELECT key, failures, begun FROM oncebox.inbox_attempt";
    let rows = env.pg().await.query(sql, &[]).await.unwrap();
    let left: Vec<(String, i64, i64)> =
        rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1), row.get::<_, i64>(2))).collect();
    assert_eq!(left, [("k3".to_owned(), 1, 0)]);
    assert_eq!(log.count("runs alone"), 0, "{}", log.text());
}

/// With all messages that it held.
#[tokio::test]
async fn a_consumer_that_was_killed_goes_on_in_batches() {
    for order in [Order::Strict, Order::PerProcess] {
        let env = stream_environment().await;
        let jetstream = env.jetstream().await;
        for n in 0..200 {
            publish(&jetstream, env.subject("a"), &format!("k{n}"), n, None).await;
        }
        let settings = async || consumer(&env).await.order(order).concurrency(2).batch(50);
        let hangs = Does::new(|_, _| Box::pin(std::future::pending()));
        let mut killed = Running::start(settings().await, inbox(&env), hangs);
        let all_held = async || {
            let info = env.stream().await.consumer_info("d").await.ok()?;
            (info.num_ack_pending == 200).then_some(())
        };
        eventually("it holds all", LIMIT, all_held).await;
        killed.tasks.shutdown().await;
        let inbox = builder(&env).build().unwrap();
        let running = Running::start(settings().await, inbox.clone(), Does::effect());
        eventually("all effects", LIMIT, async || (effects(&env).await == 200).then_some(())).await;
        settled(&env).await;
        running.stop().await;
        let transactions = transactions(&env).await;
        assert!(transactions <= 40, "{transactions} transactions for 200 messages, {order:?}");
        assert_eq!(count(&env, "oncebox.inbox_attempt").await, 0, "{order:?}");
    }
}
