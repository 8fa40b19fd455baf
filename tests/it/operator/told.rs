//! Commands that cannot obey, or mean something else than an operator thinks, say so.

use oncebox_tests::TestEnv;

use super::sagas::SAGAS;
use crate::{
    console::{act::confirm, act::end, support::Console},
    relay::{
        process::{run, run_ok},
        support::enqueue,
    },
};

/// It ends with 1, and says each of these.
async fn refused(url: &str, command: &[&str], parts: &[&str]) {
    let (code, text, log) = run(url, command).await;
    assert!(code == 1 && parts.iter().all(|part| log.contains(part)), "{command:?}: {text}{log}");
    assert!(!log.contains("PostgreSQL did not do"), "{log}");
}

#[tokio::test]
async fn an_undo_of_what_is_no_discard_is_refused_in_words() {
    let env = TestEnv::new().await;
    let parts = ["row 7 of the audit is no discard and no edit. Only a discard", "the audit has its id"];
    refused(env.database_url(), &["undo", "7"], &parts).await;
}

#[tokio::test]
async fn a_step_of_a_saga_is_skipped_or_retried_once_until_that_is_done() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    client.batch_execute(SAGAS).await.unwrap();
    let skip = ["saga", "skip", "--key", "2:order", "--step", "ship"];
    run_ok(url, &skip).await;
    refused(url, &skip, &["no operator has acted already"]).await;
    refused(url, &["saga", "retry", "--key", "2:order"], &["no operator has acted already"]).await;
    let asked =
        "SELECT (SELECT count(*) FROM oncebox.saga_event) || ' ' || (SELECT count(*) FROM oncebox.audit)";
    assert_eq!(client.query_one(asked, &[]).await.unwrap().get::<_, &str>(0), "1 1");
}

#[tokio::test]
async fn a_pause_of_an_unknown_ordering_key_is_told_and_so_is_one_in_the_place_of_another() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    enqueue(&client, &env.subject("a"), "m-", 0..1, 1).await;
    let known = "SELECT ordering_key FROM oncebox.log LIMIT 1";
    let known: String = client.query_one(known, &[]).await.unwrap().get(0);
    let pause = async |key: &str| run(url, &["outbox", "pause", "--ordering-key", key]).await;
    let (code, _, log) = pause(&known).await;
    assert!(code == 0 && !log.contains("no recent message"), "{log}");
    let (code, _, log) = pause("typo").await;
    assert!(code == 0 && log.contains("no recent message has the ordering key typo"), "{log}");

    let console = Console::of(&env, &["--allow-actions"]).await;
    let throttle = "kind=pauses&action=throttle&ordering-key=typo&rate=5";
    let page = console.get(&format!("/db/shop/act?{throttle}")).await;
    assert!(page.body.contains("this takes the place of the pause of ordering key typo"), "{}", page.body);
    let job = confirm(&console, throttle).await;
    let ended = end(&console, &job).await.to_string();
    assert!(ended.contains("this takes the place of the pause of ordering key typo"), "{ended}");
}

#[tokio::test]
async fn a_dry_run_of_a_canary_refuses_what_the_canary_would() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    let letters = "INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
                   SELECT 's:h', '', nullif('k' || n, 'k2'), 's', '{}', '', 5, 'no' FROM generate_series(1, 2) AS n";
    client.batch_execute(letters).await.unwrap();
    let dry = ["inbox", "dead", "retry", "--all", "--canary", "--dry-run"];
    refused(url, &dry, &["dead letter 2 has no key", "retry without a canary"]).await;
    let first = [&dry[..3], &["--id", "1", "--canary", "--dry-run"]].concat();
    run_ok(url, &first).await;
}

#[tokio::test]
async fn a_name_for_the_audit_is_one_line() {
    let env = TestEnv::new().await;
    let (code, _, log) = run(env.database_url(), &["outbox", "pause", "--all", "--by", "mina\nrob"]).await;
    assert!(code == 64 && log.contains("a line break"), "{log}");
}
