//! "Not now, and it is not the message's fault": snoozes, in every mode.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use async_nats::jetstream::consumer::{PullConsumer, pull};
use futures_util::StreamExt;
use oncebox_inbox::{Counts, HandlerError, Inbox, Leased, Outcome, Received, Verdict, metrics_text};
use oncebox_tests::{TestEnv, eventually};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    inbox::{
        consumer::{Running, consumer, publish, settled},
        support::{
            Does, LIMIT, SCOPE, builder, count, dead_letters, effects, insert, message, stream_environment,
        },
    },
    leased::support::{LEASE, Pays},
};

const PAUSE: Duration = Duration::from_millis(100);

/// The behaviour of a run, by its number.
type Script = fn(u64) -> What;

enum What {
    Snoozes,
    Fails,
    Works,
}

fn snoozes() -> Outcome<String> {
    Outcome::snooze(PAUSE, "the ledger is closed")
}

/// Writes first.
fn scripted(script: Script) -> Does {
    let runs = Arc::new(AtomicU64::new(0));
    Does::new(move |cx, job| {
        let what = script(runs.fetch_add(1, SeqCst) + 1);
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            match what {
                What::Snoozes => Ok(snoozes()),
                What::Fails => Err(HandlerError::message("no luck")),
                What::Works => Ok(Outcome::done(reply)),
            }
        })
    })
}

/// Like `scripted`, but under a lease and with an effect, which is remembered.
fn scripted_under_lease(script: Script) -> Pays {
    let runs = Arc::new(AtomicU64::new(0));
    Pays::new(move |cx, _| {
        let what = script(runs.fetch_add(1, SeqCst) + 1);
        Box::pin(async move {
            let step = cx.effect("look").call(|_| async { Ok("seen".to_owned()) });
            let seen = step.provider_idempotent().await?;
            match what {
                What::Snoozes => Ok(snoozes()),
                What::Fails => Err(HandlerError::message("no luck")),
                What::Works => Ok(Outcome::done(seen)),
            }
        })
    })
}

/// How a consumer is run.
#[derive(Clone, Copy, Debug)]
enum Way {
    EachAlone,
    InBatches,
    UnderLease,
    /// Held while it is snoozed, instead of given back.
    InOrder,
}

const WAYS: [Way; 4] = [Way::EachAlone, Way::InBatches, Way::UnderLease, Way::InOrder];

/// Runs one message through a consumer until it is settled; its runs, and how they ended.
async fn consumed(way: Way, script: Script, snooze_max: Duration) -> (TestEnv, u64, Counts) {
    let env = stream_environment().await;
    let line = matches!(way, Way::InOrder).then_some("line");
    publish(&env.jetstream().await, env.subject("a"), "k", 7, line).await;
    let limited = builder(&env).attempts_max(3).snooze_max(snooze_max);
    let consumer = consumer(&env).await;
    let (inbox, runs): (Inbox, Box<dyn Fn() -> u64>) = match way {
        Way::UnderLease => {
            let leased: Leased = limited.leased(LEASE).build().unwrap();
            let (inbox, handler) = (leased.inbox().clone(), scripted_under_lease(script));
            let counted = handler.clone();
            let shutdown = CancellationToken::new();
            let mut tasks = JoinSet::new();
            tasks.spawn(consumer.run(leased, handler, shutdown.clone()));
            until_ended(&inbox).await;
            settled(&env).await;
            Running { shutdown, tasks }.stop().await;
            (inbox, Box::new(move || counted.runs()))
        }
        Way::EachAlone | Way::InBatches | Way::InOrder => {
            let (inbox, handler) = (limited.build().unwrap(), scripted(script));
            let size = if matches!(way, Way::InBatches) { 8 } else { 1 };
            let running = Running::start(consumer.batch(size), inbox.clone(), handler.clone());
            until_ended(&inbox).await;
            settled(&env).await;
            running.stop().await;
            (inbox, Box::new(move || handler.runs()))
        }
    };
    let counts = inbox.counts();
    let text = metrics_text([&inbox]);
    let series =
        format!("oncebox_inbox_messages_total{{scope=\"{SCOPE}\",outcome=\"snoozed\"}} {}\n", counts.snoozed);
    assert!(text.contains(&series), "{way:?}: {text}");
    (env, runs(), counts)
}

async fn until_ended(inbox: &Inbox) {
    eventually("the message ends", LIMIT, async || {
        let counts = inbox.counts();
        (counts.handled + counts.dead > 0).then_some(())
    })
    .await;
}

const LONG: Duration = Duration::from_secs(3600);

/// A message is snoozed far more often than it may be tried, and works in the end; each snooze
/// rolls back the writes of its handler.
#[tokio::test]
async fn parks_bring_a_message_no_nearer_to_its_delivery_limit_and_leave_no_effect() {
    for way in WAYS {
        let script: Script = |run| if run <= 8 { What::Snoozes } else { What::Works };
        let (env, runs, counts) = consumed(way, script, LONG).await;
        assert_eq!((runs, counts.snoozed, counts.handled), (9, 8, 1), "{way:?}");
        assert_eq!((counts.dead, counts.retried), (0, 0), "{way:?}");
        assert_eq!((effects(&env).await, count(&env, "oncebox.dead_letter").await), (1, 0), "{way:?}");
    }
}

/// The failures count, with pauses between them: three attempts are three.
#[tokio::test]
async fn failures_between_parks_lead_to_a_dead_letter_as_ever() {
    for way in WAYS {
        let script: Script = |run| if run.is_multiple_of(3) { What::Fails } else { What::Snoozes };
        let (env, runs, counts) = consumed(way, script, LONG).await;
        assert_eq!((runs, counts.snoozed, counts.retried, counts.dead), (9, 6, 2, 1), "{way:?}");
        let reasons = dead_letters(&env).await;
        assert!(reasons[0].starts_with("delivery limit of 3 reached: no luck"), "{way:?}: {reasons:?}");
        assert_eq!((effects(&env).await, count(&env, "oncebox.inbox_snooze").await), (0, 0), "{way:?}");
    }
}

