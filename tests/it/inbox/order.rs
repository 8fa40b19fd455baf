//! Order per ordering key, within a process and across processes that die.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_nats::jetstream::consumer::{DeliverPolicy, FromConsumer as _, pull};
use oncebox_inbox::{HandlerError, Order, Outcome};
use oncebox_tests::{TestEnv, eventually};

use crate::inbox::{
    consumer::{Running, consumer, publish},
    support::{Does, LIMIT, builder, dead_letters, effects, insert, stream_environment},
};

/// The effects of each ordering key, in the order they were committed: ids are drawn while the key
/// is claimed, and one message of a line is claimed at a time.
pub(crate) async fn lines(env: &TestEnv) -> HashMap<String, Vec<i64>> {
    let rows = env.pg().await.query("SELECT line, n FROM effect ORDER BY id", &[]).await.unwrap();
    let mut lines: HashMap<String, Vec<i64>> = HashMap::new();
    for row in rows {
        lines.entry(row.get(0)).or_default().push(row.get(1));
    }
    lines
}

pub(crate) fn assert_in_order(lines: &HashMap<String, Vec<i64>>) {
    for (line, effects) in lines {
        assert!(effects.windows(2).all(|pair| pair[0] < pair[1]), "{line}: {effects:?}");
    }
}

pub(crate) async fn publish_lines(env: &TestEnv, from: i64, to: i64) {
    let jetstream = env.jetstream().await;
    for n in from..to {
        publish(&jetstream, env.subject("a"), &format!("k{n}"), n, Some(&format!("line-{}", n % 7))).await;
    }
}

/// Some messages fail at first: those after them wait, other lines do not.
#[tokio::test]
async fn a_retry_keeps_its_place_in_its_line() {
    let env = stream_environment().await;
    publish_lines(&env, 0, 140).await;
    let failed: Arc<Mutex<HashMap<i64, u64>>> = Arc::default();
    let handler = Does::new(move |cx, job| {
        let runs = *failed.lock().unwrap().entry(job.n).and_modify(|runs| *runs += 1).or_insert(1);
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            match (job.n % 5, runs) {
                (0, 1 | 2) => Err(HandlerError::message("not yet")),
                (1, 1) => Ok(Outcome::retry(Duration::from_millis(20))),
                _ => Ok(Outcome::done(reply)),
            }
        })
    });
    let inbox = builder(&env).backoff(Duration::from_millis(10), Duration::from_millis(50)).build().unwrap();
    let running = Running::start(consumer(&env).await.concurrency(8), inbox.clone(), handler);
    eventually("all effects", LIMIT, async || (effects(&env).await == 140).then_some(())).await;
    running.stop().await;
    let lines = lines(&env).await;
    assert_eq!(lines.len(), 7);
    assert_in_order(&lines);
    assert_eq!(inbox.counts().retried, 28 * 3);
}

/// The process that consumes is killed again and again, with everything it holds; another stands
/// by.
#[tokio::test]
async fn strict_order_survives_the_death_of_processes() {
    let env = stream_environment().await;
    let total = 700;
    publish_lines(&env, 0, total / 2).await;
    let start = async || {
        let handler = Does::new(|cx, job| {
            Box::pin(async move {
                let reply = insert(cx, &job).await?;
                tokio::time::sleep(Duration::from_millis(u64::try_from(job.n * 7 % 9).unwrap())).await;
                Ok(Outcome::done(reply))
            })
        });
        let strict =
            consumer(&env).await.order(Order::Strict).concurrency(8).ack_wait(Duration::from_secs(20));
        // The inbox's connections die with it, as a process's would.
        Running::start(strict, builder(&env).build().unwrap(), handler)
    };
    let mut processes = vec![start().await, start().await];
    let mut published = total / 2;
    for death in 0..8 {
        let goal = total / 10 * (death + 1);
        eventually("progress", LIMIT, async || (effects(&env).await >= goal).then_some(())).await;
        // One of the two leads; killing both in turn kills the leader.
        let mut victim = processes.remove(0);
        victim.tasks.shutdown().await;
        processes.push(start().await);
        if death % 2 == 0 && published < total {
            let more = (published + total / 8).min(total);
            publish_lines(&env, published, more).await;
            published = more;
        }
    }
    publish_lines(&env, published, total).await;
    eventually("all effects", LIMIT * 2, async || (effects(&env).await == total).then_some(())).await;
    let lines = lines(&env).await;
    assert_in_order(&lines);
    assert_eq!(lines.values().map(Vec::len).sum::<usize>(), usize::try_from(total).unwrap());
    for process in processes {
        process.stop().await;
    }
}

