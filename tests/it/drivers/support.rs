//! The tests of every driver: its crate only brings a pool and `enqueue`.

use std::time::Duration;

use async_nats::jetstream;
use oncebox_inbox::{Answer, Builder, Consumer, Error, Exclusive, Inbox, IsolationLevel, Received, Verdict};
use oncebox_outbox::Message;
use oncebox_schema::Value;
use oncebox_tests::{
    Program, Proxy, TestEnv,
    driven::{
        ABORTED, COMMITS, CONFLICT, DEAD, DEADLOCK, Effect, Job, LEVEL, PANICS, REFUSED, REJECTED, SCOPE,
        SILENT, SLOW, SNOOZES, TOO_OLD,
    },
    eventually, is_settled,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    inbox::{
        consumer::{Running, publish},
        support::{Does, environment, insert},
    },
    relay::support::through_proxy,
};

const LIMIT: Duration = Duration::from_secs(90);
/// More than one attempt, so that the first failure is not the last.
const ATTEMPTS: u64 = 2;

fn builder<D: Exclusive>(driver: D) -> Builder<D> {
    let short = Duration::from_millis(1);
    Inbox::<D>::over(driver).scope(SCOPE).tenant_header("Tenant").attempts_max(ATTEMPTS).backoff(short, short)
}

fn inbox<D: Exclusive>(driver: D) -> Inbox<D> {
    builder(driver).build().unwrap()
}

fn received(key: &str, n: i64) -> Received {
    let payload = serde_json::to_vec(&Job { n }).unwrap();
    Received::new("s.t", payload).header("Tenant", "acme").header("Idempotency-Key", key)
}

fn told(verdict: Result<Verdict<Option<String>>, Error>) -> String {
    let reply = |reply: Option<String>| reply.unwrap_or_else(|| "-".to_owned());
    match verdict.unwrap() {
        Verdict::Handled(Answer::Done(said)) => format!("handled {}", reply(said)),
        Verdict::Handled(Answer::Rejected(said)) => format!("refused {}", reply(said)),
        Verdict::Replayed(stored) => match stored.decode().unwrap() {
            Answer::Done(said) => format!("replayed {}", reply(said)),
            Answer::Rejected(said) => format!("rejected {}", reply(said)),
            other => panic!("{other:?}"),
        },
        Verdict::Dead { reason } => format!("dead: {reason}"),
        Verdict::Retry { reason, .. } => format!("retry: {reason}"),
        other => format!("{other:?}"),
    }
}

/// With the tables that the handler has effects on.
pub(super) async fn tables() -> TestEnv {
    let env = environment().await;
    let sql = "CREATE TABLE won (n bigint);
        CREATE SEQUENCE race;
        CREATE FUNCTION lose(state text, problem text) RETURNS text LANGUAGE plpgsql AS $$
        BEGIN
          IF nextval('race') % 3 <> 0 THEN
            RAISE EXCEPTION '%', problem USING ERRCODE = state;
          END IF;
          RETURN 'won';
        END $$";
    env.pg().await.batch_execute(sql).await.unwrap();
    env
}

async fn run<D: Exclusive>(inbox: &Inbox<D>, key: &str, n: i64) -> String {
    told(inbox.run(&Effect::<D>::new(), &received(key, n)).await)
}

