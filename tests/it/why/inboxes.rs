//! Failing, snoozed, leased and dead messages; handlers at work; sagas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use oncebox_inbox::{Inbox, Outcome};
use oncebox_tests::eventually;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::support::{Scene, assert_held};
use crate::{
    inbox::{
        consumer::{Running, consumer},
        support::{Does, LIMIT, SCOPE, builder, insert},
    },
    operator::sagas::SAGAS,
    relay::{
        plans::pages,
        process::run_ok,
        support::{connect, drain},
    },
};

/// Nothing comes again by itself while a test runs.
const LONG: Duration = Duration::from_secs(250);

const EFFECT: &str = "CREATE TABLE effect (id bigserial, key text, n bigint, line text)";

/// The handler's answer until it is mended.
#[derive(Clone, Copy)]
enum Until {
    Fails,
    Snoozes,
}

/// A consumer of the scene's stream whose handler does not work until it is mended.
async fn consuming(scene: &Scene, until: Until, attempts_max: u64) -> (Running, Arc<AtomicBool>) {
    scene.pg.batch_execute(EFFECT).await.unwrap();
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let handler = Does::new(move |cx, job| {
        let works = is_mended.load(SeqCst);
        Box::pin(async move {
            match (works, until) {
                (true, _) => Ok(Outcome::done(insert(cx, &job).await?)),
                (false, Until::Fails) => Err("the ledger is closed".into()),
                (false, Until::Snoozes) => Ok(Outcome::snooze(LONG, "the ledger opens at nine")),
            }
        })
    });
    let inbox: Inbox = builder(&scene.env).backoff(LONG, LONG).attempts_max(attempts_max).build().unwrap();
    scene.enqueue("order-1", &scene.taken, None).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    (Running::start(consumer(&scene.env).await, inbox, handler), mended)
}

async fn held(scene: &Scene, station: &str) -> Value {
    eventually(&format!("it is held: {station}"), LIMIT, async || {
        let answer = scene.answer("order-1").await;
        (answer["outcome"] == "held" && answer["station"] == station).then_some(answer)
    })
    .await
}

/// It was handled, and its consumer has acknowledged it.
async fn done(scene: &Scene) {
    let answer = eventually("it is done", LIMIT, async || {
        drain(&mut connect(&scene.values).await.worker()).await;
        Some(scene.answer("order-1").await).filter(|answer| answer["outcome"] == "done")
    })
    .await;
    let passed = answer["passed"].as_array().unwrap();
    let inbox = passed.iter().find(|one| one["station"] == "inbox").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(inbox["what"], format!("completed by {SCOPE}"), "{answer}");
    assert!(inbox["at"].as_str().unwrap().starts_with("20"), "{answer}");
    assert_eq!(scene.why("order-1").await.0, 0);
}

