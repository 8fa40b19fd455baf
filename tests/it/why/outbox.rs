//! Before a relay sends a message: its transaction, relays, pauses, locks, delays, the schema.

use oncebox_tests::{TestEnv, eventually};
use serde_json::json;

use super::support::{Scene, assert_held, why};
use crate::{
    operator::{doctor::run_with, status::named},
    relay::{
        process::Process,
        support::{
            LIMIT, Running, await_messages, client, connect, drain, enqueue, fresh_stream, stream_config,
            values_of,
        },
    },
};

#[tokio::test]
async fn a_message_without_a_relay_is_held_until_one_runs() {
    let env = TestEnv::new().await;
    fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject(">"))).await;
    enqueue(&env.pg().await, &env.subject("a"), "order-", 0..1, 0).await;
    let (code, told) = why(env.database_url(), env.nats_url(), &["order-0"]).await;
    assert_eq!(code, 1, "{told}");
    assert_held(&told["answers"][0], "relay", &["no relay is connected"], &["oncebox relay"]);
    assert_eq!(told["answers"][0]["passed"][0]["station"], "transaction", "{told}");
    let environment = [("DATABASE_URL", env.database_url()), ("NATS_URL", env.nats_url())];
    let (_, text, _) = run_with(&["why", "order-0"], &environment).await;
    assert!(
        text.starts_with("order-0 in ") && text.contains("is held: relay\n  passed  transaction: "),
        "{text}"
    );
    assert!(
        text.contains("\n  remedy  start `oncebox relay`") && text.ends_with("\n    oncebox relay\n"),
        "{text}"
    );

    let relay = Running::start(&values_of(&env));
    eventually("it gets on", LIMIT, async || {
        let (_, told) = why(env.database_url(), env.nats_url(), &["order-0"]).await;
        (told["answers"][0]["passed"][1]["station"] == "stream").then_some(())
    })
    .await;
    relay.stop().await;
}

#[tokio::test]
async fn a_key_of_an_open_transaction_names_its_session() {
    let scene = Scene::new().await;
    let session = client(&named(&scene.env, "checkout")).await;
    let sql = format!("BEGIN; SELECT oncebox.enqueue('order-1', '{}', 'p')", scene.taken);
    session.batch_execute(&sql).await.unwrap();
    let answer = scene
        .assert_held(
            "order-1",
            "transaction",
            &["checkout", "not committed", "may be one"],
            &["pg_terminate_backend("],
        )
        .await;
    assert_eq!((&answer["remedy"]["is_sql"], scene.why("order-1").await.0), (&json!(true), 1));
    scene.mend(&answer).await;
    let answer = eventually("the session is gone", LIMIT, async || {
        Some(scene.answer("order-1").await).filter(|answer| answer["outcome"] == "unknown")
    })
    .await;
    assert!(answer["what"].as_str().unwrap().contains("rolled back"), "{answer}");
    assert_eq!(scene.why("order-1").await.0, 1);

    scene.enqueue("shop%3A7:pay", &scene.taken, None).await;
    let answer = scene.answer("shop:7:pay").await;
    assert_eq!(answer["remedy"]["command"], "oncebox why 'shop%3A7:pay'", "{answer}");
}

