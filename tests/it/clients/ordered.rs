//! Order of messages that share an ordering key, while handlers fail and processes die: commits of
//! each key are in the order of the stream, and each message has its effects once.

use std::time::Duration;

use oncebox_tests::{Program, TestEnv, eventually};

use super::shop::{LIMIT, Programs, lines};
use crate::inbox::support::count;

const MESSAGES: usize = 600;
/// PostgreSQL ends the session of a suspended leader after 30 s.
const TAKEOVER: Duration = Duration::from_secs(40);

async fn publish(env: &TestEnv) {
    let jetstream = env.jetstream().await;
    for n in 0..MESSAGES {
        let mut headers = async_nats::HeaderMap::new();
        let kind = if n % 97 == 50 { "dead" } else { "message" };
        headers.insert("Idempotency-Key", format!("{kind}-{n}"));
        headers.insert("Oncebox-Ordering-Key", format!("line-{}", n % 5));
        jetstream
            .publish_with_headers(env.subject("ordered"), headers, "{}".into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
}

async fn start(env: &TestEnv, programs: &Programs, settings: &str) -> Program {
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", env.nats_url().to_owned()),
        ("STREAM", env.name().to_owned()),
        ("SETTINGS", settings.to_owned()),
    ];
    Program::start_file(&programs.file("ordered"), &[], &environment).await.unwrap()
}

async fn stage() -> TestEnv {
    let env = TestEnv::new().await;
    env.stream().await;
    let table = "CREATE TABLE handled (id bigserial, line text, sequence bigint, key text)";
    env.pg().await.batch_execute(table).await.unwrap();
    publish(&env).await;
    env
}

async fn check(env: &TestEnv) {
    let dead = (0..MESSAGES).filter(|n| n % 97 == 50).count();
    let all = i64::try_from(MESSAGES - dead).unwrap();
    eventually("all are handled", LIMIT, async || (count(env, "handled").await >= all).then_some(())).await;
    let wrong = "SELECT 'overtaken: ' || key FROM
                   (SELECT key, sequence < lag(sequence) OVER (PARTITION BY line ORDER BY id) AS is_late FROM handled) AS h
                 WHERE is_late
                 UNION ALL SELECT 'twice: ' || key FROM handled GROUP BY key HAVING count(*) > 1
                 UNION ALL SELECT 'dead: ' || key FROM oncebox.dead_letter WHERE key NOT LIKE 'dead-%'";
    assert_eq!(lines(&env.pg().await, wrong).await, [""; 0]);
    assert_eq!(count(env, "handled").await, all);
}

async fn within_a_process(settings: &str) {
    let Some(programs) = Programs::of("go") else { return };
    let env = stage().await;
    let mut program = start(&env, &programs, settings).await;
    check(&env).await;
    program.stop().await.unwrap();
}

#[tokio::test]
async fn messages_behind_one_that_fails_wait_in_go() {
    within_a_process("plain").await;
}

#[tokio::test]
async fn so_do_those_of_batches_in_go() {
    within_a_process("batch").await;
}

#[tokio::test]
async fn a_new_durable_begins_now_and_passes_over_delete_markers_in_go() {
    let Some(programs) = Programs::of("go") else { return };
    let env = stage().await;
    let mut program = start(&env, &programs, "new").await;
    eventually("it consumes", LIMIT, async || program.log().contains("the consumer starts").then_some(()))
        .await;
    let jetstream = env.jetstream().await;
    for (name, value, payload) in [("Nats-Marker-Reason", "MaxAge", ""), ("Idempotency-Key", "new", "{}")] {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(name, value);
        jetstream
            .publish_with_headers(env.subject("a"), headers, payload.into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
    eventually("it is handled", LIMIT, async || (count(&env, "handled").await == 1).then_some(())).await;
    program.stop().await.unwrap();
    let postgres = env.pg().await;
    assert_eq!(lines(&postgres, "SELECT key FROM handled").await, ["new"]);
    assert_eq!(lines(&postgres, "SELECT reason FROM oncebox.dead_letter").await, [""; 0]);
}

#[tokio::test]
async fn strict_order_survives_kills_and_suspensions_in_go() {
    let Some(programs) = Programs::of("go") else { return };
    let env = stage().await;
    // The first of the two leads.
    let mut leader = start(&env, &programs, "strict").await;
    eventually("it consumes", LIMIT, async || (count(&env, "handled").await > 0).then_some(())).await;
    let mut standby = start(&env, &programs, "strict").await;
    for round in 1..=2 {
        let before = count(&env, "handled").await;
        if round == 1 {
            leader.suspend(true).unwrap();
        } else {
            leader.kill().await.unwrap();
        }
        // What the leader had sent may still be committed.
        let more = before + 8;
        eventually("the standby goes on", TAKEOVER, async || {
            (count(&env, "handled").await > more).then_some(())
        })
        .await;
        if round == 1 {
            leader.suspend(false).unwrap();
        } else {
            leader.restart().await.unwrap();
        }
        std::mem::swap(&mut leader, &mut standby);
    }
    check(&env).await;
    leader.stop().await.unwrap();
    standby.stop().await.unwrap();
}
