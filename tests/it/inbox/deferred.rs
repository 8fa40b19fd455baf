//! Writes that a handler leaves to the commit: they are as good as those it waits for, and cost no
//! round trip.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use oncebox_inbox::{
    Context, Handler, HandlerError, Inbox, MessageContext, Outcome, Set, Transaction, Verdict,
};
use tokio::time::{Instant, timeout};
use tokio_postgres::types::Type;

use crate::{
    inbox::{
        batch::{batch, named},
        pipeline::each,
        support::{
            Does, Job, LIMIT, Returned, SCOPE, builder, count, dead_letters, effects, environment, inbox,
            message,
        },
    },
    leased::support::{Pays, setup},
};

/// Leaves one row in `effect` to the commit.
async fn leave(transaction: &Transaction, cx: &MessageContext<'_>, n: i64) -> Result<(), HandlerError> {
    let sql = "INSERT INTO effect (key, n, line) VALUES ($1, $2, $3)";
    let statement = transaction.prepare_cached(sql).await?;
    cx.defer(&statement, &[&cx.key().as_str(), &n, &None::<&str>])
}

fn leaves_one() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            leave(cx.transaction(), cx, job.n).await?;
            Ok(Outcome::done(String::new()))
        })
    })
}

#[tokio::test]
async fn deferred_writes_are_committed_with_the_key_in_their_order() {
    let env = environment().await;
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            leave(cx.transaction(), cx, job.n).await?;
            let double = cx.transaction().prepare_cached("UPDATE effect SET n = 2 * n").await?;
            cx.defer(&double, &[])?;
            for n in 0..50 {
                leave(cx.transaction(), cx, n).await?;
            }
            cx.defer(&double, &[])?;
            let row = cx.transaction().query_one("SELECT count(*) FROM effect", &[]).await?;
            Ok(Outcome::done(format!("{} seen by the handler", row.get::<_, i64>(0))))
        })
    });
    let verdict = inbox(&env).run(&handler, &message("k", 7)).await.unwrap();
    assert!(format!("{verdict:?}").contains("0 seen by the handler"), "{verdict:?}");
    let sql =
        "SELECT array_agg(n ORDER BY id), count(DISTINCT line), (SELECT min(xmin::text) FROM oncebox.inbox),
                      min(xmin::text), max(xmin::text)
               FROM effect";
    let row = env.pg().await.query_one(sql, &[]).await.unwrap();
    let expected: Vec<i64> = std::iter::once(28).chain((0..50).map(|n| 2 * n)).collect();
    assert_eq!(row.get::<_, Vec<i64>>(0), expected);
    assert_eq!(row.get::<_, i64>(1), 0, "NULL stays NULL");
    let transactions: [String; 3] = [row.get(2), row.get(3), row.get(4)];
    assert!(transactions.iter().all(|id| *id == transactions[0]), "one transaction: {transactions:?}");
}

/// In a chain and in a batch: a failed message has no effect and stops no other, and runs again.
#[tokio::test]
async fn a_deferred_write_that_fails_is_the_handlers_failure() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = leaves_one();
    env.pg()
        .await
        .batch_execute("ALTER TABLE effect ADD CONSTRAINT not_two CHECK (n % 10 <> 2)")
        .await
        .unwrap();
    let ended = |prefix: &str, third: &str| -> Vec<String> {
        (0..5).map(|n| format!("{prefix}{n} {}", if n == 2 { third } else { "handled" })).collect()
    };
    let chain = || (0..5).map(|n| message(&format!("k{n}"), n));
    assert_eq!(sorted(each(&inbox, &handler, chain()).await), ended("k", "retry"));
    let messages: Vec<_> = (0..5).map(|n| message(&format!("b{n}"), 10 + n)).collect();
    assert_eq!(batch(&inbox, &handler, &messages).await, ended("b", "retry"));
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (8, 8));
    let Verdict::Retry { reason, .. } = inbox.run(&handler, &message("k2", 2)).await.unwrap() else {
        panic!("it has failed");
    };
    assert!(reason.contains("not_two"), "{reason}");
    env.pg().await.batch_execute("ALTER TABLE effect DROP CONSTRAINT not_two").await.unwrap();
    assert!(matches!(inbox.run(&handler, &message("k2", 2)).await.unwrap(), Verdict::Handled(_)));
    assert!(batch(&inbox, &handler, &messages).await.contains(&"b2 handled".to_owned()));
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (10, 10));
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

