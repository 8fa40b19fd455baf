//! Messages that fail in inboxes, on the command line: list, retry, bury; and in a trace.

mod headers;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use oncebox_inbox::{Inbox, Outcome, Verdict};
use oncebox_tests::{Proxy, TestEnv, eventually};
use serde_json::Value;
use tokio_postgres::Config;

use crate::{
    inbox::{
        consumer::{Running, consumer, publish},
        support::{Does, LIMIT, SCOPE, builder, count, effects, insert, message, rested, stream_environment},
    },
    leased::support::Pays,
    relay::{
        large::{bucket, drained, enqueue_bytes},
        process::{run, run_ok},
    },
};

/// Nothing comes again by itself while a test runs.
const LONG: Duration = Duration::from_secs(250);
const REASON: &str = "relation \"charge\" does not exist";

/// Fails at messages with an even number until it is mended.
fn mendable() -> (Does, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let handler = Does::new(move |cx, job| {
        let fails = job.n % 2 == 0 && !is_mended.load(SeqCst);
        Box::pin(async move {
            if fails {
                return Err(REASON.into());
            }
            Ok(Outcome::done(insert(cx, &job).await?))
        })
    });
    (handler, mended)
}

fn patient(env: &TestEnv) -> Inbox {
    builder(env).backoff(LONG, LONG).build().unwrap()
}

/// The keys that are listed.
async fn list(url: &str, arguments: &[&str]) -> Vec<String> {
    let command = [&["inbox", "failing", "list", "--json"], arguments].concat();
    let (code, output, log) = run(url, &command).await;
    assert_eq!(code, i32::from(output.is_empty() && !arguments.is_empty()), "{arguments:?}: {log}");
    let key = |line: &str| serde_json::from_str::<Value>(line).unwrap()["key"].as_str().unwrap().to_owned();
    output.lines().map(key).collect()
}

/// With both servers; the output and the log.
async fn act(env: &TestEnv, action: &str, arguments: &[&str]) -> (String, String) {
    let command = ["inbox", "failing", action, "--nats-url", env.nats_url()];
    let (code, output, log) = run(env.database_url(), &[&command, arguments].concat()).await;
    assert_eq!(code, 0, "{log}");
    (output, log)
}

