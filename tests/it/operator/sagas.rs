//! Sagas on the command line: list, show, retry, skip, abandon, trace; and the counts of a scrape.
//! The rows are as an orchestrator writes them.

use std::time::Duration;

use oncebox_tests::{TestEnv, eventually};
use serde_json::Value;

use super::metrics::value_of;
use crate::{
    relay::{
        process::{Process, run, run_ok},
        support::{values_of, with},
    },
    saga::shop::{orchestrator, order},
};

const LIMIT: Duration = Duration::from_secs(60);

/// Three stuck sagas, forward and backward, one in quarantine, two that are well, one finished.
pub(crate) const SAGAS: &str = r#"
INSERT INTO oncebox.saga (type, business_id, key, version, fingerprint, state, direction, reason, data, began_with, scope, finished_at,
                          created_at)
SELECT s.type, s.id, s.id || ':' || s.type, 1, 'f1', s.state, s.direction, s.reason, '{"card": "4111"}', '', 'orders',
       CASE WHEN s.state = 'completed' THEN clock_timestamp() END, clock_timestamp() - interval '1 hour'
FROM (VALUES
  ('order', '1', 'running', 'forward', NULL),
  ('order', '2', 'stuck', 'forward', 'ship: no answer'),
  ('order', '3', 'stuck', 'backward', 'charge: declined'),
  ('order', '4', 'quarantined', 'forward', 'the data cannot be read'),
  ('order', '5', 'completed', 'forward', NULL),
  ('refund', '6', 'stuck', 'forward', 'pay: no answer'),
  ('refund', '7', 'compensating', 'backward', 'pay: no account')
) AS s (type, id, state, direction, reason);
INSERT INTO oncebox.saga_step (saga_id, step, state, attempt, subject, payload, sent_at, undo_attempt, undo_subject, undo_payload,
                               reason)
SELECT s.id, t.step, t.state, 1, 'do.' || t.step, '', clock_timestamp() + t.place * interval '1 second', t.undo,
       CASE WHEN t.undo > 0 THEN 'undo.' || t.step END, CASE WHEN t.undo > 0 THEN ''::bytea END, t.reason
FROM (VALUES
  ('2:order', 1, 'reserve', 'done', 0, NULL),
  ('2:order', 2, 'ship', 'failed', 0, 'no answer'),
  ('3:order', 1, 'reserve', 'undo-failed', 1, 'it died'),
  ('3:order', 2, 'charge', 'rejected', 0, 'declined'),
  ('6:refund', 1, 'pay', 'failed', 0, 'no answer')
) AS t (key, place, step, state, undo, reason)
JOIN oncebox.saga AS s ON s.key = t.key;
INSERT INTO oncebox.saga_definition (fingerprint, type, version, graph)
VALUES ('f1', 'order', 1, '[
  {"name": "reserve", "after": [], "is_pivot": false, "subject": "do.reserve", "compensation": "undo.reserve"},
  {"name": "charge", "after": ["reserve"], "is_pivot": false, "subject": "do.charge", "compensation": "undo.charge"},
  {"name": "ship", "after": ["charge"], "is_pivot": true, "subject": "do.ship", "compensation": null}
]');
"#;

async fn environment() -> TestEnv {
    let env = TestEnv::new().await;
    env.pg().await.batch_execute(SAGAS).await.unwrap();
    env
}

/// The keys of the sagas that are listed.
async fn list(env: &TestEnv, arguments: &[&str]) -> Vec<String> {
    let (code, output, log) =
        run(env.database_url(), &[&["saga", "list", "--json"], arguments].concat()).await;
    assert_eq!(code, i32::from(output.is_empty()), "{arguments:?}: {log}");
    let key = |line: &str| serde_json::from_str::<Value>(line).unwrap()["key"].as_str().unwrap().to_owned();
    output.lines().map(key).collect()
}

const LETTERS: &str = r#"
INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
SELECT l.scope, '', l.key, l.subject, '{}', '', 20, 'it died'
FROM (VALUES
  ('shipping:ship', '2:order:ship', 'do.ship'),
  ('stock:reserve', '3:order:reserve:undo', 'undo.reserve'),
  ('stock:reserve', '3:order:reserve', 'do.reserve'),
  ('payments:pay', '6:refund:pay', 'do.pay'),
  ('audit:pay', '6:refund:pay', 'do.pay')
) AS l (scope, key, subject)"#;