/// The bound of snoozes: a time.
#[tokio::test]
async fn a_message_that_is_parked_for_too_long_ends_as_a_dead_letter() {
    for way in WAYS {
        let (env, runs, counts) = consumed(way, |_| What::Snoozes, Duration::from_secs(1)).await;
        assert_eq!((counts.dead, counts.retried, counts.snoozed), (1, 0, runs - 1), "{way:?}");
        let reasons = dead_letters(&env).await;
        assert!(
            reasons[0].starts_with("snoozed for too long") && reasons[0].contains("the ledger is closed"),
            "{way:?}: {reasons:?}"
        );
        assert_eq!((effects(&env).await, count(&env, "oncebox.inbox_snooze").await), (0, 0), "{way:?}");
        assert_eq!(count(&env, "oncebox.inbox_claim").await, 0, "{way:?}");
    }
}

/// The next delivery of the message, as an earlier process had it: that process tells JetStream
/// nothing.
async fn delivery(raw: &PullConsumer, number: u64) -> Received {
    let mut process = raw.batch().max_messages(1).expires(Duration::from_secs(5)).messages().await.unwrap();
    let message = process.next().await.expect("a delivery").unwrap();
    let received = Received::from_jetstream(&message).unwrap();
    assert_eq!(received.delivery_count(), number);
    received
}

/// The process dies after a snooze is recorded and before JetStream hears of it; the delivery after
/// counts as the first. Those that leave no trace count, so that a message that kills its process
/// still ends.
#[tokio::test]
async fn a_park_is_remembered_by_a_process_that_never_knew_of_it() {
    let env = stream_environment().await;
    publish(&env.jetstream().await, env.subject("a"), "k", 7, None).await;
    let config = pull::Config {
        durable_name: Some("d".into()),
        ack_wait: Duration::from_millis(300),
        ..Default::default()
    };
    let raw = env.stream().await.create_consumer(config).await.unwrap();
    let process = || builder(&env).attempts_max(2).build().unwrap();
    let snoozing = scripted(|_| What::Snoozes);
    for number in 1..=4 {
        let verdict = process().run(&snoozing, &delivery(&raw, number).await).await.unwrap();
        assert!(
            matches!(&verdict, Verdict::Retry { after, reason } if *after == PAUSE && reason == "snoozed: the ledger is closed"),
            "{number}: {verdict:?}"
        );
        tokio::time::sleep(PAUSE).await;
    }
    // The fifth delivery kills its process, and so do those after it: two that only raise a
    // suspicion, then two attempts.
    let entered = Arc::new(Notify::new());
    let deadly = Does::new({
        let entered = Arc::clone(&entered);
        move |_, _| {
            entered.notify_one();
            Box::pin(std::future::pending())
        }
    });
    for number in 5..=7 {
        let (inbox, received) = (process(), delivery(&raw, number).await);
        tokio::select! {
            ended = inbox.run(&deadly, &received) => panic!("{ended:?}"),
            () = entered.notified() => {}
        }
    }
    let last = delivery(&raw, 8).await;
    let verdict = process().run(&snoozing, &last).await.unwrap();
    assert!(matches!(&verdict, Verdict::Dead { reason } if reason.contains("left no trace")), "{verdict:?}");
    assert_eq!((snoozing.runs(), effects(&env).await), (4, 0));
}

/// The pauses that handlers name have bounds, and impossible ones are refused.
#[tokio::test]
async fn pauses_and_limits_of_parks_are_bounded() {
    let env = stream_environment().await;
    let inbox = builder(&env).build().unwrap();
    for (asked, expected) in [(Duration::ZERO, PAUSE), (Duration::MAX, Duration::from_secs(3600))] {
        let handler =
            Does::new(move |_, _| Box::pin(async move { Ok(Outcome::snooze(asked, "x\0".repeat(2000))) }));
        let verdict = inbox.run(&handler, &message(&format!("{asked:?}"), 1)).await.unwrap();
        assert!(matches!(&verdict, Verdict::Retry { after, .. } if *after == expected), "{verdict:?}");
    }
    for wrong in [Duration::ZERO, Duration::from_secs(31 * 24 * 3600)] {
        let error = builder(&env).snooze_max(wrong).build().unwrap_err().to_string();
        assert!(error.contains("snooze_max is not 1 second to 30 days"), "{error}");
    }
}

/// A row is needed as long as its message may come again, and deleted when its key has ended.
#[tokio::test]
async fn rows_of_parks_go_when_their_keys_have_ended() {
    let env = stream_environment().await;
    let inbox = builder(&env).build().unwrap();
    let snoozing = scripted(|_| What::Snoozes);
    for key in ["ended", "still-snoozed", "forgotten"] {
        inbox.run(&snoozing, &message(key, 1)).await.unwrap();
    }
    inbox.run(&Does::effect(), &message("ended", 1)).await.unwrap();
    let pg = env.pg().await;
    let age = "UPDATE oncebox.inbox_snooze SET due_at = due_at - interval '1 hour';
               UPDATE oncebox.inbox_snooze SET due_at = due_at - interval '40 days' WHERE key = 'forgotten'";
    pg.batch_execute(age).await.unwrap();
    while inbox.sweep_once().await.unwrap().is_some() {}
    let rows = pg.query("SELECT key FROM oncebox.inbox_snooze", &[]).await.unwrap();
    let keys: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(keys, ["still-snoozed"]);
}