/// A handler's behaviour, the answers to its message and to a copy, and the number of effects.
pub(super) async fn each_key_ends_as_its_handler_says<D: Exclusive>(env: &TestEnv, driver: D) {
    let slow = builder(driver.clone()).handler_timeout(Duration::from_millis(100)).build().unwrap();
    let inbox = inbox(driver);
    inbox.check().await.unwrap();
    let limit = "delivery limit of 2 reached";
    let aborted = "the handler went on after a statement had failed; the transaction was aborted";
    for (n, first, second, effects) in [
        (1, "handled did 1", "replayed did 1", 1),
        (SILENT, "handled -", "replayed -", 1),
        (REJECTED, "refused no", "rejected no", 1),
        (DEAD, "dead: no use", "dead: no use", 0),
        (PANICS, "retry: the handler panicked: as it was told", limit, 0),
        (ABORTED, &format!("retry: {aborted}"), limit, 0),
        (COMMITS, "dead: the handler sent COMMIT by itself", "dead: the handler sent COMMIT", 1),
        (REFUSED, "retry: ", "division by zero", 0),
        (SNOOZES, "retry: snoozed: the ledger is closed", "retry: snoozed: the ledger is closed", 0),
        (CONFLICT, "retry: too late", limit, 0),
    ] {
        let key = format!("k{n}");
        let (once, again) = (run(&inbox, &key, n).await, run(&inbox, &key, n).await);
        assert!(once.contains(first) && again.contains(second), "{n}: {once}; {again}");
        let sql = "SELECT count(*) FROM effect WHERE key = $1 AND line = 'acme'";
        let found: i64 = env.pg().await.query_one(sql, &[&key]).await.unwrap().get(0);
        assert_eq!(found, effects, "{n}");
    }
    let (once, again) = (run(&slow, "slow", SLOW).await, run(&slow, "slow", SLOW).await);
    assert!(once == "retry: the handler took longer than 100ms" && again.contains(limit), "{once}; {again}");
    assert_eq!(run(&inbox, "k1", 7).await, "Mismatch");
    let letters = "SELECT count(*) FROM oncebox.dead_letter WHERE scope = $1";
    let letters: i64 = env.pg().await.query_one(letters, &[&SCOPE]).await.unwrap().get(0);
    assert_eq!(letters, 8, "of seven handlers that fail, and of the key that was used twice");
    let counts = inbox.counts();
    assert_eq!((counts.handled, counts.rejected, counts.replayed, counts.dead), (3, 1, 5, 6));
    assert_eq!((counts.mismatched, counts.snoozed, counts.retried), (1, 2, 4));
}

/// A message whose transaction PostgreSQL ends for a conflict is run again at once, which does not
/// count as an attempt; and handlers run at the level of their inbox, with any default of the
/// database.
pub(super) async fn races_run_again_and_levels_hold<D: Exclusive>(env: &TestEnv, driver: D) {
    let set = format!("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'", env.name());
    env.pg().await.batch_execute(&set).await.unwrap();
    let raced = inbox(driver.clone());
    for n in [DEADLOCK, TOO_OLD] {
        assert_eq!(run(&raced, &format!("k{n}"), n).await, "handled won");
    }
    assert_eq!(raced.counts().retried, 0);
    for (level, name) in [
        (IsolationLevel::ReadCommitted, "read committed"),
        (IsolationLevel::RepeatableRead, "repeatable read"),
        (IsolationLevel::Serializable, "serializable"),
    ] {
        let inbox = builder(driver.clone()).isolation_level(level).build().unwrap();
        let key = name.replace(' ', "-");
        assert_eq!(run(&inbox, &key, LEVEL).await, format!("handled {name}"));
    }
}

/// Messages that no handler can handle, keys at work elsewhere, races, and a scope of leased mode.
pub(super) async fn what_cannot_be_handled_is_said<D: Exclusive>(env: &TestEnv, driver: D) {
    let inbox = inbox(driver.clone());
    inbox.check().await.unwrap();
    let handler = Effect::<D>::new();
    for (message, expected) in [
        (Received::new("s.t", "{}").header("Tenant", "acme"), "no key"),
        (Received::new("s.t", "{}").header("Idempotency-Key", "k"), "tenant header"),
        (
            Received::new("s.t", "no\0json").header("Tenant", "acme").header("Idempotency-Key", "no-json"),
            "is no JSON",
        ),
    ] {
        let said = told(inbox.run(&handler, &message).await);
        assert!(said.starts_with("dead: ") && said.contains(expected), "{said}");
    }
    let mut other = env.pg().await;
    let open = other.build_transaction().deferrable(true).start().await.unwrap();
    let claim = "SELECT answer FROM oncebox.claim($1, 'busy', $2, 'acme')";
    let payload = serde_json::to_vec(&Job { n: 1 }).unwrap();
    assert_eq!(open.query_one(claim, &[&SCOPE, &payload]).await.unwrap().get::<_, &str>(0), "new");
    assert_eq!(run(&inbox, "busy", 1).await, "InFlight");
    open.rollback().await.unwrap();
    assert_eq!(run(&inbox, "busy", 1).await, "handled did 1");

    // A race that is lost is run again at once, and won.
    env.pg().await.execute("INSERT INTO won VALUES (1)", &[]).await.unwrap();
    assert_eq!(run(&inbox, "race", CONFLICT).await, "handled won");

    let sql = "UPDATE oncebox.inbox_scope SET mode = 'lease' WHERE scope = $1";
    env.pg().await.execute(sql, &[&SCOPE]).await.unwrap();
    let refused = builder(driver.clone()).build().unwrap().check().await.unwrap_err();
    assert!(matches!(refused, Error::OtherMode { .. }), "{refused:?}");
    let away = Inbox::<D>::over(driver).scope("s").single_tenant().schema("nowhere".parse().unwrap());
    let missing = away.build().unwrap().check().await.unwrap_err();
    assert!(matches!(missing, Error::Version(_)), "{missing:?}");
    // Nothing of a message reaches an error.
    assert!(!format!("{:?}", Value::Bytes(Some(b"secret"))).contains("secret"));
}

