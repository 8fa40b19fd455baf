//! Dead letters of inboxes on the command line: list, show, retry, discard.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use oncebox_inbox::{Inbox, Outcome};
use oncebox_tests::{Proxy, TestEnv, eventually};
use serde_json::Value;
use tokio_postgres::Config;

use crate::{
    inbox::{
        consumer::{Running, consumer, publish, settled},
        support::{Does, LIMIT, SCOPE, builder, count, effects, inbox, insert, message, stream_environment},
    },
    relay::process::{run, run_ok},
};

/// Gives messages with an even number up until it is mended.
fn mendable() -> (Does, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let handler = Does::new(move |cx, job| {
        let dies = job.n % 2 == 0 && !is_mended.load(SeqCst);
        Box::pin(async move {
            if dies {
                return Ok(Outcome::dead(format!("no Account {}", job.n)));
            }
            Ok(Outcome::done(insert(cx, &job).await?))
        })
    });
    (handler, mended)
}

/// The keys of the letters that are listed.
async fn list(url: &str, arguments: &[&str]) -> Vec<String> {
    let (code, output, log) = run(url, &[&["inbox", "dead", "list", "--json"], arguments].concat()).await;
    // A search that finds nothing says so.
    assert_eq!(code, i32::from(output.is_empty() && !arguments.is_empty()), "{arguments:?}: {log}");
    let key =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["key"].as_str().unwrap_or("-").to_owned();
    output.lines().map(key).collect()
}

async fn retry(env: &TestEnv, arguments: &[&str]) -> (i32, String, String) {
    let command = ["inbox", "dead", "retry", "--nats-url", env.nats_url()];
    run(env.database_url(), &[&command, arguments].concat()).await
}

async fn audit(env: &TestEnv) -> Vec<String> {
    let sql =
        "SELECT concat_ws(' ', action, operator, note, scope, key, reason, database_user = session_user)
               FROM oncebox.audit ORDER BY id";
    env.pg().await.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn key_is_dead(env: &TestEnv, key: &str) -> bool {
    let sql = "SELECT FROM oncebox.inbox WHERE key = $1 AND status = 'dead'";
    env.pg().await.query_opt(sql, &[&key]).await.unwrap().is_some()
}

/// The letters of `k0`, `k2`, `k4` and `k6`, by everything that one can ask for.
async fn lists(env: &TestEnv) {
    let url = env.database_url();
    assert_eq!(list(url, &[]).await, ["k0", "k2", "k4", "k6"], "in the order of their ids");
    assert_eq!(list(url, &["--limit", "3"]).await.len(), 3);
    assert_eq!(list(url, &["--key", "k2"]).await, ["k2"]);
    assert_eq!(list(url, &["--subject", &env.subject("s1")]).await, ["k4", "k6"]);
    assert_eq!(list(url, &["--reason", "ACCOUNT 4"]).await, ["k4"]);
    assert_eq!(list(url, &["--reason", "%"]).await, [""; 0], "no wildcard");
    assert_eq!(list(url, &["--scope", SCOPE, "--id", "1"]).await, ["k0"]);
    assert_eq!(list(url, &["--scope", "tests"]).await, [""; 0]);
    assert_eq!(list(url, &["--no-key"]).await, [""; 0]);
    let table = run_ok(url, &["inbox", "dead", "list", "--key", "k2"]).await;
    assert!(table.starts_with("ID ") && table.contains(SCOPE) && table.lines().count() == 2, "{table}");
}

/// A message that was given up comes back whole, is handled once, and every step is recorded.
#[tokio::test]
async fn dead_letters_are_listed_shown_retried_and_discarded() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    for n in 0..8 {
        publish(&jetstream, env.subject(&format!("s{}", n / 4)), &format!("k{n}"), n, Some("line")).await;
    }
    let (handler, mended) = mendable();
    let inbox = inbox(&env);
    let running = Running::start(consumer(&env).await, inbox.clone(), handler.clone());
    eventually("they die", LIMIT, async || (count(&env, "oncebox.dead_letter").await == 4).then_some(()))
        .await;
    settled(&env).await;

    let url = env.database_url();
    lists(&env).await;
    let shown = run_ok(url, &["inbox", "dead", "show", "1", "--payload", "--json"]).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["key_status"], &shown["payload"]), (&"dead".into(), &"{\"n\":0}".into()));
    assert_eq!(shown["headers"]["Oncebox-Ordering-Key"], "line");
    assert_eq!((&shown["stream"], &shown["stream_sequence"]), (&env.name().into(), &1.into()));
    let shown = run_ok(url, &["inbox", "dead", "show", "1"]).await;
    assert!(shown.contains("no Account 0") && !shown.contains("payload  "), "{shown}");

    // Counting changes nothing, and needs no NATS.
    for (action, all) in [("retry", "--all"), ("discard", "--all")] {
        let output = run_ok(url, &["inbox", "dead", action, all, "--dry-run"]).await;
        assert!(output.starts_with(&format!("would {action} 4 messages\nto {action} ")), "{output}");
    }
    assert_eq!((list(url, &[]).await.len(), audit(&env).await), (4, vec![]));

    let discard = ["inbox", "dead", "discard", "--key", "k0", "--by", "mina", "--note", "INC-7"];
    assert!(run_ok(url, &discard).await.starts_with("discarded 1 message\n"));
    assert!(key_is_dead(&env, "k0").await, "a copy of it is answered, not handled");
    mended.store(true, SeqCst);
    let (code, output, log) = retry(&env, &["--all", "--limit", "2", "--json"]).await;
    let done: Value = serde_json::from_str(&output).unwrap();
    let expected = serde_json::json!({ "action": "retry", "messages": 2, "dry_run": false });
    assert_eq!((code, done), (0, expected), "{log}");
    let (code, output, log) = retry(&env, &["--scope", SCOPE]).await;
    assert_eq!((code, output.as_str()), (0, "retried 1 message\n"), "{log}");
    eventually("they are handled", LIMIT, async || (effects(&env).await == 7).then_some(())).await;
    settled(&env).await;
    running.stop().await;
    assert_eq!((list(url, &[]).await.len(), inbox.counts().dead), (0, 4));
    let expected = [
        format!("discard mina INC-7 {SCOPE} k0 no Account 0 t"),
        format!("retry {SCOPE} k2 no Account 2 t"),
        format!("retry {SCOPE} k4 no Account 4 t"),
        format!("retry {SCOPE} k6 no Account 6 t"),
    ];
    assert_eq!(audit(&env).await, expected);
    // Another consumer has had all of them; for it the new copies are duplicates.
    let other = builder(&env).scope("tests:other").build().unwrap();
    let handler = Does::new(|_, _| Box::pin(async { Ok(Outcome::done(String::new())) }));
    let others = Running::start(consumer(&env).await, other.clone(), handler.clone());
    others.stop().await;
    let again = oncebox_inbox::Consumer::new(jetstream, env.name(), "other");
    let others = Running::start(again, other.clone(), handler.clone());
    eventually("all are seen", LIMIT, async || {
        (other.counts().handled + other.counts().replayed == 11).then_some(())
    })
    .await;
    others.stop().await;
    assert_eq!((handler.runs(), other.counts().replayed), (8, 3));
}