/// D8: a new attempt has a key of its own, so the dead letter of the last one is done with.
#[tokio::test]
async fn a_retry_discards_the_dead_letter_of_the_participant() {
    let env = environment().await;
    let (url, pg) = (env.database_url(), env.pg().await);
    pg.batch_execute(LETTERS).await.unwrap();
    let retry = async |key: &str| {
        let (code, output, log) = run(url, &["saga", "retry", "--key", key, "--by", "mina"]).await;
        assert_eq!((code, &*output), (0, "asked for another attempt of 1 saga\n"), "{log}");
        log
    };
    assert!(retry("2:order").await.contains("letters=1"), "of the action");
    assert!(retry("3:order").await.contains("letters=1"), "of the compensation");
    let log = retry("6:refund").await;
    let command = "oncebox inbox dead discard --key 6:refund:pay";
    assert!(log.contains(command) && !log.contains("letters="), "an audit's copy died as well: {log}");
    let left = "SELECT string_agg(concat_ws(' ', scope, key), ', ' ORDER BY scope) FROM oncebox.dead_letter";
    let left: String = pg.query_one(left, &[]).await.unwrap().get(0);
    assert_eq!(left, "audit:pay 6:refund:pay, payments:pay 6:refund:pay, stock:reserve 3:order:reserve");
    let audited: Vec<String> =
        record(&env).await.into_iter().filter(|line| line.starts_with("audit discard")).collect();
    assert_eq!(
        audited,
        [
            "audit discard shipping:ship 2:order:ship it died mina",
            "audit discard stock:reserve 3:order:reserve:undo it died mina"
        ]
    );
}

/// The requests of operators, and their rows in the audit.
async fn record(env: &TestEnv) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', kind, key, step, is_undo) FROM oncebox.saga_event
               UNION ALL
               SELECT concat_ws(' ', 'audit', action, scope, key, reason, operator, note) FROM oncebox.audit
               ORDER BY 1";
    env.pg().await.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn state(env: &TestEnv, key: &str) -> String {
    let sql = "SELECT state FROM oncebox.saga WHERE key = $1";
    env.pg().await.query_one(sql, &[&key]).await.unwrap().get(0)
}

#[tokio::test]
async fn sagas_are_listed_and_shown() {
    let env = environment().await;
    let url = env.database_url();
    let open = ["1:order", "2:order", "3:order", "4:order", "6:refund", "7:refund"];
    assert_eq!(list(&env, &[]).await, open, "what has not finished");
    assert_eq!(list(&env, &["--state", "stuck"]).await, ["2:order", "3:order", "6:refund"]);
    assert_eq!(list(&env, &["--state", "stuck", "--type", "order"]).await, ["2:order", "3:order"]);
    let status = super::status::status(url).await;
    super::status::assert_finds(&status, &["2 sagas of type order are stuck", "oncebox saga list"]);
    super::status::assert_finds(&status, &["1 saga of type refund is stuck"]);
    super::status::assert_finds(&status, &["1 saga of type order is quarantined"]);
    assert_eq!(list(&env, &["--state", "completed"]).await, ["5:order"]);
    assert_eq!(list(&env, &["--key", "5:order"]).await, ["5:order"]);
    assert_eq!(list(&env, &["--state", "abandoned"]).await, [""; 0]);
    assert_eq!(list(&env, &["--limit", "2"]).await, ["1:order", "2:order"]);
    assert_eq!(run(url, &["saga", "list", "--state", "broken"]).await.0, 64, "there is no such state");

    let table = run_ok(url, &["saga", "list", "--key", "3:order"]).await;
    assert!(table.contains("order v1") && table.contains("reserve") && table.contains("declined"), "{table}");
    let text = run_ok(url, &["saga", "show", "3:order"]).await;
    assert!(text.contains("undo-failed  1, undo 1") && !text.contains("4111"), "{text}");
    let shown: Value =
        serde_json::from_str(&run_ok(url, &["saga", "show", "3:order", "--json"]).await).unwrap();
    assert_eq!((&shown["direction"], &shown["waiting"][0]), (&"backward".into(), &"reserve".into()));
    assert_eq!((&shown["steps"][1]["step"], &shown["data"]), (&"charge".into(), &Value::Null));
    let data = run_ok(url, &["saga", "show", "3:order", "--data"]).await;
    assert!(data.contains("4111"), "{data}");
    assert_eq!(run(url, &["saga", "show", "8:order"]).await.0, 1);

    let drawn = run_ok(url, &["saga", "show", "2:order", "--mermaid"]).await;
    for line in [
        "flowchart LR",
        "  s0[\"reserve<br/>done\"]:::done",
        "  s1[\"charge<br/>pending\"]:::pending",
        "  s0 --> s1",
        "  s2{{\"ship<br/>failed\"}}:::failed",
        "  s2 --> ended",
        "  ended([\"stuck\"]):::stuck",
    ] {
        assert!(drawn.lines().any(|drawn| drawn == line), "{line}: {drawn}");
    }
    let picture = run_ok(url, &["saga", "show", "2:order", "--svg"]).await;
    for part in ["<svg xmlns=", ">2:order: stuck<", ">reserve<", ">failed<", "fill=\"#ecc\"", "</svg>\n"] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    assert_eq!(picture.matches("stroke-dasharray").count(), 1, "charge was not sent: {picture}");
    assert_eq!(run(url, &["saga", "show", "2:order", "--svg", "--json"]).await.0, 64);
    env.pg().await.batch_execute("DELETE FROM oncebox.saga_definition").await.unwrap();
    let drawn = run_ok(url, &["saga", "show", "3:order", "--mermaid"]).await;
    assert!(drawn.contains("s0 -.-> u0([\"reserve:undo\"])") && drawn.contains("s0 --> s1"), "{drawn}");
}