async fn audit(env: &TestEnv) -> Vec<String> {
    let sql =
        "SELECT concat_ws(' ', action, operator, note, scope, key, reason) FROM oncebox.audit ORDER BY id";
    env.pg().await.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn rows(env: &TestEnv, goal: i64) {
    eventually("they fail", LIMIT, async || {
        let sql = "SELECT count(*) FROM oncebox.inbox_attempt WHERE begun = 0";
        (env.pg().await.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == goal).then_some(())
    })
    .await;
}

async fn lists(env: &TestEnv) {
    let url = env.database_url();
    assert_eq!(list(url, &[]).await, ["k0", "k2", "k4", "k6"]);
    assert_eq!(list(url, &["--limit", "3"]).await.len(), 3);
    assert_eq!(list(url, &["--key", "k2"]).await, ["k2"]);
    assert_eq!(list(url, &["--subject", &env.subject("s1")]).await, ["k4", "k6"]);
    assert_eq!(list(url, &["--reason", "DOES NOT"]).await.len(), 4);
    assert_eq!(list(url, &["--reason", "%"]).await, [""; 0], "no wildcard");
    assert_eq!(list(url, &["--scope", "tests"]).await, [""; 0]);
    let table = run_ok(url, &["inbox", "failing", "list", "--key", "k2"]).await;
    let place = format!("{} 3", env.name());
    assert!(table.contains(SCOPE) && table.contains(REASON) && table.contains(&place), "{table}");
    let counted = run_ok(url, &["inbox", "failing", "list", "--by-reason", "--json"]).await;
    let counted: Value = serde_json::from_str(&counted).unwrap();
    assert_eq!((&counted["messages"], &counted["reason"]), (&4.into(), &REASON.into()));
}

/// The original and its copy are one message in the list, and in each count.
async fn copies_are_one(url: &str) {
    assert_eq!(list(url, &[]).await, ["k0", "k2", "k4", "k6"]);
    let one = run_ok(url, &["inbox", "failing", "list", "--key", "k0", "--json"]).await;
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!((&one["failures"], &one["stream_sequence"]), (&2.into(), &9.into()), "{one}");
    let counted = run_ok(url, &["inbox", "failing", "list", "--by-reason", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&counted).unwrap()["messages"], 4);
    let status: Value = serde_json::from_str(&run_ok(url, &["status", "--json"]).await).unwrap();
    assert_eq!(status["inboxes"][0]["failing"], 4, "{status}");
    let trace = run_ok(url, &["trace", "k0"]).await;
    assert!(trace.matches("failing in").count() == 1 && trace.contains(": 2 failures"), "{trace}");
}

/// Everything that an operator does with messages that fail.
#[tokio::test]
async fn failing_messages_are_listed_retried_and_buried() {
    let env = stream_environment().await;
    let (jetstream, url) = (env.jetstream().await, env.database_url());
    for n in 0..8 {
        publish(&jetstream, env.subject(&format!("s{}", n / 4)), &format!("k{n}"), n, None).await;
    }
    let (handler, mended) = mendable();
    let inbox = patient(&env);
    let running = Running::start(consumer(&env).await, inbox.clone(), handler.clone());
    rows(&env, 4).await;
    lists(&env).await;

    // Counting changes nothing, and needs no NATS.
    for action in ["retry", "bury"] {
        let output = run_ok(url, &["inbox", "failing", action, "--all", "--dry-run"]).await;
        assert!(output.starts_with(&format!("would {action} 4 messages\n")), "{output}");
        assert!(output.contains(&format!("\nto {action} these rows")), "{output}");
        assert_eq!(output.contains("will be forgotten, not buried"), action == "bury", "{output}");
    }
    assert_eq!(audit(&env).await, [""; 0]);

    // It fails again: one copy for each time.
    let dry = run_ok(url, &["inbox", "failing", "retry", "--key", "k0", "--dry-run"]).await;
    let token = dry.split_once("--confirm ").unwrap().1.trim();
    let confirmed = ["--key", "k0", "--by", "mina", "--note", "INC-7", "--confirm", token];
    let (output, _) = act(&env, "retry", &confirmed).await;
    assert_eq!(output, "retried 1 message\n");
    rows(&env, 5).await;
    let again = [&["inbox", "failing", "retry", "--nats-url", env.nats_url()][..], &confirmed].concat();
    let (code, _, log) = run(url, &again).await;
    assert!(code == 1 && log.contains("has changed since it was shown"), "once for each token: {log}");
    copies_are_one(url).await;
    mended.store(true, SeqCst);
    let (output, log) = act(&env, "retry", &["--scope", SCOPE, "--limit", "2"]).await;
    assert_eq!(output, "retried 2 messages\n", "{log}");
    eventually("they are handled", LIMIT, async || (effects(&env).await == 6).then_some(())).await;
    assert_eq!(list(url, &[]).await, ["k4", "k6"]);
    // The original has not come again, so its row is still there.
    let trace = run_ok(url, &["trace", "k0"]).await;
    assert!(trace.contains("completed in") && !trace.contains("failing in"), "{trace}");

    let (output, _) = act(&env, "bury", &["--key", "k4", "--by", "mina"]).await;
    assert_eq!(output, "buried 1 message\n");
    let letter = run_ok(url, &["inbox", "dead", "show", "1", "--payload", "--json"]).await;
    let letter: Value = serde_json::from_str(&letter).unwrap();
    assert_eq!(
        (&letter["key"], &letter["key_status"], &letter["payload"]),
        (&"k4".into(), &"dead".into(), &"{\"n\":4}".into())
    );
    assert_eq!(letter["headers"]["Idempotency-Key"], "k4");
    assert_eq!(
        (&letter["stream_sequence"], &letter["reason"]),
        (&5.into(), &format!("an operator gave it up: {REASON}").into())
    );

    // A message that its stream has lost is not delivered again.
    env.stream().await.delete_message(7).await.unwrap();
    let (output, log) = act(&env, "retry", &["--key", "k6"]).await;
    assert_eq!(
        (output.as_str(), log.contains("not in the stream any more")),
        ("retried 0 messages\n", true),
        "{log}"
    );
    let (output, log) = act(&env, "bury", &["--key", "k6"]).await;
    assert_eq!(
        (output.as_str(), log.contains("not in the stream any more")),
        ("buried 0 messages\n", true),
        "{log}"
    );
    assert_eq!((list(url, &[]).await, count(&env, "oncebox.dead_letter").await), (vec![], 1));
    running.stop().await;
    let expected = [
        format!("retry mina INC-7 {SCOPE} k0 {REASON}"),
        format!("retry {SCOPE} k0 {REASON}"),
        format!("retry {SCOPE} k2 {REASON}"),
        format!("bury mina {SCOPE} k4 {REASON}"),
        format!("bury {SCOPE} k6 {REASON}"),
    ];
    assert_eq!(audit(&env).await, expected);
}

/// Under a lease the claim has a pause of its own, and ends with the message.
#[tokio::test]
async fn under_a_lease_a_message_is_retried_and_buried_too() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    for (key, n) in [("again", 0), ("never", 1)] {
        publish(&jetstream, env.subject("a"), key, n, None).await;
    }
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let handler = Pays::new(move |_, job| {
        let fails = job.n == 1 || !is_mended.load(SeqCst);
        Box::pin(async move { if fails { Err(REASON.into()) } else { Ok(Outcome::done(String::new())) } })
    });
    let leased = Inbox::builder(env.pool(8)).scope(SCOPE).single_tenant().backoff(LONG, LONG);
    let leased = leased.leased(Duration::from_secs(8)).build().unwrap();
    let running = Running::start(consumer(&env).await, leased, handler.clone());
    rows(&env, 2).await;
    mended.store(true, SeqCst);
    let (output, _) = act(&env, "retry", &["--key", "again"]).await;
    assert_eq!(output, "retried 1 message\n");
    eventually("it is handled", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    let (output, _) = act(&env, "bury", &["--key", "never"]).await;
    assert_eq!(output, "buried 1 message\n");
    assert_eq!(list(env.database_url(), &[]).await, [""; 0]);
    assert_eq!((count(&env, "oncebox.dead_letter").await, count(&env, "oncebox.inbox_claim").await), (1, 0));
    running.stop().await;
    assert_eq!(handler.runs(), 3);
}

/// The command has the message as its stream has it: without the payload, if that is large.
#[tokio::test]
async fn under_a_lease_a_message_with_a_large_payload_is_buried_too() {
    let env = stream_environment().await;
    enqueue_bytes(&env, &env.pg().await, "k", 300_000).await;
    drained(&env).await;
    let handler = Pays::new(|_, _| Box::pin(async { Err(REASON.into()) }));
    let leased = Inbox::builder(env.pool(8)).scope(SCOPE).single_tenant().backoff(LONG, LONG);
    let leased = leased.leased(Duration::from_secs(8)).build().unwrap();
    let running = Running::start(consumer(&env).await, leased, handler.clone());
    rows(&env, 1).await;
    let (output, _) = act(&env, "bury", &["--key", "k"]).await;
    assert_eq!(output, "buried 1 message\n");
    assert_eq!((count(&env, "oncebox.dead_letter").await, count(&env, "oncebox.inbox_claim").await), (1, 0));
    running.stop().await;
}

/// A copy is answered as dead, and not taken for another message under the same key.
#[tokio::test]
async fn a_message_with_a_large_payload_is_buried_with_its_key() {
    let env = stream_environment().await;
    enqueue_bytes(&env, &env.pg().await, "k", 300_000).await;
    drained(&env).await;
    let handler = Does::new(|_, _| Box::pin(async { Err(REASON.into()) }));
    let running = Running::start(consumer(&env).await, patient(&env), handler.clone());
    rows(&env, 1).await;
    assert_eq!(act(&env, "bury", &["--key", "k"]).await.0, "buried 1 message\n");
    run_ok(env.database_url(), &["outbox", "replay", "--key", "k"]).await;
    drained(&env).await;
    // The first one waits for its next delivery.
    eventually("the copy is answered", LIMIT, async || {
        let info = env.stream().await.consumer_info("d").await.unwrap();
        (info.delivered.stream_sequence == 2 && info.num_ack_pending == 1).then_some(())
    })
    .await;
    running.stop().await;
    assert_eq!((handler.runs(), count(&env, "oncebox.dead_letter").await), (1, 1));
    assert_eq!(count(&env, "oncebox.inbox WHERE status = 'dead'").await, 1);
}

/// Without its payload it is not known which copies of the key it answers for.
#[tokio::test]
async fn a_message_whose_object_is_gone_is_left_alone() {
    let env = stream_environment().await;
    enqueue_bytes(&env, &env.pg().await, "k", 300_000).await;
    drained(&env).await;
    bucket(&env).await.purge().await.unwrap();
    let handler = Does::effect();
    let running = Running::start(consumer(&env).await, patient(&env), handler.clone());
    rows(&env, 1).await;
    let (output, log) = act(&env, "bury", &["--key", "k"]).await;
    assert_eq!(output, "buried 0 messages\n");
    assert!(log.contains("1 message left alone, its payload is in no bucket"), "{log}");
    assert_eq!((handler.runs(), count(&env, "oncebox.dead_letter").await), (0, 0));
    running.stop().await;
}

/// The operator's process dies after JetStream has stored the copy and before PostgreSQL has
/// committed: made again, the retry sends no second copy.
#[tokio::test]
async fn a_retry_cut_off_before_its_commit_sends_one_copy() {
    let env = stream_environment().await;
    publish(&env.jetstream().await, env.subject("a"), "k", 2, None).await;
    let (handler, _) = mendable();
    let running = Running::start(consumer(&env).await, patient(&env), handler.clone());
    rows(&env, 1).await;
    running.stop().await;
    let direct: Config = env.database_url().parse().unwrap();
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], direct.get_ports()[0]))).await;
    proxy.cut_when_client_sends(b"COMMIT", false);
    let url = format!("postgres://postgres@127.0.0.1:{}/{}", proxy.port(), direct.get_dbname().unwrap());
    let command = ["inbox", "failing", "retry", "--all", "--nats-url", env.nats_url()];
    let (code, _, log) = run(&url, &command).await;
    assert!(code != 0 && !proxy.is_armed(), "{log}");
    assert_eq!(act(&env, "retry", &["--all"]).await.0, "retried 1 message\n");
    let (output, log) = act(&env, "retry", &["--all"]).await;
    assert_eq!((output.as_str(), log.contains("due already")), ("retried 0 messages\n", true), "{log}");
    assert_eq!(env.stream().await.get_info().await.unwrap().state.messages, 2);
    assert_eq!(audit(&env).await.len(), 1);
}