/// A claim, a settlement and a COMMIT, each lost in a network that swallows packets; `driver` makes
/// a pool that has one connection.
pub(super) async fn own_statements_have_deadlines<D: Exclusive>(
    env: &TestEnv,
    driver: impl AsyncFn(String) -> D,
) {
    // All wait for their deadlines at the same time.
    tokio::join!(
        is_said_to_be_away(env, "pg_try_advisory_xact_lock", &driver),
        is_said_to_be_away(env, "UPDATE", &driver),
        is_said_to_be_away(env, "COMMIT AND CHAIN", &driver),
    );
}

/// A packet with `needle` is lost, and the connection stays open: the inbox does not wait for an
/// answer for ever.
async fn is_said_to_be_away<D: Exclusive>(
    env: &TestEnv,
    needle: &'static str,
    driver: &impl AsyncFn(String) -> D,
) {
    let (proxy, url) = through_proxy(env.database_url()).await;
    let second = Duration::from_secs(1);
    let inbox = builder(driver(url).await).handler_timeout(second).acquire_timeout(second).build().unwrap();
    inbox.check().await.unwrap();
    let key: String = needle.chars().filter(char::is_ascii_alphanumeric).collect();
    let (handler, received) = (Effect::<D>::new(), received(&key, 1));
    proxy.lose_when_client_sends(needle.as_bytes());
    let stall = async {
        eventually("it is sent", LIMIT, async || (!proxy.is_armed()).then_some(())).await;
        proxy.stall(true);
    };
    let (lost, ()) = tokio::join!(timeout(LIMIT, inbox.run(&handler, &received)), stall);
    let lost = lost.expect("a deadline");
    assert!(matches!(lost, Err(Error::Unavailable(..))), "{needle}: {lost:?}");
}

/// A BEGIN whose answer comes after the deadline leaves no transaction open in the pool, which has
/// one connection that leads through the proxy: `insert` writes to `effect` without a transaction,
/// through the same pool, and others see its rows. `idle` counts the connections that are back in
/// the pool.
pub(super) async fn a_late_begin_is_rolled_back<D: Exclusive>(
    env: &TestEnv,
    proxy: &Proxy,
    driver: D,
    idle: impl Fn() -> usize,
    insert: impl Future<Output = ()>,
) {
    let (soon, late) = (Duration::from_millis(300), Duration::from_millis(900));
    let inbox = builder(driver).acquire_timeout(soon).build().unwrap();
    inbox.check().await.unwrap();
    let returned = async {
        while idle() == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, returned).await.expect("the pool gets its connection back after the check");
    proxy.slow(0, late);
    let lost = inbox.run(&Effect::<D>::new(), &received("late", 1)).await;
    assert!(matches!(lost, Err(Error::Unavailable("begin", _))), "{lost:?}");
    proxy.slow(0, Duration::ZERO);
    timeout(LIMIT, insert).await.expect("the pool gets its connection back");
    let client = env.pg().await;
    let effects = client.query_one("SELECT count(*) FROM effect", &[]).await.unwrap();
    assert_eq!(effects.get::<_, i64>(0), 1, "what PostgreSQL has acknowledged is there");
}

/// A message that is enqueued in a transaction of the driver.
pub(super) fn message(key: &str, payload: &str) -> Message {
    Message::bytes(key.parse().unwrap(), "orders.placed".parse().unwrap(), payload)
}

