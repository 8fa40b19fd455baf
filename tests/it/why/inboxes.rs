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
    let retry = format!("oncebox inbox dead retry --key 'order-1' --scope '{SCOPE}'");
    assert_held(&answer, "inbox", &["gave it up at 20", "the ledger is closed"], &["mend the cause", &retry]);
    mended.store(true, SeqCst);
    scene.mend(&answer).await;
    done(&scene).await;
    running.stop().await;
    run_ok(scene.env.database_url(), &["trace", "order-1"]).await;
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
}
