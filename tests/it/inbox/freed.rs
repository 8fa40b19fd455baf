//! Dead keys that an operator frees while copies arrive: the message that he has sent back is
//! handled, not answered as dead.
//!
//! `oncebox inbox dead retry` publishes before it commits, so that nothing is lost when it dies
//! in between. Here it is held in its COMMIT, after JetStream has acknowledged the message.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use oncebox_inbox::{Consumer, Inbox, Outcome, Received, Verdict};
use oncebox_tests::{TestEnv, eventually};
use tokio::{task::JoinSet, time::timeout};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::{
    inbox::{
        consumer::{Running, consumer, publish, settled},
        support::{Does, LIMIT, count, effects, inbox, insert, stream_environment},
    },
    leased::{self, support::Pays},
    relay::process::run,
};

/// A retry of all dead letters, in its COMMIT.
struct HeldRetry {
    command: JoinSet<(i32, String, String)>,
    lock: Client,
}

impl HeldRetry {
    async fn start(env: &TestEnv) -> Self {
        let lock = env.pg().await;
        lock.batch_execute(
            "CREATE OR REPLACE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON oncebox.audit
               DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold();
             SELECT pg_advisory_lock(4711)",
        )
        .await
        .unwrap();
        let (url, nats) = (env.database_url().to_owned(), env.nats_url().to_owned());
        let mut command = JoinSet::new();
        command
            .spawn(async move { run(&url, &["inbox", "dead", "retry", "--all", "--nats-url", &nats]).await });
        eventually("it is in its COMMIT", LIMIT, async || {
            (waiting(env, "advisory").await == 1).then_some(())
        })
        .await;
        Self { command, lock }
    }

    /// Lets it commit.
    async fn go(mut self) {
        self.lock.execute("SELECT pg_advisory_unlock(4711)", &[]).await.unwrap();
        let ended = timeout(LIMIT, self.command.join_next()).await.unwrap().unwrap().unwrap();
        assert_eq!((ended.0, ended.1.as_str()), (0, "retried 1 message\n"), "{}", ended.2);
    }

    /// Ends its session: it rolls back.
    async fn fail(mut self) {
        let sql = "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        assert!(self.lock.query_one(sql, &[]).await.unwrap().get::<_, bool>(0));
        let ended = timeout(LIMIT, self.command.join_next()).await.unwrap().unwrap().unwrap();
        assert_ne!(ended.0, 0, "{}", ended.2);
    }
}

/// How many sessions of this database wait for such a lock.
async fn waiting(env: &TestEnv, kind: &str) -> i64 {
    let sql = "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
               WHERE l.locktype = $1 AND NOT l.granted AND a.datname = current_database()";
    env.pg().await.query_one(sql, &[&kind]).await.unwrap().get(0)
}

/// The messages of the stream, as they are delivered the first time.
fn returned(env: &TestEnv) -> Received {
    Received::new(env.subject("a"), "{\"n\":2}").header("Idempotency-Key", "k")
}

/// The key `k` has died in this inbox; its handler would do its work from now on.
async fn dead(env: &TestEnv, inbox: &Inbox) -> Does {
    let is_mended = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&is_mended);
    let handler = Does::new(move |cx, job| {
        let dies = !is_mended.load(SeqCst);
        Box::pin(async move {
            Ok(if dies { Outcome::dead("no") } else { Outcome::done(insert(cx, &job).await?) })
        })
    });
    let verdict = inbox.run(&handler, &returned(env)).await.unwrap();
    assert!(matches!(verdict, Verdict::Dead { .. }), "{verdict:?}");
    mended.store(true, SeqCst);
    handler
}

/// A handler under leases that gives the message up until it is mended.
fn mendable() -> (Pays, Arc<AtomicBool>) {
    let is_mended = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&is_mended);
    let handler = Pays::new(move |_, _| {
        let dies = !is_mended.load(SeqCst);
        Box::pin(async move { Ok(if dies { Outcome::dead("no") } else { Outcome::done(String::new()) }) })
    });
    (handler, mended)
}

/// A reader of a dead row without a lock would acknowledge the message for which the row is about
/// to make room.
#[tokio::test]
async fn a_message_sent_back_is_handled_once_under_leases_though_its_key_is_not_free_yet() {
    let env = stream_environment().await;
    publish(&env.jetstream().await, env.subject("a"), "k", 2, None).await;
    let (handler, mended) = mendable();
    let leased = leased::support::builder(&env, Duration::from_secs(30)).build().unwrap();
    let shutdown = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let consumer: Consumer = consumer(&env).await;
    tasks.spawn(consumer.run(leased.clone(), handler.clone(), shutdown.clone()));
    let running = Running { shutdown, tasks };
    eventually("it dies", LIMIT, async || (leased.inbox().counts().dead == 1).then_some(())).await;
    settled(&env).await;
    mended.store(true, SeqCst);
    let retry = HeldRetry::start(&env).await;
    eventually("the message is looked at", LIMIT, async || {
        let counts = leased.inbox().counts();
        (counts.in_flight + counts.replayed > 0).then_some(())
    })
    .await;
    retry.go().await;
    settled(&env).await;
    running.stop().await;
    let counts = leased.inbox().counts();
    assert_eq!((handler.runs(), effects(&env).await, counts.handled, counts.replayed), (2, 1, 1, 0));
}

