//! A status tells more: dead letters, settings that differ, rates; and the order of its findings.

use oncebox_tests::{TestEnv, eventually};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    operator::status::{assert_finds, findings, named, start, status},
    relay::{
        process::{run, run_ok},
        support::{LIMIT, Running, client, connect, drain, enqueue, with},
    },
};

#[tokio::test]
async fn dead_letters_of_inboxes_hold_something_up_and_a_trace_sees_them() {
    let env = TestEnv::new().await;
    let (_stream, pg, values) = start(&env).await;
    let url = env.database_url();
    let _relay = client(&named(&env, "oncebox%20relay")).await;
    enqueue(&pg, &env.subject("taken.a"), "m-", 0..3, 0).await;
    drain(&mut connect(&values).await.worker()).await;
    assert_eq!(findings(&status(url).await), [""; 0]);
    for (key, status) in [("m-0", "dead"), ("m-1", "completed"), ("m-0:elsewhere", "dead")] {
        let sql = "INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status)
                   VALUES ('mail:receipt', '', $1::text, sha256(''), $2::text)";
        pg.execute(sql, &[&key, &status]).await.unwrap();
    }
    let sql = "INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
               SELECT 'mail:receipt', '', 'm-' || n, 's', '{}', '', 5, 'no account ' || n FROM generate_series(0, 11) AS n";
    pg.execute(sql, &[]).await.unwrap();
    let told = status(url).await;
    assert_finds(
        &told,
        &[
            "mail:receipt has given 12 messages up",
            "no account 11",
            "inbox dead retry --scope 'mail:receipt'",
        ],
    );
    assert_eq!((findings(&told).len(), &told["dead_letters"][0]["letters"]), (1, &json!(12)));

    let traced: Value = serde_json::from_str(&run_ok(url, &["trace", "m-0", "--json"]).await).unwrap();
    let message = &traced["messages"][0];
    assert_eq!((&message["state"], &message["inboxes"][0]["status"]), (&json!("settled"), &json!("dead")));
    assert_eq!(message["inboxes"].as_array().unwrap().len(), 1, "once: {message}");
    let elsewhere = &traced["inboxes"][0];
    assert_eq!((&elsewhere["key"], &elsewhere["status"]), (&json!("m-0:elsewhere"), &json!("dead")));
    let lines = async |key: &str| run_ok(url, &["trace", key]).await;
    assert!(lines("m-0").await.contains("dead letter in mail:receipt"));
    assert!(lines("m-1").await.contains("completed in mail:receipt"));
    assert!(!lines("m-2").await.contains("mail:receipt"));
}

#[tokio::test]
async fn findings_come_first_lanes_at_rest_are_hidden_and_rates_are_told() {
    let env = TestEnv::new().await;
    let (_stream, pg, values) = start(&env).await;
    let url = env.database_url();
    let rest = run_ok(url, &["status"]).await;
    assert!(rest.starts_with("what holds delivery up\n- no relay is connected"), "{rest}");
    assert!(rest.contains("16 lanes are at rest") && !rest.contains("LAG SECONDS"), "{rest}");
    let all = run_ok(url, &["status", "--all"]).await;
    assert!(all.contains("LAG SECONDS") && all.lines().any(|line| line.starts_with("15 ")), "{all}");
    pg.execute("SELECT oncebox.enqueue('k', $1, 'p')", &[&env.subject("taken.a")]).await.unwrap();
    let one = run_ok(url, &["status"]).await;
    assert!(one.contains("LAG SECONDS") && one.contains("15 lanes are at rest"), "{one}");

    let relay = Running::start(&values);
    let mut producing = JoinSet::new();
    producing.spawn({
        let pg = env.pg().await;
        let subject = env.subject("taken.b");
        async move {
            for n in 0.. {
                let key = format!("rate-{n}");
                pg.execute("SELECT oncebox.enqueue($1, $2, 'p')", &[&key, &subject]).await.unwrap();
            }
        }
    });
    eventually("both rates are told", LIMIT, async || {
        let rates = &status(url).await["rates"];
        let rate = |name: &str| rates[name].as_f64().unwrap();
        let (enqueued, settled) = (rate("enqueued_per_second"), rate("settled_per_second"));
        (enqueued > 1.0 && settled > 1.0 && rate("seconds") >= 1.0).then_some(())
    })
    .await;
    producing.abort_all();
    relay.stop().await;
}

#[tokio::test]
async fn relays_with_different_settings_are_reported() {
    let env = TestEnv::new().await;
    let (_stream, pg, values) = start(&env).await;
    let url = env.database_url();
    let _relay = client(&named(&env, "oncebox%20relay")).await;
    let week = with(&values, [("retention", "7d")]);
    let relays = [connect(&week).await, connect(&week).await];
    let mut maintainers = relays.map(|relay| relay.maintainer());
    for _ in 0..2 {
        for maintainer in &mut maintainers {
            maintainer.run_once().await.unwrap();
        }
    }
    let told = status(url).await;
    assert_eq!(
        told["relay_settings"],
        json!([{"relays": 2, "retention_seconds": 604800.0, "dead_blocks": true}])
    );
    assert_eq!(findings(&told), [""; 0]);
    connect(&with(&week, [("on-dead", "skip")])).await.maintainer().run_once().await.unwrap();
    assert_finds(
        &status(url).await,
        &["different settings", "2 with on-dead = block", "1 with on-dead = skip", "7days"],
    );
    let (_, doctor, _) = run(url, &["doctor", "--nats-url", env.nats_url()]).await;
    assert!(doctor.contains("[relay-settings]"), "{doctor}");
    // One that has ended is forgotten.
    pg.execute("UPDATE oncebox.relay SET seen_at = now() - interval '200 s' WHERE NOT dead_blocks", &[])
        .await
        .unwrap();
    assert_eq!(findings(&status(url).await), [""; 0]);
    pg.execute("UPDATE oncebox.relay SET seen_at = now() - interval '2 h' WHERE NOT dead_blocks", &[])
        .await
        .unwrap();
    connect(&week).await.maintainer().run_once().await.unwrap();
    let left: i64 = pg.query_one("SELECT count(*) FROM oncebox.relay", &[]).await.unwrap().get(0);
    assert_eq!(left, 3, "and goes, in the end");
}