#[tokio::test]
async fn a_pause_holds_and_its_remedy_resumes() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, Some("customer-7")).await;
    let url = scene.env.database_url();
    let pauses: [&[&str]; 3] = [&["--all"], &["--subject", &scene.taken], &["--ordering-key", "customer-7"]];
    for of in pauses {
        let pause = [&["outbox", "pause"], of, &["--by", "mina", "--note", "INC-7"]].concat();
        crate::relay::process::run_ok(url, &pause).await;
        let resume = format!("oncebox outbox resume {}", of[0]);
        let answer = scene.assert_held("order-1", "pause", &["paused by mina", "INC-7"], &[&resume]).await;
        let fields = answer["remedy"]["action"].to_string();
        assert!(fields.starts_with(r#"[["kind","pauses"],["action","resume"],"#), "{fields}");
        // Also once relays have set it aside for that.
        drain(&mut connect(&scene.values).await.worker()).await;
        assert_eq!(scene.answer("order-1").await["station"], "pause");
        scene.mend(&answer).await;
        assert_ne!(scene.answer("order-1").await["station"], "pause", "{of:?}");
    }
    let throttle = ["outbox", "throttle", "--subject", &scene.taken, "--rate", "0.001"];
    crate::relay::process::run_ok(url, &throttle).await;
    let answer = scene
        .assert_held("order-1", "pause", &["throttled to 0.001"], &["oncebox outbox resume --subject"])
        .await;
    scene.mend(&answer).await;
    eventually("it is stored", LIMIT, async || {
        drain(&mut connect(&scene.values).await.worker()).await;
        (scene.answer("order-1").await["station"] != "outbox").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_locked_lane_names_the_session_that_has_it() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    assert_eq!(scene.answer("order-1").await["outcome"], "on-its-way");
    let session = client(&named(&scene.env, "psql")).await;
    session.batch_execute("BEGIN; SELECT FROM oncebox.lane FOR UPDATE").await.unwrap();
    let answer =
        scene.assert_held("order-1", "lane", &["locked by", "psql"], &["SELECT pg_terminate_backend("]).await;
    scene.mend(&answer).await;
    eventually("it is free", LIMIT, async || {
        (scene.answer("order-1").await["outcome"] == "on-its-way").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_relay_that_settles_nothing_is_named() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    let age = "UPDATE oncebox.message_0 SET created_at = now() - interval '100 s';
               UPDATE oncebox.cursor SET settled_at = now() - interval '90 s'";
    scene.pg.batch_execute(age).await.unwrap();
    scene.assert_held("order-1", "relay", &["nothing was settled for"], &["/readyz"]).await;
}

#[tokio::test]
async fn a_delayed_message_waits_for_its_time() {
    let scene = Scene::new().await;
    let sql = "SELECT oncebox.enqueue_at('later', $1, 'p', clock_timestamp() + interval '1 hour')";
    scene.pg.execute(sql, &[&scene.taken]).await.unwrap();
    let answer =
        scene.assert_held("later", "delay", &["has delayed it until 20"], &["by themselves at 20"]).await;
    assert_eq!(answer["remedy"]["command"], json!(null), "none that gives a message up");
    scene.pg.batch_execute("UPDATE oncebox.delayed SET not_before = now() - interval '1 s'").await.unwrap();
    let answer = scene.answer("later").await;
    let what = answer["what"].as_str().unwrap();
    assert!(answer["outcome"] == "on-its-way" && what.contains("moves it into the log"), "{answer}");
}

#[tokio::test]
async fn faults_of_the_schema_hold_all_messages() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    scene.pg.batch_execute("DELETE FROM oncebox.cursor").await.unwrap();
    let answer = scene.assert_held("order-1", "schema", &["no cursor"], &["oncebox migrate"]).await;
    scene.mend(&answer).await;
    scene.pg.batch_execute("DELETE FROM oncebox.lane").await.unwrap();
    let answer =
        scene.assert_held("order-1", "schema", &["no row in table lane"], &["oncebox migrate"]).await;
    scene.mend(&answer).await;
    scene.pg.batch_execute("DELETE FROM oncebox.outbox").await.unwrap();
    let answer = scene
        .assert_held("order-1", "schema", &["table outbox has lost its row"], &["oncebox migrate"])
        .await;
    scene.mend(&answer).await;
    assert_eq!(scene.answer("order-1").await["outcome"], "on-its-way");

    // Another database than the one that the last relay served. No command is offered that decides
    // whose messages these are.
    let elsewhere = "INSERT INTO oncebox.home (system_identifier, database_oid, database_name, address)
                     VALUES (7, 7, 'orders', 'db1:5432/orders')";
    scene.pg.batch_execute(elsewhere).await.unwrap();
    let what = ["db1:5432/orders", "relays send nothing"];
    let answer = scene.assert_held("order-1", "relay", &what, &["oncebox adopt --move"]).await;
    assert_eq!(answer["remedy"]["command"], json!(null));
}

#[tokio::test]
async fn a_database_that_takes_no_writes_holds_all_messages() {
    let scene = Scene::new().await;
    scene.enqueue("order-1", &scene.taken, None).await;
    let set = |to| format!("ALTER DATABASE {} SET default_transaction_read_only = {to}", scene.env.name());
    scene.pg.batch_execute(&set("on")).await.unwrap();
    scene
        .assert_held("order-1", "postgres", &["PostgreSQL takes no writes"], &["connect to the primary"])
        .await;
    scene.pg.batch_execute(&set("off")).await.unwrap();
    assert_eq!(scene.answer("order-1").await["outcome"], "on-its-way");
}

/// It locks a row that a relay needs besides the lane.
#[tokio::test]
async fn a_locked_cursor_names_the_session_that_has_it() {
    let scene = Scene::new().await;
    let session = client(&named(&scene.env, "psql")).await;
    session.batch_execute("BEGIN; SELECT FROM oncebox.cursor FOR UPDATE").await.unwrap();
    scene.enqueue("order-1", &scene.taken, None).await;
    let relay = Process::relay(&scene.values);
    let found = eventually("a relay waits", LIMIT, async || {
        Some(scene.answer("order-1").await)
            .filter(|answer| answer["station"] == "lane" && answer["outcome"] == "held")
    });
    let answer = found.await;
    assert_held(&answer, "lane", &["locked by", "psql"], &["SELECT pg_terminate_backend("]);
    scene.mend(&answer).await;
    await_messages(&scene.stream, 1).await;
    relay.signal("TERM").await;
    assert!(relay.ended().await.0.success());
}