#[tokio::test]
async fn a_deferred_write_that_loses_a_race_runs_again_at_once() {
    let env = environment().await;
    let lose = "CREATE SEQUENCE tries;
                CREATE FUNCTION lose() RETURNS void LANGUAGE plpgsql AS $$
                BEGIN
                  IF nextval('tries') < 3 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END IF;
                END $$";
    env.pg().await.batch_execute(lose).await.unwrap();
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            leave(cx.transaction(), cx, job.n).await?;
            cx.defer(&cx.transaction().prepare_cached("SELECT lose()").await?, &[])?;
            Ok(Outcome::done(String::new()))
        })
    });
    assert!(matches!(inbox(&env).run(&handler, &message("k", 7)).await.unwrap(), Verdict::Handled(_)));
    assert_eq!((handler.runs(), effects(&env).await), (3, 1));
}

/// The whole batch runs again, in the same process, and the deferred writes of the first time are
/// forgotten.
#[tokio::test]
async fn a_batch_that_loses_a_race_writes_what_is_deferred_once() {
    let env = environment().await;
    let is_first = Arc::new(AtomicBool::new(true));
    let handler = Does::new(move |cx, job| {
        let is_first = Arc::clone(&is_first);
        Box::pin(async move {
            leave(cx.transaction(), cx, job.n).await?;
            if job.n == 1 && is_first.swap(false, SeqCst) {
                return Err(HandlerError::conflict("again at once"));
            }
            Ok(Outcome::done(String::new()))
        })
    });
    let messages: Vec<_> = (0..3).map(|n| message(&format!("k{n}"), n)).collect();
    let handled = (0..3).map(|n| format!("k{n} handled")).collect::<Vec<_>>();
    assert_eq!(batch(&inbox(&env), &handler, &messages).await, handled);
    assert_eq!(effects(&env).await, 3, "after {} runs", handler.runs());
}

#[tokio::test]
async fn behind_a_pooler_a_write_is_deferred_as_text() {
    let env = environment().await;
    let inbox = builder(&env).behind_pooler().build().unwrap();
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            let sql = "INSERT INTO effect (key, n, line) VALUES ($1, $2, $3)";
            let (key, line) = (cx.key().as_str(), None::<&str>);
            cx.defer_typed(sql, &[(&key, Type::TEXT), (&job.n, Type::INT8), (&line, Type::TEXT)])?;
            cx.defer_typed("UPDATE effect SET n = n * $1", &[(&2_i64, Type::INT8)])?;
            Ok(Outcome::done(String::new()))
        })
    });
    let chain = (1..3).map(|n| message(&format!("k{n}"), n));
    assert_eq!(each(&inbox, &handler, chain).await, ["k1 handled", "k2 handled"]);
    let client = env.pg().await;
    let row =
        client.query_one("SELECT array_agg(n ORDER BY id), count(line) FROM effect", &[]).await.unwrap();
    assert_eq!((row.get::<_, Vec<i64>>(0), row.get::<_, i64>(1)), (vec![4, 4], 0));
}

/// Leaves one row for each message, also when it gets many of them together.
struct Leaves {
    each: Does,
    sets: AtomicU64,
}

impl Handler for Leaves {
    type Message = Job;
    type Reply = String;

    async fn handle(&self, cx: Context<'_>, job: Job) -> Returned {
        self.each.handle(cx, job).await
    }

    const TAKES_SETS: bool = true;