/// The operator's process dies after JetStream has stored the message and before PostgreSQL has
/// committed: nothing is doubled, and nothing is lost.
#[tokio::test]
async fn a_retry_cut_off_before_its_commit_can_be_made_again() {
    let env = stream_environment().await;
    publish(&env.jetstream().await, env.subject("a"), "k", 2, None).await;
    let (handler, mended) = mendable();
    let inbox = inbox(&env);
    let running = Running::start(consumer(&env).await, inbox.clone(), handler.clone());
    eventually("it dies", LIMIT, async || (inbox.counts().dead == 1).then_some(())).await;
    mended.store(true, SeqCst);
    let direct: Config = env.database_url().parse().unwrap();
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], direct.get_ports()[0]))).await;
    proxy.cut_when_client_sends(b"COMMIT", false);
    let url = format!("postgres://postgres@127.0.0.1:{}/{}", proxy.port(), direct.get_dbname().unwrap());
    let (code, _, log) = run(&url, &["inbox", "dead", "retry", "--all", "--nats-url", env.nats_url()]).await;
    assert!(code != 0 && !proxy.is_armed(), "{log}");
    let stream = env.stream().await;
    assert_eq!(stream.get_info().await.unwrap().state.messages, 2, "it was sent");
    eventually("the copy is answered", LIMIT, async || (inbox.counts().replayed == 1).then_some(())).await;
    assert_eq!((effects(&env).await, list(env.database_url(), &[]).await), (0, vec!["k".to_owned()]));
    let (code, output, log) = retry(&env, &["--all"]).await;
    assert_eq!((code, output.as_str()), (0, "retried 1 message\n"), "{log}");
    eventually("it is handled", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    settled(&env).await;
    running.stop().await;
    assert_eq!((effects(&env).await, count(&env, "oncebox.dead_letter").await), (1, 0));
    assert_eq!(audit(&env).await.len(), 1);
}

