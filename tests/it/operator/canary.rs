//! Canaries: one row first, then 10, 100 and the rest; a row that fails again stops them.

use oncebox_relay::Relay;
use oncebox_tests::{TestEnv, eventually};
use serde_json::Value;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::{
    console::{act::confirm, act::end, support::Console},
    inbox::{
        consumer::{Running, consumer},
        lines::{breakable, broken},
        support::{LIMIT, SCOPE, count, effects, inbox, stream_environment},
    },
    relay::{
        process::{Process, run, run_ok},
        support::{connect, values, values_of},
    },
};

/// Dead letters of the keys `k1` to `kN`, as an inbox leaves them.
pub(super) async fn bury(env: &TestEnv, letters: i32) -> Client {
    let client = env.pg().await;
    broken(env, &[]).await;
    let sql = "SELECT count(oncebox.bury($1, 'k' || n, convert_to(format('{\"n\": %s}', n), 'UTF8'), 'no table', $2,
                                         jsonb_build_object('Idempotency-Key', 'k' || n)))
               FROM generate_series(1, $3::int) AS n";
    client.query_one(sql, &[&SCOPE, &env.subject("a"), &letters]).await.unwrap();
    client
}

pub(super) async fn begin(url: &str, arguments: &[&str]) -> i64 {
    let command = ["inbox", "dead", "retry", "--canary", "--by", "mina", "--note", "INC-7", "--json"];
    let output = run_ok(url, &[&command, arguments].concat()).await;
    serde_json::from_str::<Value>(&output).unwrap()["canary"].as_i64().unwrap()
}