/// JetStream forgets a pause with the consumer that a takeover deletes: restarts would use up the
/// attempts of a message that waits for its next one.
#[tokio::test]
async fn a_pause_holds_through_takeovers() {
    let pause = Duration::from_secs(6);
    let env = stream_environment().await;
    publish_lines(&env, 0, 8).await;
    let rested: Arc<Mutex<Vec<f64>>> = Arc::default();
    let start = async || {
        let rested = Arc::clone(&rested);
        // A run whose transaction was lost is no attempt, so the record tells.
        let fails_once = Does::new(move |cx, job| {
            let rested = Arc::clone(&rested);
            Box::pin(async move {
                if job.n == 0 {
                    let sql = "SELECT extract(epoch FROM clock_timestamp() - failed_at)::float8
                               FROM oncebox.inbox_attempt WHERE key = $1 AND failures > 0";
                    let failed = cx.transaction().query_opt(sql, &[&cx.key().as_str()]).await?;
                    let failed = failed.ok_or_else(|| HandlerError::message("not yet"))?;
                    rested.lock().unwrap().push(failed.get(0));
                }
                Ok(Outcome::done(insert(cx, &job).await?))
            })
        });
        let inbox = builder(&env).attempts_max(3).backoff(pause, pause).build().unwrap();
        Running::start(consumer(&env).await.order(Order::Strict), inbox, fails_once)
    };
    for _ in 0..3 {
        let process = start().await;
        eventually("the others of its line wait, other lines do not", LIMIT, async || {
            (effects(&env).await >= 6).then_some(())
        })
        .await;
        process.stop().await;
    }
    // One more takeover, which ended before anything was delivered.
    let stream = env.stream().await;
    let mut config = stream.consumer_info("d").await.unwrap().config;
    config.deliver_policy = DeliverPolicy::ByStartSequence { start_sequence: 1 };
    stream.delete_consumer("d").await.unwrap();
    stream.create_consumer(pull::Config::try_from_consumer_config(config).unwrap()).await.unwrap();
    let process = start().await;
    eventually("all effects", LIMIT, async || (effects(&env).await == 8).then_some(())).await;
    process.stop().await;
    let rested = rested.lock().unwrap().clone();
    assert!(
        !rested.is_empty() && rested.iter().all(|rested| *rested >= pause.as_secs_f64() / 2.0),
        "{rested:?}"
    );
    assert_in_order(&lines(&env).await);
}

