//! The rows that relays write for each minute, and the console's page of them.

use oncebox_tests::{TestEnv, eventually};
use serde_json::{Value, json};

use super::verify::config;
use crate::{
    console::support::Console,
    relay::{
        process::Process,
        support::{LIMIT, await_messages, connect, drain, enqueue, fresh_stream, values},
    },
};

async fn handle(env: &TestEnv, key: &str) {
    let sql = format!(
        "BEGIN DEFERRABLE; SELECT oncebox.claim('billing:charge', '{key}', 'p'); SELECT oncebox.settle('billing:charge', '{key}'); COMMIT"
    );
    env.pg().await.batch_execute(&sql).await.unwrap();
}

/// The relay's login may do no more than its role.
#[tokio::test]
async fn each_minute_is_written_down_and_a_moment_of_it_can_be_looked_at() {
    let env = TestEnv::new().await;
    let _stream = fresh_stream(env.nats_url(), config(&env)).await;
    let client = env.pg().await;
    let [orders, mails] = [env.subject("orders.placed"), env.subject("mails.sent")];
    let (login, _) = env.login("oncebox_relay").await;
    let relay = connect(&values(&login, env.nats_url())).await;
    let (mut worker, mut historian) = (relay.worker(), relay.historian());
    client
        .batch_execute(
            "INSERT INTO oncebox.history (at, relay, version, leads, seconds, stored, subjects, counts)
        VALUES (clock_timestamp() - interval '9 days', gen_random_uuid(), '0', true, 60, 1, '{}', '{}')",
        )
        .await
        .unwrap();
    enqueue(&client, &orders, "order-", 0..3, 0).await;
    enqueue(&client, &mails, "mail-", 0..2, 0).await;
    drain(&mut worker).await;
    // A row that cannot be written is in the next one.
    client.batch_execute("ALTER TABLE oncebox.history RENAME TO away").await.unwrap();
    historian.note().await.unwrap_err();
    client.batch_execute("ALTER TABLE oncebox.away RENAME TO history").await.unwrap();
    enqueue(&client, &mails, "more-", 0..1, 0).await;
    drain(&mut worker).await;
    historian.note().await.unwrap();
    for key in ["order-0", "order-1", "mail-1", "more-0"] {
        handle(&env, key).await;
    }
    historian.note().await.unwrap();
    client.batch_execute("SELECT oncebox.register_scope('billing:charge')").await.unwrap();

    let console = Console::of(&env, &[]).await;
    let path = "/db/shop/history?range=day";
    let history = console.api(&path.replace("/db", "/databases")).await;
    let points = history["points"].as_array().unwrap();
    let sum = |name: &str| points.iter().map(|point| point[name].as_i64().unwrap()).sum::<i64>();
    assert_eq!((sum("stored"), sum("sampled"), sum("handled")), (6, 6, 4), "{history}");
    let last = points.last().unwrap();
    assert_eq!(
        (&last["backlog"], &last["parked"], &last["lag_seconds"]),
        (&json!(0), &json!(0), &json!(0.0))
    );
    for (smaller, larger) in [("stored_median", "stored_p99"), ("handled_median", "handled_p99")] {
        let [smaller, larger] = [smaller, larger].map(|name| last[name].as_f64().unwrap());
        assert!(0.0 < smaller && smaller <= larger && larger < 60.0, "{last}");
    }
    let subjects = json!([{"subject": mails, "messages": 3}, {"subject": orders, "messages": 3}]);
    assert_eq!(history["subjects"], subjects, "the row of nine days ago has gone");
    assert_eq!(history["marks"].as_array().map(Vec::len), Some(1), "{history}");
    assert_eq!(history["marks"][0]["kind"], "leader");

    let at = last["at"].as_str().unwrap();
    let page = console.get(&format!("{path}&at={at}")).await;
    for text in ["Commit to handled", "of 6 looked for were handled", &mails, "leads"] {
        assert!(page.body.contains(text), "{text}: {}", page.body);
    }
    let before = console
        .api("/databases/shop/history?range=hour&until=2026-01-01T12:00&at=2026-01-01T11:30:00Z")
        .await;
    assert_eq!((&before["points"], &before["moment"]["points"]), (&json!([]), &json!([])));
    for (wrong, why) in [("range=year", "range"), ("until=soon", "until"), ("at=x", "at")] {
        let answer = console.get(&format!("/api/v1/databases/shop/history?{wrong}")).await;
        let problem: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answer.status, 400, "{problem}");
        assert!(problem["error"].as_str().unwrap().starts_with(why), "{problem}");
    }
    console.stop().await;
}

/// A relay tells of itself soon, and has written all when it has drained.
#[tokio::test]
async fn a_relay_that_drains_has_written_down_all_that_it_sent() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), config(&env)).await;
    let client = env.pg().await;
    let relay = Process::relay(&values(env.database_url(), env.nats_url()));
    let written = async || {
        let sql = "SELECT sum(stored)::bigint, bool_or(leads) FROM oncebox.history";
        let row = client.query_one(sql, &[]).await.unwrap();
        (row.get::<_, Option<i64>>(0), row.get::<_, Option<bool>>(1))
    };
    eventually("its first row", LIMIT, async || (written().await == (Some(0), Some(true))).then_some(()))
        .await;
    enqueue(&client, &env.subject("a"), "k-", 0..7, 0).await;
    await_messages(&stream, 7).await;
    relay.signal("TERM").await;
    assert!(relay.ended().await.0.success());
    assert_eq!(written().await.0, Some(7));
}