    async fn handle_set(&self, set: Set<'_, Job>) -> Result<Vec<Outcome<String>>, HandlerError> {
        self.sets.fetch_add(1, SeqCst);
        for (cx, job) in set.iter() {
            leave(set.transaction(), cx, job.n).await?;
        }
        Ok(set.iter().map(|_| Outcome::done(String::new())).collect())
    }
}

#[tokio::test]
async fn messages_taken_together_defer_together() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Leaves { each: leaves_one(), sets: AtomicU64::new(0) };
    let messages: Vec<_> = (0..5).map(|n| message(&format!("a{n}"), n)).collect();
    let handled = (0..5).map(|n| format!("a{n} handled")).collect::<Vec<_>>();
    assert_eq!(named(&messages, inbox.run_batch(&handler, &messages).await), handled);
    assert_eq!((handler.sets.load(SeqCst), handler.each.runs(), effects(&env).await), (1, 0, 5));

    env.pg()
        .await
        .batch_execute("ALTER TABLE effect ADD CONSTRAINT not_twelve CHECK (n <> 12)")
        .await
        .unwrap();
    let messages: Vec<_> = (10..15).map(|n| message(&format!("b{n}"), n)).collect();
    let ended = (10..15).map(|n| format!("b{n} {}", if n == 12 { "retry" } else { "handled" }));
    assert_eq!(named(&messages, inbox.run_batch(&handler, &messages).await), ended.collect::<Vec<_>>());
    assert_eq!((handler.sets.load(SeqCst), effects(&env).await), (2, 9), "each by itself after the set");
}

#[tokio::test]
async fn what_is_not_committed_writes_nothing_later() {
    let env = environment().await;
    let inbox = builder(&env).attempts_max(50).build().unwrap();
    let left = Arc::new(AtomicU64::new(4));
    let handler = Does::new(move |cx, job| {
        let left = Arc::clone(&left);
        Box::pin(async move {
            leave(cx.transaction(), cx, job.n).await?;
            match left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
                Ok(4) => Ok(Outcome::retry(Duration::ZERO)),
                Ok(3) => Err(HandlerError::message("no")),
                Ok(2) => panic!("a mistake"),
                Ok(_) => Err(HandlerError::conflict("again at once")),
                Err(_) => Ok(Outcome::reject("but written".to_owned())),
            }
        })
    });
    for _ in 0..3 {
        let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
        assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");
        assert_eq!(effects(&env).await, 0);
    }
    let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
    assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    assert_eq!((handler.runs(), effects(&env).await), (5, 1));
}

#[tokio::test]
async fn a_deferred_write_that_cannot_be_sent_is_refused_at_once() {
    let env = environment().await;
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            let sql = "INSERT INTO effect (n) VALUES ($1)";
            let statement = cx.transaction().prepare_cached(sql).await?;
            match job.n {
                1 => cx.defer(&statement, &[])?,
                2 => cx.defer(&statement, &[&"a secret"])?,
                _ => (0..job.n).try_for_each(|n| cx.defer(&statement, &[&n]))?,
            }
            Ok(Outcome::done(String::new()))
        })
    });
    let inbox = inbox(&env);
    let reasons = [
        (1, "a deferred write has 0 parameters; its statement takes 1"),
        (2, "parameter $1 of a deferred write: "),
        (1001, "more than 1000 deferred writes; send arrays, or await some of the writes"),
    ];
    for (n, expected) in reasons {
        let verdict = inbox.run(&handler, &message(&format!("k{n}"), n)).await.unwrap();
        let Verdict::Retry { reason, .. } = verdict else { panic!("{n}: {verdict:?}") };
        assert!(reason.contains(expected) && !reason.contains("secret"), "{reason}");
    }
    assert_eq!(effects(&env).await, 0);
    assert!(matches!(inbox.run(&handler, &message("k", 1000)).await.unwrap(), Verdict::Handled(_)));
    assert_eq!(effects(&env).await, 1000);
    assert!(dead_letters(&env).await.is_empty());
}

