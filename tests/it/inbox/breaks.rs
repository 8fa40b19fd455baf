//! Runs that break their connection: a message that always does ends as a dead letter, an outage
//! costs no message an attempt.

use std::time::Duration;

use futures_util::future::BoxFuture;
use oncebox_inbox::{Context, Error, HandlerError, Outcome, Verdict};
use oncebox_tests::eventually;

use crate::{
    inbox::{
        consumer::{Running, consumer, publish},
        support::{
            Does, Job, LIMIT, builder, count, dead_letters, effects, environment, insert, message, rested,
            stream_environment,
        },
    },
    leased::support::{Pays, Provider},
};

const CODES: [&str; 5] = ["57P01", "57P02", "53400", "53200", "25006"];

async fn raise(cx: &Context<'_>, code: &str) -> Result<(), tokio_postgres::Error> {
    let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'poison' USING ERRCODE = '{code}'; END $$");
    cx.transaction().batch_execute(&raise).await
}

/// Ends its own session.
async fn terminate(cx: &Context<'_>) -> Result<(), tokio_postgres::Error> {
    cx.transaction().execute("SELECT pg_terminate_backend(pg_backend_pid())", &[]).await.map(drop)
}

/// Poison is told by its number: an error of PostgreSQL's for the first few, a lost connection for
/// all after.
fn poisoned() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            match usize::try_from(job.n - 1000) {
                Ok(poison) if poison < CODES.len() => raise(cx, CODES[poison]).await?,
                Ok(_) => terminate(cx).await?,
                Err(_) => {}
            }
            Ok(Outcome::done(reply))
        })
    })
}

/// In a stream where others go on.
#[tokio::test]
async fn poison_that_breaks_its_connection_ends_as_a_dead_letter() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let inbox = builder(&env).attempts_max(3).build().unwrap();
    let poison = CODES.len() + 1;
    for n in 0..poison {
        // Half of them hold a line.
        let line = (n % 2 == 0).then(|| format!("line {n}"));
        let number = 1000 + i64::try_from(n).unwrap();
        publish(&jetstream, env.subject("p"), &format!("poison{n}"), number, line.as_deref()).await;
    }
    let running = Running::start(consumer(&env).await.concurrency(4), inbox.clone(), poisoned());
    let mut others = 0;
    eventually("all poison is given up", LIMIT, async || {
        publish(&jetstream, env.subject("o"), &format!("other{others}"), others, None).await;
        others += 1;
        (dead_letters(&env).await.len() == poison).then_some(())
    })
    .await;
    eventually("the others are handled", LIMIT, async || (effects(&env).await == others).then_some(())).await;
    running.stop().await;
    let reasons = dead_letters(&env).await;
    assert!(reasons.iter().all(|reason| reason.contains("lost its connection")), "{reasons:?}");
    assert_eq!(count(&env, "oncebox.dead_letter WHERE key NOT LIKE 'poison%'").await, 0);
}

/// No other message is there to compare with: that PostgreSQL answers the inbox itself is enough.
/// The first time costs nothing.
#[tokio::test]
async fn poison_that_is_alone_ends_as_well() {
    let env = environment().await;
    let inbox = builder(&env).attempts_max(3).build().unwrap();
    for n in [1002, 1999] {
        let (handler, key) = (poisoned(), format!("k{n}"));
        let run = async |delivery| {
            rested(&env).await;
            inbox.run(&handler, &message(&key, n).deliveries(delivery)).await
        };
        let first = run(1).await;
        assert!(matches!(first, Err(Error::Unavailable(..))), "{first:?}");
        for attempt in 1..=2 {
            let again = run(attempt).await;
            assert!(matches!(again, Ok(Verdict::Retry { .. })), "{again:?}");
        }
        let last = run(3).await;
        assert!(matches!(&last, Ok(Verdict::Dead { reason }) if reason.contains("limit of 3")), "{last:?}");
        assert_eq!(handler.runs(), 4);
    }
    assert_eq!((effects(&env).await, inbox.counts().snoozed), (0, 0));
}