/// The definition as its orchestrator has registered it, in the words of `Graph::mermaid`.
#[tokio::test]
async fn a_definition_is_drawn_without_an_instance() {
    let env = TestEnv::new().await;
    let (first, second) = (order(1, &[]), order(2, &["tell"]));
    orchestrator(&[&first, &second]).check(&env.pg().await).await.unwrap();
    let url = env.database_url();
    assert_eq!(run_ok(url, &["saga", "graph", "order"]).await, second.graph().mermaid());
    assert_eq!(run_ok(url, &["saga", "graph", "order", "--version", "1"]).await, first.graph().mermaid());
    let picture = run_ok(url, &["saga", "graph", "order", "--svg"]).await;
    for part in [">order 2<", ">ship.do<", ">undo: pay.undo<"] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    assert_eq!(picture.matches("<path").count(), 3, "four steps, one after the other: {picture}");
    let json = run_ok(url, &["saga", "graph", "order", "--json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["version"], &json["graph"][3]["after"][0]), (&2.into(), &"ship".into()));
    let (code, _, log) = run(url, &["saga", "graph", "order", "--version", "3"]).await;
    assert!(code == 1 && log.contains("no orchestrator has registered"), "{log}");
}

/// A shop that leads a saga, and a service that takes part, each with a database.
#[tokio::test]
async fn a_trace_looks_into_several_databases() {
    let (shop, service) = (environment().await, TestEnv::new().await);
    let enqueue = "SELECT oncebox.enqueue('2:order:reserve', 'do.reserve', 'p')";
    shop.pg().await.query_one(enqueue, &[]).await.unwrap();
    let handled = "INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status)
                   VALUES ('stock:reserve', '', '2:order:reserve', '', 'completed'), ('stock:reserve', '', 'other', '', 'completed')";
    let client = service.pg().await;
    client.batch_execute(handled).await.unwrap();
    let answer = "SELECT oncebox.enqueue('2:order:reserve:reply', 'replies', 'null')";
    client.query_one(answer, &[]).await.unwrap();
    let (url, other) = (shop.database_url(), service.database_url());
    let alone = run_ok(url, &["trace", "2:order"]).await;
    assert!(!alone.contains("stock:reserve") && !alone.contains("database "), "{alone}");
    let text = run_ok(url, &["trace", "2:order", "--also", other]).await;
    for part in
        [shop.name(), service.name(), "completed in stock:reserve", "2:order:reserve:reply", "is stuck"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let lines = run_ok(url, &["trace", "2:order", "--also", other, "--json"]).await;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    let inbox = &lines[0]["messages"][0]["inboxes"][0];
    assert_eq!((&inbox["scope"], &inbox["database"]), (&"stock:reserve".into(), &lines[1]["database"]));
    assert_eq!(lines[1]["messages"][0]["key"], "2:order:reserve:reply");
    // An invalid URL is refused before anything is asked.
    assert_eq!(run(url, &["trace", "2:order", "--also", "http://elsewhere"]).await.0, 64);
}

#[tokio::test]
async fn what_waits_is_retried_skipped_or_abandoned_and_recorded() {
    let env = environment().await;
    let url = env.database_url();
    let dry = ["saga", "retry", "--type", "order", "--state", "stuck", "--dry-run"];
    assert!(run_ok(url, &dry).await.starts_with("would retry 2 sagas\n"));
    let all = run_ok(url, &["saga", "retry", "--all", "--dry-run"]).await;
    assert!(all.starts_with("would retry 4 sagas\nto retry these rows"), "{all}");
    assert_eq!(record(&env).await, [""; 0], "nothing was changed");
    let retry = ["saga", "retry", "--state", "stuck", "--limit", "2", "--by", "mina", "--note", "INC-7"];
    assert_eq!(run_ok(url, &retry).await, "asked for another attempt of 2 sagas\n");
    let skip = ["saga", "skip", "--key", "6:refund", "--step", "pay", "--json"];
    let skipped: Value = serde_json::from_str(&run_ok(url, &skip).await).unwrap();
    assert_eq!(skipped, serde_json::json!({"action": "skip", "sagas": 1, "dry_run": false}));
    assert_eq!(
        record(&env).await,
        [
            "audit retry order 2:order ship mina INC-7",
            "audit retry order 3:order reserve mina INC-7",
            "audit skip refund 6:refund pay",
            "retry 2:order ship f",
            "retry 3:order reserve t",
            "skip 6:refund pay f",
        ]
    );
    run_ok(url, &["saga", "retry", "--key", "4:order"]).await;
    assert_eq!(state(&env, "4:order").await, "running", "it is read again");

    // A step that does not wait is left alone, and the command says how it stands.
    for (arguments, says) in [
        (&["retry", "--key", "1:order"][..], "that with the key \"1:order\" is running"),
        (&["skip", "--key", "2:order", "--step", "reserve"], "that with the key \"2:order\" is stuck"),
        (&["retry", "--key", "2:order", "--step", "reserve"], "that with the key \"2:order\" is stuck"),
        (&["abandon", "--key", "5:order"], "that with the key \"5:order\" is completed"),
        (&["abandon", "--key", "8:order"], "none has the key \"8:order\""),
        (&["retry", "--type", "invoice"], "no saga is selected"),
    ] {
        let (code, _, log) = run(url, &[&["saga"], arguments].concat()).await;
        assert_eq!(code, 1, "{arguments:?}: {log}");
        assert!(log.contains(says), "{arguments:?}: {log}");
    }
    assert_eq!(run(url, &["saga", "abandon"]).await.0, 64, "somebody must say which");

    run_ok(url, &["saga", "abandon", "--type", "refund", "--note", "bankrupt"]).await;
    assert_eq!(
        (state(&env, "6:refund").await, state(&env, "7:refund").await),
        ("abandoned".into(), "abandoned".into())
    );
    let text = run_ok(url, &["saga", "show", "6:refund"]).await;
    assert!(text.contains("bankrupt") && text.contains("skip"), "the reason and the audit: {text}");
    assert_eq!(list(&env, &["--type", "refund"]).await, [""; 0]);
}

#[tokio::test]
async fn a_trace_and_a_scrape_tell_of_sagas() {
    let env = environment().await;
    env.stream().await;
    let sql = "SELECT oncebox.enqueue('3:order:reserve', 'do.reserve', 'p')";
    env.pg().await.query_one(sql, &[]).await.unwrap();
    for key in ["3", "3:order"] {
        let text = run_ok(env.database_url(), &["trace", key]).await;
        assert!(text.contains("3:order:reserve  due"), "{text}");
        assert!(text.contains("saga 3:order, order, is stuck: charge: declined"), "{text}");
        assert!(text.contains("undo-failed"), "{text}");
    }
    let traced = run_ok(env.database_url(), &["trace", "2:order", "--json"]).await;
    let traced: Value = serde_json::from_str(&traced).unwrap();
    assert_eq!(
        (&traced["sagas"][0]["state"], &traced["messages"]),
        (&"stuck".into(), &Value::Array(Vec::new()))
    );

    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    let text = relay.reading().await;
    for (labels, expected) in [
        ("type=\"order\",state=\"running\"", 1.0),
        ("type=\"order\",state=\"stuck\"", 2.0),
        ("type=\"order\",state=\"quarantined\"", 1.0),
        ("type=\"refund\",state=\"stuck\"", 1.0),
    ] {
        assert_eq!(value_of(&text, &format!("oncebox_sagas{{{labels}}}")), expected, "{text}");
        let oldest = value_of(&text, &format!("oncebox_saga_oldest_seconds{{{labels}}}"));
        assert!((3_600.0..3_900.0).contains(&oldest), "{labels}: {oldest}");
    }
    let ended = "type=\"order\",state=\"completed\"";
    assert_eq!(value_of(&text, &format!("oncebox_finished_sagas{{{ended}}}")), 1.0, "{text}");
    assert!(!text.contains(&format!("oncebox_sagas{{{ended}}}")), "{text}");
    // Sagas that ended longer ago are not counted any more.
    let sql = "UPDATE oncebox.saga SET finished_at = finished_at - interval '2 minutes' WHERE finished_at IS NOT NULL";
    env.pg().await.batch_execute(sql).await.unwrap();
    eventually("it is not counted any more", LIMIT, async || {
        let (_, text) = relay.get("/metrics").await;
        (!text.contains("oncebox_finished_sagas{")).then_some(())
    })
    .await;
}