pub(super) async fn enqueued(env: &TestEnv) -> Vec<String> {
    let sql = "SELECT key || ' ' || convert_from(payload, 'UTF8') || ' ' || coalesce(ordering_key, '-') || ' ' || headers::text
               FROM oncebox.message ORDER BY id";
    let rows = env.pg().await.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Two copies of the driver's consumer, killed at random and cut off before and after a COMMIT, and
/// one over tokio-postgres that shares their scope, with two copies of each message: each effect
/// once.
pub(super) async fn killed_and_cut_off_each_effect_is_there_once(driver: &str) {
    const MESSAGES: i64 = 60;
    let env = tables().await;
    let (stream, jetstream) = (env.stream().await, env.jetstream().await);
    let (proxy, url) = through_proxy(env.database_url()).await;
    let environment = [("DATABASE_URL", url), ("NATS_URL", env.nats_url().to_owned())];
    let mut copies = Vec::new();
    for _ in 0..2 {
        copies.push(Program::start("driven", &[driver, env.name()], &environment).await.unwrap());
    }
    let short = Duration::from_millis(50);
    let mixed = Inbox::builder(env.pool(2)).scope(SCOPE).single_tenant();
    let consumer = Consumer::new(env.jetstream().await, env.name(), "d").concurrency(2);
    let consumer = consumer.ack_wait(Duration::from_secs(2));
    let handler = Does::new(|cx, job| {
        Box::pin(async move { Ok(oncebox_inbox::Outcome::done(insert(cx, &job).await?)) })
    });
    let mixed = Running::start(consumer, mixed.backoff(short, short * 4).build().unwrap(), handler);
    for n in 0..MESSAGES {
        for copy in 0..2 {
            publish(&jetstream, env.subject(&format!("c{copy}")), &format!("k{n}"), n, None).await;
        }
        if n % 20 == 10 {
            let turn = usize::try_from(n / 20).unwrap();
            proxy.cut_when_client_sends(b"COMMIT", turn.is_multiple_of(2));
            // More messages are published until a COMMIT goes through the proxy: the other consumer
            // may take them.
            let mut more = 0;
            eventually("a COMMIT is cut off", LIMIT, async || {
                more += 1;
                publish(&jetstream, env.subject("more"), &format!("more-{n}-{more}"), 1, None).await;
                (!proxy.is_armed()).then_some(())
            })
            .await;
            let copy = &mut copies[turn % 2];
            copy.kill().await.unwrap();
            copy.restart().await.unwrap();
        }
    }
    publish(&jetstream, env.subject("x"), "dead", DEAD, None).await;
    eventually("every message is settled", LIMIT, async || is_settled(&stream, "d").await.then_some(()))
        .await;
    // Alone, the driver's copies handle the later messages.
    mixed.stop().await;
    publish(&jetstream, env.subject("x"), "last", MESSAGES, None).await;
    eventually("the last message is settled", LIMIT, async || is_settled(&stream, "d").await.then_some(()))
        .await;
    for copy in &mut copies {
        copy.stop().await.unwrap();
    }
    let client = env.pg().await;
    let wrong = "SELECT count(*) FROM (SELECT key FROM effect GROUP BY key HAVING count(*) <> 1) AS w";
    assert_eq!(client.query_one(wrong, &[]).await.unwrap().get::<_, i64>(0), 0);
    let all = "SELECT count(DISTINCT key) FROM effect WHERE key LIKE 'k%'";
    assert_eq!(client.query_one(all, &[]).await.unwrap().get::<_, i64>(0), MESSAGES);
    let reply = "SELECT convert_from(outcome, 'UTF8') FROM oncebox.inbox WHERE key = 'last'";
    assert_eq!(client.query_one(reply, &[]).await.unwrap().get::<_, &str>(0), "\"did 60\"");
}

/// Batches, which need tokio-postgres, are refused at the start.
pub(super) async fn batches_are_refused<D: Exclusive>(env: &TestEnv, driver: D) {
    let jetstream: jetstream::Context = env.jetstream().await;
    let consumer = Consumer::new(jetstream, env.name(), "d").batch(2);
    let ended = consumer.run(inbox(driver), Effect::<D>::new(), CancellationToken::new()).await;
    let text = ended.unwrap_err().to_string();
    for part in ["batch", D::NAME] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}