/// Another server that all need is away, not PostgreSQL: no message is given up, however often it
/// is tried, and nothing is lost when it is back. Here it is another database.
#[tokio::test]
async fn an_outage_of_what_all_need_costs_no_attempt() {
    const MESSAGES: i64 = 4;
    const ROUNDS: u64 = 12;
    let env = environment().await;
    let inbox = builder(&env).attempts_max(3).build().unwrap();
    // Bound and not listening any more: connections are refused.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let away = Does::new(move |cx, job| {
        Box::pin(async move {
            let reply = insert(cx, &job).await?;
            let url = format!("host=127.0.0.1 port={gone} user=nobody connect_timeout=2");
            drop(tokio_postgres::connect(&url, tokio_postgres::NoTls).await?);
            Ok(Outcome::done(reply))
        })
    });
    for delivery in 1..=ROUNDS {
        rested(&env).await;
        for n in 0..MESSAGES {
            let ended = inbox.run(&away, &message(&format!("k{n}"), n).deliveries(delivery)).await;
            let is_spared = match &ended {
                Err(Error::Unavailable(..)) => delivery == 1,
                Ok(Verdict::Retry { reason, .. }) => reason.starts_with("snoozed: "),
                _ => false,
            };
            assert!(is_spared, "{delivery}: {ended:?}");
        }
    }
    assert_eq!(dead_letters(&env).await.len(), 0);
    rested(&env).await;
    for n in 0..MESSAGES {
        let back = inbox.run(&Does::effect(), &message(&format!("k{n}"), n).deliveries(ROUNDS + 1)).await;
        assert!(matches!(back, Ok(Verdict::Handled(_))), "{back:?}");
    }
}

/// An error that `anyhow` has boxed is told by its sources: a conflict runs again at once, a lost
/// connection is one.
#[tokio::test]
async fn anyhow_hides_no_class() {
    type Boxed = for<'a> fn(&'a Context<'a>) -> BoxFuture<'a, Result<(), tokio_postgres::Error>>;
    let env = environment().await;
    let inbox = builder(&env).attempts_max(1).build().unwrap();
    let conflict: Boxed = |cx| Box::pin(raise(cx, "40001"));
    let refused: Boxed = |cx| Box::pin(raise(cx, "53200"));
    let closed: Boxed = |cx| {
        Box::pin(async move {
            // The second statement meets a connection that is closed.
            let _ = terminate(cx).await;
            cx.transaction().batch_execute("SELECT 1").await
        })
    };
    for (key, failing, runs) in [("conflict", conflict, 5), ("refused", refused, 1), ("closed", closed, 1)] {
        let handler = Does::new(move |cx, _: Job| {
            Box::pin(async move {
                failing(cx).await.map_err(anyhow::Error::from)?;
                Err(HandlerError::message("it did not fail"))
            })
        });
        let ended = inbox.run(&handler, &message(key, 7)).await;
        assert_eq!(handler.runs(), runs, "{key}: {ended:?}");
        let expected = match key {
            "conflict" => matches!(&ended, Ok(Verdict::Dead { reason }) if reason.contains("poison")),
            _ => matches!(ended, Err(Error::Unavailable(..))),
        };
        assert!(expected, "{key}: {ended:?}");
    }
}

/// Under a lease: the writes that end a run break its connection.
#[tokio::test]
async fn poison_under_a_lease_ends_as_well() {
    let env = environment().await;
    let leased = builder(&env).attempts_max(3).leased(Duration::from_secs(8)).build().unwrap();
    let provider = std::sync::Arc::<Provider>::default();
    let handler = Pays::charge(&provider).finishing(|cx| {
        Box::pin(async move {
            raise(cx, "53400").await?;
            Ok(())
        })
    });
    let mut ends = Vec::new();
    let last =
        eventually("it is given up", LIMIT, async || match leased.run(&handler, &message("k", 7)).await {
            Ok(Verdict::Dead { reason }) => Some(reason),
            Ok(Verdict::InFlight) => None,
            other => {
                ends.push(other.is_err());
                None
            }
        })
        .await;
    assert!(last.contains("limit of 3") && last.contains("poison"), "{last}");
    assert_eq!(ends, [true, false, false], "the first time costs no attempt");
    assert_eq!((provider.calls("k:charge"), effects(&env).await), (1, 0));
    tokio::time::timeout(Duration::from_secs(5), leased.inbox().check()).await.unwrap().unwrap();
}