#[tokio::test]
async fn what_jetstream_does_not_take_stays_a_dead_letter() {
    let env = stream_environment().await;
    let inbox: Inbox = inbox(&env);
    let (handler, _) = mendable();
    // No stream takes this subject.
    inbox.run(&handler, &message("k", 2)).await.unwrap();
    let (code, output, log) = retry(&env, &["--key", "k"]).await;
    assert_eq!((code, output.as_str()), (1, ""), "{log}");
    assert!(log.contains("send dead letter 1 back to JetStream"), "{log}");
    assert!(key_is_dead(&env, "k").await);
    assert_eq!((list(env.database_url(), &[]).await, audit(&env).await), (vec!["k".to_owned()], vec![]));
    let nowhere = ["inbox", "dead", "retry", "--all", "--nats-url", "nats://127.0.0.1:1"];
    let (code, _, log) = run(env.database_url(), &nowhere).await;
    assert_eq!(code, 69, "{log}");
}

/// A letter about another payload under a used key frees nothing; one without a key belongs to
/// none.
#[tokio::test]
async fn a_mismatch_that_is_retried_leaves_the_settled_key_as_it_is() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    let (handler, _) = mendable();
    let inbox = inbox(&env);
    publish(&jetstream, env.subject("a"), "done", 1, None).await;
    publish(&jetstream, env.subject("b"), "done", 3, None).await;
    publish(&jetstream, env.subject("a"), "dead", 2, None).await;
    publish(&jetstream, env.subject("b"), "dead", 5, None).await;
    jetstream.publish(env.subject("c"), "{\"n\":7}".into()).await.unwrap().await.unwrap();
    // In their order: the first of each key settles it.
    let running = Running::start(consumer(&env).await.concurrency(1), inbox.clone(), handler.clone());
    eventually("letters", LIMIT, async || (count(&env, "oncebox.dead_letter").await == 4).then_some(()))
        .await;
    assert_eq!(list(env.database_url(), &[]).await.len(), 4);
    // It is found without its id, and the list names the option with which it is acted on.
    assert_eq!(list(env.database_url(), &["--no-key"]).await, ["-"]);
    let table = run_ok(env.database_url(), &["inbox", "dead", "list", "--no-key"]).await;
    let id = table.lines().nth(1).unwrap().split_whitespace().next().unwrap();
    assert!(table.contains(&format!("none: --id {id}")), "{table}");
    let nothing = run(env.database_url(), &["inbox", "dead", "discard", "--key", "gone"]).await;
    assert!(nothing.0 == 1 && nothing.2.contains("--no-key"), "{nothing:?}");
    let (code, output, log) = retry(&env, &["--subject", &env.subject("b")]).await;
    assert_eq!((code, output.as_str()), (0, "retried 2 messages\n"), "{log}");
    eventually("and again", LIMIT, async || (inbox.counts().mismatched == 4).then_some(())).await;
    assert_eq!((effects(&env).await, key_is_dead(&env, "dead").await), (1, true));
    let (code, output, log) = retry(&env, &["--reason", "no key"]).await;
    assert_eq!((code, output.as_str()), (0, "retried 1 message\n"), "{log}");
    eventually("and again", LIMIT, async || (inbox.counts().dead == 3).then_some(())).await;
    settled(&env).await;
    running.stop().await;
    let discarded = run_ok(env.database_url(), &["inbox", "dead", "discard", "--all"]).await;
    assert!(discarded.starts_with("discarded 4 messages\n"), "{discarded}");
    assert_eq!((count(&env, "oncebox.audit").await, effects(&env).await), (7, 1));
}

#[tokio::test]
async fn bad_arguments_about_letters_change_nothing_and_exit_64() {
    let env = stream_environment().await;
    let url = env.database_url();
    for (arguments, part) in [
        (&["inbox", "dead", "retry"][..], "required"),
        (&["inbox", "dead", "discard", "--all", "--key", "k"], "cannot be used"),
        (&["inbox", "dead", "retry", "--all", "--subject", "a..b"], "empty token"),
        (&["inbox", "dead", "retry", "--id", "0"], "1.."),
        (&["inbox", "dead", "list", "--limit", "0"], "1..=100000"),
        (&["inbox", "dead", "show", "first"], "invalid"),
        (&["inbox", "dead", "retry", "--all"], "--nats-url"),
        (&["inbox", "dead"], "Usage"),
    ] {
        let (code, output, log) = run(url, arguments).await;
        assert_eq!((code, output.as_str()), (64, ""), "{arguments:?}: {log}");
        assert!(log.contains(part), "{arguments:?}: {log}");
    }
    let (code, output, log) = run(url, &["inbox", "dead", "show", "7"]).await;
    assert_eq!((code, output.as_str()), (1, ""), "{log}");
    assert!(log.contains("no dead letter has the id 7"), "{log}");
}