/// State, and rows that wait, are watched, good, failed and skipped.
pub(super) async fn stands(client: &Client) -> String {
    let sql = "SELECT concat_ws(' ', state, selected - watched - good - failed - skipped, watched, good, failed, skipped)
               FROM oncebox.canary ORDER BY id DESC LIMIT 1";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

pub(super) async fn reason(client: &Client) -> String {
    let sql = "SELECT reason FROM oncebox.canary ORDER BY id DESC LIMIT 1";
    client.query_one(sql, &[]).await.unwrap().get::<_, Option<String>>(0).unwrap_or_default()
}

pub(super) async fn comes_to(client: &Client, expected: &str) {
    eventually(expected, LIMIT, async || (stands(client).await == expected).then_some(())).await;
}

/// How many retries are in the audit under her name, each of another row.
pub(super) async fn retries(client: &Client) -> i64 {
    let sql = "SELECT count(*) * (count(*) = count(DISTINCT message_id))::int
               FROM oncebox.audit
               WHERE action = 'retry' AND operator = 'mina' AND note = 'INC-7' AND database_user = session_user";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

pub(super) async fn stored(env: &TestEnv) -> u64 {
    env.stream().await.get_info().await.unwrap().state.messages
}

pub(super) async fn take_steps(relay: &Relay) {
    let mut steps = relay.canaries();
    while steps.run_once(&CancellationToken::new()).await.unwrap() {}
}

/// A consumer works until there are `until` effects.
pub(super) async fn consume(env: &TestEnv, until: i64) {
    let running = Running::start(consumer(env).await, inbox(env), breakable());
    eventually("effects", LIMIT, async || (effects(env).await == until).then_some(())).await;
    running.stop().await;
}

#[tokio::test]
async fn it_retries_one_then_ten_then_a_hundred_then_the_rest() {
    let env = stream_environment().await;
    let client = bury(&env, 250).await;
    begin(env.database_url(), &["--all"]).await;
    let relay = connect(&values_of(&env)).await;
    let mut done = 0;
    for retried in [1, 11, 111, 250] {
        for _ in 0..2 {
            take_steps(&relay).await;
            let expected = format!("running {} {} {done} 0 0", 250 - retried, retried - done);
            assert_eq!(stands(&client).await, expected, "without a verdict it waits");
        }
        assert_eq!(stored(&env).await, u64::try_from(retried).unwrap());
        consume(&env, retried).await;
        done = retried;
    }
    take_steps(&relay).await;
    assert_eq!(stands(&client).await, "done 0 0 250 0 0");
    assert_eq!((retries(&client).await, count(&env, "oncebox.dead_letter").await), (250, 0));
    let listed = run_ok(env.database_url(), &["canary", "list"]).await;
    assert!(
        listed.contains("done") && listed.contains("250 dead letters") && listed.contains("mina"),
        "{listed}"
    );
}

#[tokio::test]
async fn it_stops_at_the_row_that_fails_again_and_goes_on_with_the_rest_when_told() {
    let env = stream_environment().await;
    let (client, url) = (bury(&env, 40).await, env.database_url());
    broken(&env, &[5]).await;
    let running = Running::start(consumer(&env).await, inbox(&env), breakable());
    let relay = Process::relay(&values_of(&env));
    // Only the rows that were shown: one that came since stays.
    let shown = run_ok(url, &["inbox", "dead", "retry", "--all", "--canary", "--dry-run", "--json"]).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let late =
        "SELECT oncebox.bury($1, 'late', '{\"n\": 77}', 'no table', $2, '{\"Idempotency-Key\": \"late\"}')";
    client.execute(late, &[&SCOPE, &env.subject("a")]).await.unwrap();
    let id = begin(url, &["--all", "--confirm", shown["confirm"].as_str().unwrap()]).await;
    eventually("it stops", LIMIT, async || stands(&client).await.starts_with("failed ").then_some(())).await;
    let why = reason(&client).await;
    assert!(why.starts_with("failed again: dead letter 5, key k5: no account 5"), "{why}");
    assert_eq!(retries(&client).await, 11, "its step, and no other row");
    let status = run_ok(url, &["status"]).await;
    assert!(status.contains(&why) && status.contains(&format!("oncebox canary continue {id}")), "{status}");
    eventually("the others of its step", LIMIT, async || (effects(&env).await == 10).then_some(())).await;
    assert_eq!(
        run_ok(url, &["canary", "continue", &id.to_string(), "--by", "mina", "--note", "INC-7"]).await,
        format!("continued canary {id}\n")
    );
    comes_to(&client, "done 0 0 39 1 0").await;
    assert_eq!((effects(&env).await, retries(&client).await), (39, 40));
    let left = "SELECT string_agg(key, ' ' ORDER BY key) FROM oncebox.dead_letter";
    assert_eq!(client.query_one(left, &[]).await.unwrap().get::<_, &str>(0), "k5 late");
    let (code, _, log) = run(url, &["canary", "continue", &id.to_string()]).await;
    assert!(code == 1 && log.contains("has stopped with a rest"), "{log}");
    relay.kill().await;
    running.stop().await;
}

/// The console is killed as soon as it has begun the canary.
#[tokio::test]
async fn it_outlives_the_console_that_began_it() {
    let env = stream_environment().await;
    let client = bury(&env, 30).await;
    let console = Console::of(&env, &["--allow-actions"]).await;
    let page = console.get("/db/shop/act?kind=dead-letters&action=retry&all=1").await;
    assert!(page.body.contains(r#"type="checkbox" name="canary""#), "{}", page.body);
    let job = confirm(&console, "kind=dead-letters&action=retry&all=1&canary=1").await;
    assert!(end(&console, &job).await["done"].as_str().unwrap().starts_with("began canary 1"));
    console.kill().await;
    assert_eq!(stands(&client).await, "running 30 0 0 0 0");
    let relay = Process::relay(&values_of(&env));
    let running = Running::start(consumer(&env).await, inbox(&env), breakable());
    comes_to(&client, "done 0 0 30 0 0").await;
    assert_eq!(effects(&env).await, 30);
    // Another console shows it; it can neither be stopped nor continued now.
    let console = Console::of(&env, &["--allow-actions"]).await;
    let shown = eventually("the page of jobs", LIMIT, async || {
        let page = console.get("/jobs").await.body;
        page.contains("Canaries").then_some(page)
    });
    assert!(!shown.await.contains("kind=canaries"));
    relay.kill().await;
    running.stop().await;
}

#[tokio::test]
async fn the_page_of_jobs_stops_and_continues_it() {
    let env = stream_environment().await;
    let client = bury(&env, 3).await;
    begin(env.database_url(), &["--all"]).await;
    let console = Console::of(&env, &["--allow-actions"]).await;
    for (action, after) in [("stop", "stopped 3 0 0 0 0"), ("continue", "running 3 0 0 0 0")] {
        let fields = format!("kind=canaries&action={action}&id=1");
        eventually("its button", LIMIT, async || {
            console.get("/jobs").await.body.contains(&fields.replace('&', "&amp;")).then_some(())
        })
        .await;
        let job = confirm(&console, &fields).await;
        assert!(end(&console, &job).await["done"].as_str().unwrap().ends_with("canary"));
        assert_eq!(stands(&client).await, after);
    }
    let twice = confirm(&console, "kind=canaries&action=continue&id=1").await;
    assert!(end(&console, &twice).await["failed"].as_str().unwrap().contains("nothing was done"));
    let audit = "SELECT string_agg(action || messages || reason, ' ' ORDER BY id) FROM oncebox.audit";
    let audit: String = client.query_one(audit, &[]).await.unwrap().get(0);
    assert_eq!(audit, "begin-canary3canary 1 stop-canary3canary 1 continue-canary3canary 1");
}

#[tokio::test]
async fn two_relays_retry_each_row_once() {
    let env = stream_environment().await;
    let client = bury(&env, 150).await;
    begin(env.database_url(), &["--all"]).await;
    let (one, other) = (connect(&values_of(&env)).await, connect(&values_of(&env)).await);
    let running = Running::start(consumer(&env).await, inbox(&env), breakable());
    let (mut first, mut second) = (one.canaries(), other.canaries());
    eventually("it is done", LIMIT, async || {
        let never = CancellationToken::new();
        let (one, other) = tokio::join!(first.run_once(&never), second.run_once(&never));
        one.and(other).unwrap();
        stands(&client).await.starts_with("done").then_some(())
    })
    .await;
    running.stop().await;
    assert_eq!((retries(&client).await, stored(&env).await, effects(&env).await), (150, 150, 150));
}

/// The operator and the relay have logins of their own: the audit has the operator's.
#[tokio::test]
async fn the_relay_s_role_takes_the_steps_in_the_name_of_the_operator() {
    let env = stream_environment().await;
    let client = bury(&env, 3).await;
    let (operator, name) = env.login("oncebox_operator").await;
    let (relay_url, relay_name) = env.login("oncebox_relay").await;
    begin(&operator, &["--all"]).await;
    let relay = connect(&values(&relay_url, env.nats_url())).await;
    let running = Running::start(consumer(&env).await, inbox(&env), breakable());
    eventually("it is done", LIMIT, async || {
        take_steps(&relay).await;
        (stands(&client).await == "done 0 0 3 0 0").then_some(())
    })
    .await;
    running.stop().await;
    let sql = "SELECT count(*), count(DISTINCT database_user), max(database_user)
               FROM oncebox.audit WHERE operator = 'mina'";
    let row = client.query_one(sql, &[]).await.unwrap();
    let found: (i64, i64, &str) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(found, (4, 1, name.as_str()), "begun, and three retries");
    drop(relay);
    client.batch_execute(&format!("DROP ROLE {name}; DROP ROLE {relay_name}")).await.unwrap();
}