/// The consumer's database is another one than the producer's.
#[tokio::test]
async fn a_trace_shows_where_a_message_fails_until_it_succeeds() {
    let (env, consumers) = (TestEnv::new().await, stream_environment().await);
    env.pg()
        .await
        .batch_execute("SELECT oncebox.enqueue('order-1', 'orders.placed', '{\"n\":2}')")
        .await
        .unwrap();
    let inbox = patient(&consumers);
    let (handler, mended) = mendable();
    for delivery in 1..=2 {
        rested(&consumers).await;
        for key in ["order-1", "order-1:pay"] {
            let failing = message(key, 2).deliveries(delivery);
            assert!(matches!(inbox.run(&handler, &failing).await, Ok(Verdict::Retry { .. })));
        }
    }
    let trace = async || {
        let both =
            run_ok(env.database_url(), &["trace", "order-1", "--also", consumers.database_url()]).await;
        let (code, alone, log) = run(consumers.database_url(), &["trace", "order-1"]).await;
        (both, if code == 0 { alone } else { log })
    };
    let (both, alone) = trace().await;
    let says = |text: &str, key: &str| {
        let line = text
            .lines()
            .find(|line| line.split_whitespace().any(|word| word == key))
            .unwrap_or_else(|| panic!("{text}"));
        line.contains(&format!("failing in {SCOPE}"))
            && line.contains(": 2 failures, next at 20")
            && line.ends_with(REASON)
    };
    assert!(
        says(&both, "order-1") && says(&alone, "order-1") && says(&alone, "order-1:pay"),
        "{both}{alone}"
    );
    assert!(
        !both.contains("nothing has the key") && !alone.contains("no message has the key"),
        "{both}{alone}"
    );
    // The message's own row names the database.
    assert!(both.contains(&format!("failing in {SCOPE}, ")), "{both}");
    mended.store(true, SeqCst);
    rested(&consumers).await;
    for key in ["order-1", "order-1:pay"] {
        inbox.run(&handler, &message(key, 2).deliveries(3)).await.unwrap();
    }
    let (both, alone) = trace().await;
    assert!(!both.contains("failing") && both.contains(&format!("completed in {SCOPE}")), "{both}");
    assert!(!alone.contains("failing"), "{alone}");
    // From no stream, they cannot be fetched.
    inbox.run(&mendable().0, &message("direct", 2)).await.unwrap();
    let (output, log) = act(&consumers, "retry", &["--all"]).await;
    assert_eq!((output.as_str(), log.contains("from no stream")), ("retried 0 messages\n", true), "{log}");
}

#[tokio::test]
async fn bad_arguments_about_failing_messages_change_nothing_and_exit_64() {
    let env = stream_environment().await;
    let url = env.database_url();
    for (arguments, part) in [
        (&["inbox", "failing", "retry"][..], "required"),
        (&["inbox", "failing", "bury", "--all", "--key", "k"], "cannot be used"),
        (&["inbox", "failing", "retry", "--all", "--subject", "a..b"], "empty token"),
        (&["inbox", "failing", "list", "--limit", "0"], "1..=100000"),
        (&["inbox", "failing", "retry", "--all", "--limit", "0"], "1.."),
        (&["inbox", "failing", "bury", "--all"], "--nats-url"),
        (&["inbox", "failing"], "Usage"),
    ] {
        let (code, output, log) = run(url, arguments).await;
        assert_eq!((code, output.as_str()), (64, ""), "{arguments:?}: {log}");
        assert!(log.contains(part), "{arguments:?}: {log}");
    }
    let nothing = ["inbox", "failing", "bury", "--key", "k", "--nats-url", env.nats_url()];
    let (code, _, log) = run(url, &nothing).await;
    assert!(code == 1 && log.contains("no failing message is selected"), "{code}: {log}");
}
