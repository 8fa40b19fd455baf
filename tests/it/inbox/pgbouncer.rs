//! The inbox through a real `PgBouncer` in transaction mode, in every mode.

use std::{sync::Arc, time::Duration};

use oncebox_inbox::{HandlerError, Inbox, Order, Outcome};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    inbox::{
        consumer::{Running as Consuming, consumer, publish, settled},
        support::{Does, SCOPE, count, dead_letters, effects, insert, message, stream_environment},
    },
    leased::support::{Mood, Pays, Provider, charge},
    postgres::pgbouncer::{BACKENDS, left_prepared, pool, pooler},
    relay::support::client,
};

fn inbox(url: &str) -> oncebox_inbox::Builder {
    let short = Duration::from_millis(50);
    Inbox::builder(pool(url, 8)).scope(SCOPE).single_tenant().backoff(short, short * 4)
}

#[tokio::test]
async fn inboxes_work_through_a_transaction_pooler() {
    let env = stream_environment().await;
    let Some((_pooler, url)) = pooler(&env).await else { return };
    let jetstream = env.jetstream().await;
    for round in 0..3 {
        for n in 0..60 {
            let subject = env.subject(&format!("round.{round}.{n}"));
            publish(&jetstream, subject, &format!("k{n}"), n, None).await;
        }
    }
    jetstream.publish(env.subject("bad"), "no key".into()).await.unwrap().await.unwrap();
    // A handler that replies, and fails now and then.
    let handler = || {
        Does::new(|cx, job| {
            Box::pin(async move {
                if job.n % 10 == 3 && cx.message().delivery_count() < 2 {
                    return Err(HandlerError::message("not yet"));
                }
                Ok(Outcome::done(insert(cx, &job).await?))
            })
        })
    };
    // Two processes, as far as the pooler knows.
    let running = [inbox(&url), inbox(&url)].map(|builder| builder.behind_pooler().build().unwrap());
    let mut consuming = Vec::new();
    for inbox in running {
        consuming.push(Consuming::start(consumer(&env).await.concurrency(8), inbox, handler()));
    }
    settled(&env).await;
    for one in consuming {
        one.stop().await;
    }
    assert_eq!(effects(&env).await, 60);
    assert_eq!(dead_letters(&env).await.len(), 1);
    assert_eq!(left_prepared(&url).await, 0);
}

/// Claims, renewals, effects and ends, each in any backend of the pooler; a claim is taken over
/// from a process that died.
#[tokio::test]
async fn leases_work_through_a_transaction_pooler() {
    let env = stream_environment().await;
    let Some((_pooler, url)) = pooler(&env).await else { return };
    // Long enough for a machine that is busy.
    let lease = Duration::from_secs(3);
    let leased = || inbox(&url).behind_pooler().leased(lease).build().unwrap();
    let provider: Arc<Provider> = Arc::default();

    // The process dies while it calls: it is not known whether the effect happened.
    provider.mood(Mood::HoldsAnswers);
    let (dying, pays, first) = (leased(), Pays::charge(&provider), message("k0", 0));
    tokio::select! {
        _ = dying.run(&pays, &first) => panic!("nobody answers"),
        () = provider.holding.notified() => {}
    }
    provider.mood(Mood::Works);
    let jetstream = env.jetstream().await;
    for round in 0..2 {
        for n in 0..40 {
            publish(&jetstream, env.subject(&format!("round.{round}.{n}")), &format!("k{n}"), n, None).await;
        }
    }
    // Some take longer than the lease, and are renewed meanwhile.
    let handler = {
        let provider = Arc::clone(&provider);
        Pays::new(move |cx, job| {
            let provider = Arc::clone(&provider);
            Box::pin(async move {
                if job.n % 10 == 3 {
                    tokio::time::sleep(lease * 2).await;
                }
                Ok(Outcome::done(charge(cx, &provider, "charge").await?))
            })
        })
    };
    // Two processes, as far as the pooler knows.
    let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let processes = [leased(), leased()];
    for leased in &processes {
        let consumer = consumer(&env).await.concurrency(8);
        tasks.spawn(consumer.run(leased.clone(), handler.clone(), shutdown.clone()));
    }
    settled(&env).await;
    shutdown.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap().unwrap();
    }
    for n in 0..40 {
        let key = format!("k{n}:charge");
        assert_eq!((provider.calls(&key), provider.effects(&key)), (1, 1), "{key}");
    }
    let taken_over: u64 = processes.iter().map(|leased| leased.inbox().counts().leases.taken_over).sum();
    let lost: u64 = processes.iter().map(|leased| leased.inbox().counts().leases.lost).sum();
    assert_eq!((taken_over, lost, provider.lookups()), (1, 0, 1));
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox_claim").await), (40, 0));
    assert_eq!((dead_letters(&env).await.len(), left_prepared(&url).await), (0, 0));
}

/// The leader lock is a transaction's, and that keeps its backend.
#[tokio::test]
async fn one_process_leads_in_strict_order_behind_a_pooler() {
    let env = stream_environment().await;
    let Some((_pooler, url)) = pooler(&env).await else { return };
    let start = async |handler: &Does| {
        let strict = consumer(&env).await.order(Order::Strict);
        Consuming::start(strict, inbox(&url).behind_pooler().build().unwrap(), handler.clone())
    };
    let (first, second) = (Does::effect(), Does::effect());
    let leader = start(&first).await;
    for n in 0..20 {
        publish(&env.jetstream().await, env.subject("s"), &format!("k{n}"), n, None).await;
    }
    settled(&env).await;
    let standby = start(&second).await;
    for n in 20..40 {
        publish(&env.jetstream().await, env.subject("s"), &format!("k{n}"), n, None).await;
    }
    settled(&env).await;
    assert_eq!((first.runs(), second.runs()), (40, 0), "the second stands by");
    leader.stop().await;
    publish(&env.jetstream().await, env.subject("s"), "last", 40, None).await;
    settled(&env).await;
    assert_eq!((first.runs(), second.runs(), effects(&env).await), (40, 1, 41));
    standby.stop().await;
}

#[tokio::test]
async fn an_inbox_that_does_not_know_of_the_pooler_is_told() {
    let env = stream_environment().await;
    let Some((pooler, url)) = pooler(&env).await else { return };
    if pooler.carries_prepared_statements() {
        return;
    }
    let unaware = Inbox::builder(pool(&url, 1)).scope(SCOPE).single_tenant().build().unwrap();
    let handle = async |key: &str| unaware.run(&Does::effect(), &message(key, 1)).await;
    handle("first").await.unwrap();
    // The backends in which its statements were prepared are busy, so it gets another.
    let mut clients = Vec::new();
    for _ in 0..BACKENDS {
        clients.push(client(&url).await);
    }
    let mut busy = Vec::new();
    for client in &mut clients {
        let transaction = client.transaction().await.unwrap();
        let sql = "SELECT count(*) FROM pg_prepared_statements";
        let prepared: i64 = transaction.query_typed_one(sql, &[]).await.unwrap().get(0);
        busy.push((transaction, prepared > 0));
    }
    busy.retain(|(_, is_prepared)| *is_prepared);
    assert!((1..BACKENDS).contains(&busy.len()), "{} of {BACKENDS} backends", busy.len());
    let error = handle("second").await.expect_err("its statement is unknown there");
    assert!(error.to_string().contains("behind_pooler()"), "{error}");
}