#[tokio::test]
async fn a_message_that_fails_is_handled_by_the_remedy() {
    let scene = Scene::new().await;
    let (running, mended) = consuming(&scene, Until::Fails, 5).await;
    let answer = held(&scene, "inbox").await;
    let what = [SCOPE, "failed it 1 time, last at 20", "the ledger is closed", "delivered again at 20"];
    let retry = format!("oncebox inbox failing retry --key 'order-1' --scope '{SCOPE}'");
    assert_held(&answer, "inbox", &what, &["mend the cause", &retry]);
    let stored = answer["passed"].as_array().unwrap().iter().find(|one| one["station"] == "stream").unwrap();
    assert!(stored["what"].as_str().unwrap().ends_with("at sequence 1"), "{answer}");
    mended.store(true, SeqCst);
    scene.mend(&answer).await;
    eventually("it is handled", LIMIT, async || {
        let answer = scene.answer("order-1").await;
        answer["passed"].as_array().unwrap().iter().any(|one| one["station"] == "inbox").then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn a_snoozed_message_says_until_when_and_why() {
    let scene = Scene::new().await;
    let (running, mended) = consuming(&scene, Until::Snoozes, 5).await;
    let answer = held(&scene, "inbox").await;
    let what = [SCOPE, "has snoozed it until 20", "1 time since 20", "the ledger opens at nine"];
    assert_held(&answer, "inbox", &what, &["delivered again at 20", "oncebox outbox replay --key 'order-1'"]);
    let trace = run_ok(scene.env.database_url(), &["trace", "order-1"]).await;
    assert!(trace.contains("snoozed in tests:effect until 20") && trace.contains("opens at nine"), "{trace}");
    mended.store(true, SeqCst);
    scene.mend(&answer).await;
    eventually("a copy is handled", LIMIT, async || {
        drain(&mut connect(&scene.values).await.worker()).await;
        let answer = scene.answer("order-1").await;
        answer["passed"].as_array().unwrap().iter().any(|one| one["station"] == "inbox").then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn a_dead_letter_is_handled_by_the_remedy() {
    let scene = Scene::new().await;
    let (running, mended) = consuming(&scene, Until::Fails, 1).await;
    // It has failed a moment before.
    let is_dead = async || {
        let answer = scene.answer("order-1").await;
        answer["what"].as_str().is_some_and(|what| what.contains("gave it up")).then_some(answer)
    };
    let answer = eventually("it is a dead letter", LIMIT, is_dead).await;
    let retry = "oncebox inbox dead retry --id '1'";
    assert_held(&answer, "inbox", &["gave it up at 20", "the ledger is closed"], &["mend the cause", retry]);
    mended.store(true, SeqCst);
    scene.mend(&answer).await;
    done(&scene).await;
    running.stop().await;
    run_ok(scene.env.database_url(), &["trace", "order-1"]).await;
}

/// A dead letter of another payload dies at each retry, so it is no remedy, and has its own reason.
#[tokio::test]
async fn another_message_with_the_key_is_told_apart_from_the_one_that_died() {
    let scene = Scene::new().await;
    let other = |place: u32| format!("'used before', 's', '{{}}', '', NULL, 'S', {place}, now()");
    let bury = async |key: &str, payload: &str, rest: &str| {
        let sql = format!("SELECT oncebox.bury('mail:send', '{key}', '{payload}', {rest})");
        scene.pg.batch_execute(&sql).await.unwrap();
    };
    scene.pg.batch_execute("SELECT oncebox.register_scope('mail:send')").await.unwrap();
    bury("order-1", "first", "'no account', 's'").await;
    bury("order-1", "other", &other(1)).await;
    let dies = "dead letter 2 is of another message with this key, and dies at each retry";
    let what = ["gave it up at 20", "1 delivery: no account; ", dies];
    scene.assert_held("order-1", "inbox", &what, &["oncebox inbox dead retry --id '1'"]).await;
    run_ok(scene.env.database_url(), &["inbox", "dead", "discard", "--id", "1"]).await;
    let answer = scene.answer("order-1").await;
    let is_told = answer["what"].as_str().unwrap().contains(&format!("by this role; {dies}"));
    assert!(answer["outcome"] == "given-up" && is_told, "{answer}");

    let handled = "BEGIN DEFERRABLE; SELECT oncebox.claim('mail:send', 'order-2', 'first'); COMMIT";
    scene.pg.batch_execute(handled).await.unwrap();
    bury("order-2", "other", &other(2)).await;
    bury("order-2", "third", &other(3)).await;
    let answer = scene.answer("order-2").await;
    let others = "another database; dead letters 4, 3 are of other messages with this key, and die";
    assert!(answer["outcome"] == "done" && answer["what"].as_str().unwrap().contains(others), "{answer}");

    // It may stop a line, too.
    scene.pg.batch_execute("SELECT oncebox.follow_lines('mail:send', 10)").await.unwrap();
    bury("order-2", "fourth", &other(4).replace("{}", r#"{"Oncebox-Ordering-Key": "k"}"#)).await;
    let wait = r#"SELECT oncebox.wait_in_line('mail:send', 'order-3', 'next', 's', '{"Oncebox-Ordering-Key": "k"}', '', 'S', 5, now())"#;
    scene.pg.batch_execute(wait).await.unwrap();
    let remedy = ["by another message, so it dies at each retry", "`oncebox inbox dead discard --id 5`"];
    let answer =
        scene.assert_held("order-3", "inbox", &["behind dead letter 5 (key order-2)"], &remedy).await;
    assert_eq!(answer["remedy"]["command"], Value::Null, "{answer}");
}

/// The statement reads a few pages, however many letters there are.
#[tokio::test]
async fn the_letters_of_a_key_are_found_among_many() {
    let scene = Scene::new().await;
    let many = "INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
                SELECT 'mail', '', 'k-' || n, 's', '{}', '', 5, 'no account' FROM generate_series(1, 20000) AS n";
    scene.pg.batch_execute(many).await.unwrap();
    let sql = scene.env.schema.sql(include_str!("../../../operator/src/sql/why_letters.sql"));
    scene.pg.batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off").await.unwrap();
    let keys = ["k-7".to_owned(), "k-19999".to_owned(), "none".to_owned()];
    let found = scene.pg.query(&sql, &[&keys.as_slice(), &100_i64]).await.unwrap();
    assert_eq!(found.len(), 2);
    let explained = format!("EXPLAIN (ANALYZE, BUFFERS) {sql}");
    let plan = scene.pg.query(&explained, &[&keys.as_slice(), &100_i64]).await.unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    assert!(pages(&plan) < 30, "{}", plan.join("\n"));
}

#[tokio::test]
async fn a_dead_letter_that_was_discarded_is_no_way_back() {
    let scene = Scene::new().await;
    let (running, _) = consuming(&scene, Until::Fails, 1).await;
    held(&scene, "inbox").await;
    run_ok(scene.env.database_url(), &["inbox", "dead", "discard", "--key", "order-1"]).await;
    let answer = scene.answer("order-1").await;
    assert_eq!(answer["outcome"], "given-up", "{answer}");
    running.stop().await;
}

#[tokio::test]
async fn leases_and_effects_are_shown_with_owner_step_and_age() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    let sql = "SELECT oncebox.register_scope('pay:charge', mode => 'lease');
        INSERT INTO oncebox.inbox_claim (scope, tenant, key, fingerprint, owner, lease_until, attempts)
        VALUES ('pay:charge', '', 'order-1', '', '11111111-2222-3333-4444-555555555555', now() + interval '1 h', 2);
        INSERT INTO oncebox.inbox_effect (scope, tenant, key, step, epoch) VALUES ('pay:charge', '', 'order-1', 'reserve', 1)";
    scene.pg.batch_execute(sql).await.unwrap();
    let answer = scene.answer("order-1").await;
    assert_eq!((&answer["outcome"], &answer["station"]), (&json!("on-its-way"), &json!("inbox")), "{answer}");
    let what = answer["what"].as_str().unwrap();
    for part in [
        "pay:charge works on it since 20",
        "attempt 2",
        "process 11111111-2222",
        "until 20",
        "reserve began at 20",
    ] {
        assert!(what.contains(part), "{part}: {what}");
    }
    let trace = run_ok(scene.env.database_url(), &["trace", "order-1"]).await;
    assert!(
        trace.contains("leased in pay:charge by 11111111") && trace.contains("effect reserve started at 20"),
        "{trace}"
    );

    let unknown = "UPDATE oncebox.inbox_claim SET state = 'unknown', reason = 'no answer of the bank'";
    scene.pg.batch_execute(unknown).await.unwrap();
    let what =
        ["may have happened", "reserve began at 20", "no answer of the bank", "may look again from 20"];
    scene.assert_held("order-1", "effect", &what, &["its next attempt finds out"]).await;
    let failed = "DELETE FROM oncebox.inbox_effect; UPDATE oncebox.inbox_claim SET state = 'failed', reason = 'no funds'";
    scene.pg.batch_execute(failed).await.unwrap();
    scene.assert_held("order-1", "inbox", &["failed it in attempt 2: no funds"], &["by itself"]).await;
}

/// Its owner is suspended, or dead; no process has come for the message since.
#[tokio::test]
async fn a_lease_that_is_over_is_not_called_work() {
    let scene = Scene::new().await;
    let sql = "SELECT oncebox.register_scope('pay:charge', mode => 'lease');
        SELECT oncebox.claim_leased('pay:charge', 'order-1', 'p', '11111111-2222-3333-4444-555555555555', '1 h');
        UPDATE oncebox.inbox_claim SET lease_until = now() - interval '1 s'";
    scene.pg.batch_execute(sql).await.unwrap();
    let what = ["worked on it since 20", "attempt 1", "process 11111111-2222", "is over since 20"];
    scene.assert_held("order-1", "inbox", &what, &["when the message is delivered again"]).await;
    let trace = run_ok(scene.env.database_url(), &["trace", "order-1"]).await;
    assert!(trace.contains("Z, which is over, attempt 1"), "{trace}");
    let trace = run_ok(scene.env.database_url(), &["trace", "order-1", "--json"]).await;
    assert!(trace.contains(r#""is_over":true"#), "{trace}");
}

#[tokio::test]
async fn an_attempt_that_is_overdue_waits_for_its_consumer() {
    let scene = Scene::new().await;
    let (running, _) = consuming(&scene, Until::Fails, 5).await;
    held(&scene, "inbox").await;
    running.stop().await;
    scene.pg.batch_execute("UPDATE oncebox.inbox_attempt SET due_at = now() - interval '1 s'").await.unwrap();
    let found = eventually("its consumer is quiet for long enough", 2 * LIMIT, async || {
        Some(scene.answer("order-1").await).filter(|answer| answer["station"] == "consumer")
    });
    let what = ["nobody pulls from the consumer d", "are to be delivered again"];
    assert_held(&found.await, "consumer", &what, &["start its service"]);
    scene.stream.delete_consumer("d").await.unwrap();
    scene.assert_held("order-1", "stream", &["nobody consumes stream"], &["start the services"]).await;
}

#[tokio::test]
async fn a_handler_at_work_is_named_with_its_session() {
    let scene = Scene::new().await;
    scene.pg.batch_execute(EFFECT).await.unwrap();
    let (handler, started, finish) = Does::effect_that_waits();
    let inbox = builder(&scene.env).build().unwrap();
    scene.enqueue("order-1", &scene.taken, None).await;
    drain(&mut connect(&scene.values).await.worker()).await;
    let running = Running::start(consumer(&scene.env).await, inbox, handler);
    timeout(LIMIT, started.notified()).await.expect("the handler runs");
    let answer = scene.answer("order-1").await;
    let what = answer["what"].as_str().unwrap();
    assert!(
        answer["outcome"] == "on-its-way" && what.contains(&format!("the handler of {SCOPE} runs: pid")),
        "{answer}"
    );
    finish.notify_one();
    done(&scene).await;
    running.stop().await;
}

#[tokio::test]
async fn a_saga_that_waits_for_an_operator_is_held() {
    let scene = Scene::new().await;
    scene.pg.batch_execute(SAGAS).await.unwrap();
    let stuck = "SELECT key FROM oncebox.saga WHERE state = 'stuck' ORDER BY key LIMIT 1";
    let key: String = scene.pg.query_one(stuck, &[]).await.unwrap().get(0);
    let (_, told) = scene.why(&key).await;
    let answers = told["answers"].as_array().unwrap();
    let saga = answers.iter().find(|one| one["station"] == "saga").unwrap_or_else(|| panic!("{told}"));
    assert_held(saga, "saga", &["is stuck"], &[&format!("oncebox saga retry --key '{key}'")]);
}

/// The HTTP layer's keys have no message, so none is looked for elsewhere.
#[tokio::test]
async fn the_key_of_a_request_is_called_so_and_tells_its_response() {
    let scene = Scene::new().await;
    let register = "SELECT oncebox.register_scope('shop:orders', kind => 'http')";
    scene.pg.batch_execute(register).await.unwrap();
    let request = "BEGIN DEFERRABLE;
                   SELECT oncebox.claim_request('shop:orders', '', 'order-7', sha256('1'));
                   SELECT oncebox.settle_request('shop:orders', '', 'order-7', false, 201, '[]', 'ok');
                   COMMIT";
    scene.pg.batch_execute(request).await.unwrap();
    let answer = scene.answer("order-7").await;
    let what = answer["what"].as_str().unwrap();
    assert!(what.starts_with("completed by shop:orders at "), "{what}");
    assert!(what.ends_with("; it is the key of an HTTP request, answered with 201"), "{what}");
    let told = run_ok(scene.env.database_url(), &["trace", "order-7"]).await;
    assert!(told.contains("KEY WITHOUT A MESSAGE HERE"), "{told}");
    assert!(told.contains("completed in shop:orders, an HTTP request, answered with 201"), "{told}");

    // Its handler has sent COMMIT by itself.
    let part =
        "BEGIN DEFERRABLE; SELECT oncebox.claim_request('shop:orders', '', 'order-8', sha256('1')); COMMIT";
    scene.pg.batch_execute(part).await.unwrap();
    let answer = scene.answer("order-8").await;
    let what = answer["what"].as_str().unwrap();
    assert!(what.starts_with("shop:orders has no response for the HTTP request with this key: "), "{what}");
    assert!(
        what.ends_with("so a part of the request may be done; a repeated one is answered with 410"),
        "{what}"
    );
    let told = run_ok(scene.env.database_url(), &["trace", "order-8"]).await;
    assert!(told.contains("an HTTP request without a response: a part of it may be done"), "{told}");
}