/// A recreated consumer counts deliveries from 1 again, so takeovers are counted instead.
#[tokio::test]
async fn a_message_that_kills_every_leader_ends_as_a_dead_letter() {
    let env = stream_environment().await;
    publish_lines(&env, 0, 3).await;
    let killer: Arc<tokio::sync::Notify> = Arc::default();
    let mut runs = 0;
    while dead_letters(&env).await.is_empty() {
        runs += 1;
        assert!(runs <= 7, "it ends");
        let handler = Does::new({
            let killer = Arc::clone(&killer);
            move |cx, job| {
                let killer = Arc::clone(&killer);
                Box::pin(async move {
                    if job.n == 1 {
                        killer.notify_one();
                        std::future::pending::<()>().await;
                    }
                    Ok(Outcome::done(insert(cx, &job).await?))
                })
            }
        });
        let inbox = builder(&env).attempts_max(3).build().unwrap();
        let mut process = Running::start(consumer(&env).await.order(Order::Strict), inbox, handler);
        let dead = eventually("a death or the end", LIMIT, async || {
            let killed = tokio::time::timeout(Duration::from_millis(50), killer.notified()).await.is_ok();
            let ended = !dead_letters(&env).await.is_empty();
            (killed || ended).then_some(killed)
        })
        .await;
        if dead {
            // Let the others be acknowledged, so that the floor is right before the killer.
            eventually("the others", LIMIT, async || (effects(&env).await == 2).then_some(())).await;
            process.tasks.shutdown().await;
        } else {
            process.stop().await;
        }
    }
    eventually("the others", LIMIT, async || (effects(&env).await == 2).then_some(())).await;
    assert_eq!(runs, 6, "two deaths that tell who it was, three attempts, then the dead letter");
}

/// I2: its session says nothing, and PostgreSQL ends it.
#[tokio::test]
async fn a_suspended_leader_stops_its_standby_for_half_a_minute_at_most() {
    let env = stream_environment().await;
    publish_lines(&env, 0, 70).await;
    let (suspended, is_suspended) = std::sync::mpsc::channel::<()>();
    let (wakes, awakened) = std::sync::mpsc::channel::<()>();
    let awakened = Arc::new(Mutex::new(awakened));
    let strict = consumer(&env).await.order(Order::Strict).ack_wait(Duration::from_secs(5));
    // Its claim of a key ends with its handler's time.
    let inbox = builder(&env).handler_timeout(Duration::from_secs(5)).build().unwrap();
    let leader = strict.clone();
    // A handler that holds the only thread of its runtime suspends all that belongs to it.
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let handler = Does::new(move |cx, job| {
                let (suspended, awakened) = (suspended.clone(), Arc::clone(&awakened));
                Box::pin(async move {
                    let _ = suspended.send(());
                    let _ = awakened.lock().unwrap().recv_timeout(LIMIT * 4);
                    Ok(Outcome::done(insert(cx, &job).await?))
                })
            });
            let mut running = Running::start(leader, inbox, handler);
            tokio::time::sleep(Duration::from_secs(3)).await;
            running.tasks.shutdown().await;
        });
    });
    let has_begun = tokio::task::spawn_blocking(move || is_suspended.recv_timeout(LIMIT));
    has_begun.await.unwrap().unwrap();
    let standby = Running::start(strict, builder(&env).build().unwrap(), Does::effect());
    eventually("all effects", LIMIT * 2, async || (effects(&env).await == 70).then_some(())).await;
    drop(wakes);
    tokio::task::spawn_blocking(move || process.join()).await.unwrap().unwrap();
    assert_in_order(&lines(&env).await);
    assert_eq!(effects(&env).await, 70);
    standby.stop().await;
}

/// Each client library writes the time in a form of its own; a stream that was made again counts
/// from 1.
#[tokio::test]
async fn all_languages_find_the_place_that_one_of_them_has_recorded() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let forms = [
        "2026-11-28 3:06:05.123456789 +00:00:00",
        "2026-11-28T03:06:05.123456789Z",
        "2026-11-28T04:06:05.123456789+01:00",
    ];
    client.batch_execute("SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'SQL, DMY'").await.unwrap();
    for (sequence, recorded) in (7_i64..).zip(forms) {
        let record = "SELECT oncebox.continue_consumer('S', 'd', $1, $2, false)";
        client.query_one(record, &[&recorded, &sequence]).await.unwrap();
        for created in forms.iter().chain(&["2026-11-28T03:06:05Z"]) {
            let place = "SELECT oncebox.consumer_place('S', 'd', $1)";
            let place: Option<i64> = client.query_one(place, &[created]).await.unwrap().get(0);
            assert_eq!(place, forms.contains(created).then_some(sequence), "{recorded}, {created}");
        }
    }
}