#[tokio::test]
async fn the_end_of_a_leased_run_defers_as_well() {
    let (env, leased, provider) = setup().await;
    env.pg().await.batch_execute("ALTER TABLE effect ADD CONSTRAINT not_two CHECK (n <> 2)").await.unwrap();
    let handler = Pays::charge(&provider);
    let fails = handler.clone().finishing(|cx| Box::pin(leave(cx.transaction(), cx, 2)));
    let Verdict::Retry { reason, .. } = leased.run(&fails, &message("k", 7)).await.unwrap() else {
        panic!("the last write has failed");
    };
    assert!(reason.contains("not_two"), "{reason}");
    assert_eq!(effects(&env).await, 0);
    let writes = handler.finishing(|cx| Box::pin(leave(cx.transaction(), cx, 3)));
    let verdict = crate::leased::support::run_until_ended(&leased, &writes, &message("k", 7)).await;
    assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    assert_eq!(effects(&env).await, 1);
}

/// The connection ends when writes and COMMIT go out, and PostgreSQL has got them, or not.
#[tokio::test]
async fn an_answer_that_is_lost_doubles_no_deferred_write() {
    let env = environment().await;
    let (proxy, pool) = env.pool_through_proxy(2).await;
    let inbox = Inbox::builder(pool).scope(SCOPE).single_tenant().build().unwrap();
    let handler = leaves_one();
    inbox.run(&handler, &message("warm", 0)).await.unwrap();
    for (n, arrives) in [(1, false), (2, true)] {
        proxy.cut_when_client_sends(b"CLOSE oncebox_claim", arrives);
        let key = format!("k{n}");
        inbox.run(&handler, &message(&key, n)).await.unwrap_err();
        assert!(!proxy.is_armed(), "the connection was not lost");
        let again = async {
            loop {
                match inbox.run(&handler, &message(&key, n).deliveries(2)).await {
                    Ok(Verdict::InFlight) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    Ok(verdict) => break verdict,
                }
            }
        };
        let verdict = timeout(LIMIT, again).await.unwrap();
        assert_eq!(matches!(verdict, Verdict::Replayed(_)), arrives, "{verdict:?}");
        assert_eq!(effects(&env).await, n + 1);
    }
}

/// Over a line with a delay: one round trip a message instead of two.
#[tokio::test]
async fn a_deferred_write_costs_no_round_trip() {
    let env = environment().await;
    let (proxy, pool) = env.pool_through_proxy(1).await;
    let inbox = Inbox::builder(pool).scope(SCOPE).single_tenant().build().unwrap();
    let awaits = Does::new(|cx, Job { n }| {
        Box::pin(async move {
            let sql = "INSERT INTO effect (key, n, line) VALUES ($1, $2, $3)";
            let statement = cx.transaction().prepare_cached(sql).await?;
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                [&cx.key().as_str(), &n, &None::<&str>];
            cx.transaction().execute(&statement, &parameters).await?;
            Ok(Outcome::done(String::new()))
        })
    });
    let mut took = [Duration::ZERO; 2];
    for round in 0..3 {
        for (took, (name, handler)) in took.iter_mut().zip([("awaits", &awaits), ("defers", &leaves_one())]) {
            inbox.run(handler, &message(&format!("{name}{round}"), 0)).await.unwrap();
            proxy.slow(0, Duration::from_millis(4));
            let begun = Instant::now();
            let messages = (0..20).map(|n| message(&format!("{name}{round}-{n}"), n));
            assert_eq!(each(&inbox, handler, messages).await.len(), 20);
            *took += begun.elapsed();
            proxy.slow(0, Duration::ZERO);
        }
    }
    let [awaited, deferred] = took.map(|took| took.as_secs_f64());
    println!("awaited {awaited:.3} s, deferred {deferred:.3} s");
    assert!(deferred < 0.8 * awaited, "awaited {awaited:.3} s, deferred {deferred:.3} s");
}