/// A program that calls the inbox without a consumer is told that the key is in flight, too. When
/// the retry fails, the key stays dead and the dead letter is kept.
#[tokio::test]
async fn under_leases_a_dead_key_is_in_flight_while_it_is_freed() {
    let env = stream_environment().await;
    let (handler, mended) = mendable();
    let leased = leased::support::builder(&env, Duration::from_secs(30)).build().unwrap();
    assert!(matches!(leased.run(&handler, &returned(&env)).await.unwrap(), Verdict::Dead { .. }));
    mended.store(true, SeqCst);
    let retry = HeldRetry::start(&env).await;
    assert_eq!(leased.run(&handler, &returned(&env)).await.unwrap(), Verdict::InFlight);
    retry.fail().await;
    assert!(matches!(leased.run(&handler, &returned(&env)).await.unwrap(), Verdict::Dead { .. }));
    assert_eq!((handler.runs(), count(&env, "oncebox.dead_letter").await), (1, 1));
    // Copies of a dead message do not keep each other in flight.
    let mut other = env.pg().await;
    let looking = other.transaction().await.unwrap();
    looking.execute("SELECT FROM oncebox.inbox FOR KEY SHARE", &[]).await.unwrap();
    assert!(matches!(leased.run(&handler, &returned(&env)).await.unwrap(), Verdict::Dead { .. }));
}

/// How a message comes to its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Claimed as probably new.
    Plain,
    /// Delivered before: claimed with caution.
    Cautious,
    /// Together with another.
    Batch,
}

impl Way {
    /// Runs a copy in the background, until it waits for the retry.
    async fn start(self, inbox: &Inbox, handler: &Does, env: &Arc<TestEnv>) -> JoinSet<Verdict<String>> {
        let mut running = JoinSet::new();
        let (its_inbox, its_handler, its_env) = (inbox.clone(), handler.clone(), Arc::clone(env));
        running.spawn(async move { self.run(&its_inbox, &its_handler, &its_env).await });
        eventually("it waits for the retry", LIMIT, async || {
            (waiting(env, "transactionid").await == 1).then_some(())
        })
        .await;
        running
    }

    async fn run(self, inbox: &Inbox, handler: &Does, env: &TestEnv) -> Verdict<String> {
        match self {
            Self::Plain => inbox.run(handler, &returned(env)).await.unwrap(),
            Self::Cautious => inbox.run(handler, &returned(env).deliveries(2)).await.unwrap(),
            Self::Batch => {
                let other = Received::new(env.subject("a"), "{\"n\":3}").header("Idempotency-Key", "other");
                inbox.run_batch(handler, &[returned(env), other]).await.swap_remove(0).unwrap()
            }
        }
    }
}

/// In a transaction the index makes a claim wait for the transaction that frees the key. A second
/// copy meanwhile, which cannot claim, must not be answered from the row either: if the first one
/// fails, it would be lost.
#[tokio::test]
async fn a_message_sent_back_is_handled_once_in_a_transaction_though_its_key_is_not_free_yet() {
    for way in [Way::Plain, Way::Cautious, Way::Batch] {
        let env = Arc::new(stream_environment().await);
        let inbox = inbox(&env);
        let handler = dead(&env, &inbox).await;
        let retry = HeldRetry::start(&env).await;
        let mut first = way.start(&inbox, &handler, &env).await;
        for copy in [Way::Plain, Way::Cautious, Way::Batch] {
            let verdict = copy.run(&inbox, &handler, &env).await;
            assert_eq!(verdict, Verdict::InFlight, "{copy:?} beside {way:?}");
        }
        retry.go().await;
        let verdict = timeout(LIMIT, first.join_next()).await.unwrap().unwrap().unwrap();
        assert!(matches!(verdict, Verdict::Handled(_)), "{way:?}: {verdict:?}");
        let sql = "SELECT count(*) FROM effect WHERE key = 'k'";
        let of_key: i64 = env.pg().await.query_one(sql, &[]).await.unwrap().get(0);
        assert_eq!(of_key, 1, "{way:?}");
    }
}

/// The retry fails after its message is on the way: a run that waited finds the key dead, as
/// before.
#[tokio::test]
async fn a_key_that_is_not_freed_after_all_is_dead() {
    for way in [Way::Plain, Way::Cautious, Way::Batch] {
        let env = Arc::new(stream_environment().await);
        let inbox = inbox(&env);
        let handler = dead(&env, &inbox).await;
        let retry = HeldRetry::start(&env).await;
        let mut first = way.start(&inbox, &handler, &env).await;
        retry.fail().await;
        let verdict = timeout(LIMIT, first.join_next()).await.unwrap().unwrap().unwrap();
        assert!(matches!(verdict, Verdict::Dead { .. }), "{way:?}: {verdict:?}");
        assert_eq!(count(&env, "oncebox.dead_letter").await, 1, "{way:?}");
    }
}
