//! The inboxes of a database, in `oncebox status` and in the metrics of a relay: failing, dead and
//! snoozed messages, at the same cost for any number of rows.

use oncebox_tests::{TestEnv, eventually};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::{
    operator::{
        metrics::value_of,
        status::{assert_finds, findings, named, status},
    },
    relay::{
        plans::pages,
        process::{Process, run_ok},
        support::{LIMIT, client, values_of, with},
    },
};

const SQL: &str = include_str!("../../../relay/src/postgres/sql/inboxes.sql");
const REASON: &str = r#"relation "charge" does not exist"#;

/// Registers inboxes, and a route of HTTP, which is none.
pub(crate) const SCOPES: &str = "INSERT INTO oncebox.inbox_scope (scope, kind) VALUES
    ('mail:receipt', 'consumer'), ('payment:charge', 'consumer'), ('quiet:done', 'consumer'), ('shop', 'http')";

/// As a consumer records a failed attempt; the message was stored two minutes ago.
pub(crate) async fn fail(pg: &Client, scope: &str, key: &str) {
    let sql = "INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, failures, reason, failed_at)
               VALUES ($1, '', $2, 'ORDERS 7 ' || floor(extract(epoch FROM now()) * 1000000 - 120000000)::bigint, 1, $3, now())";
    pg.execute(sql, &[&scope, &key, &REASON]).await.unwrap();
}

async fn end(pg: &Client, scope: &str, key: &str) {
    let sql = "INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status)
               VALUES ($1::text, '', $2::text, sha256(''), 'completed')";
    pg.execute(sql, &[&scope, &key]).await.unwrap();
}

/// A message that ended, one that an attempt without a trace has touched, a dead and a snoozed one.
async fn fill(pg: &Client) {
    pg.batch_execute(SCOPES).await.unwrap();
    fail(pg, "payment:charge", "waits").await;
    fail(pg, "payment:charge", "ended").await;
    end(pg, "payment:charge", "ended").await;
    let others = "INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, begun) VALUES ('payment:charge', '', 'begun', '', 1);
        INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
        SELECT 'mail:receipt', '', 'dead-' || n, 's', '{}', '', 5, 'no account' FROM generate_series(1, 3) AS n;
        INSERT INTO oncebox.inbox_snooze (scope, tenant, key, message, delivery, attempts, reason, due_at)
        VALUES ('mail:receipt', '', 'later', '', 1, 0, 'not now', now() + interval '1 hour'),
               ('mail:receipt', '', 'earlier', '', 1, 0, 'not now', now() - interval '1 hour')";
    pg.batch_execute(others).await.unwrap();
}

#[tokio::test]
async fn a_message_that_fails_is_in_the_status_until_it_ends() {
    let env = TestEnv::new().await;
    let (pg, url) = (env.pg().await, env.database_url());
    let _relay = client(&named(&env, "oncebox%20relay")).await;
    pg.batch_execute(SCOPES).await.unwrap();
    assert_eq!(findings(&status(url).await), [""; 0]);
    let rest = run_ok(url, &["status"]).await;
    assert!(rest.contains("3 inboxes have nothing failing") && !rest.contains("FAILING"), "{rest}");
    pg.batch_execute("DELETE FROM oncebox.inbox_scope").await.unwrap();
    fill(&pg).await;

    let told = status(url).await;
    assert_finds(&told, &["1 message of the inbox of payment:charge failed", "does not exist", "by itself"]);
    let inbox = |told: &Value, place: usize| {
        let inbox = &told["inboxes"][place];
        json!([inbox["scope"], inbox["failing"], inbox["dead"], inbox["snoozed"], inbox["reason"]])
    };
    assert_eq!(inbox(&told, 0), json!(["mail:receipt", 0, 3, 1, null]), "{told}");
    assert_eq!(inbox(&told, 1), json!(["payment:charge", 1, 0, 0, REASON]), "{told}");
    assert_eq!(inbox(&told, 2), json!(["quiet:done", 0, 0, 0, null]), "{told}");
    assert_eq!(told["inboxes"].as_array().unwrap().len(), 3, "a route of HTTP is no inbox: {told}");
    let oldest = told["inboxes"][1]["failing_oldest_seconds"].as_f64().unwrap();
    assert!((120.0..180.0).contains(&oldest), "since it was stored: {oldest}");

    let text = run_ok(url, &["status"]).await;
    let line = text.lines().find(|line| line.starts_with("payment:charge")).expect("a line");
    assert!(line.contains("2m") && line.contains(REASON), "{text}");
    assert!(text.contains("1 inbox has nothing failing") && !text.contains("quiet:done"), "{text}");
    assert!(run_ok(url, &["status", "--all"]).await.contains("quiet:done"));
    end(&pg, "payment:charge", "waits").await;
    let told = status(url).await;
    assert_eq!(inbox(&told, 1), json!(["payment:charge", 0, 0, 0, null]), "{told}");
}

#[tokio::test]
async fn a_relay_exports_the_numbers_by_scope_and_sums_up_beyond_a_hundred() {
    let env = TestEnv::new().await;
    let pg = env.pg().await;
    fill(&pg).await;
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    let (_, text) = relay.get("/metrics").await;
    let value =
        |name: &str, scope: &str| value_of(&text, &format!("oncebox_inbox_{name}{{scope=\"{scope}\"}}"));
    assert_eq!(value("failing_messages", "payment:charge"), 1.0, "{text}");
    assert!((120.0..180.0).contains(&value("failing_oldest_seconds", "payment:charge")), "{text}");
    let mail =
        ["failing_messages", "dead_messages", "snoozed_messages"].map(|name| value(name, "mail:receipt"));
    assert_eq!((mail, value("failing_messages", "quiet:done")), ([0.0, 3.0, 1.0], 0.0), "{text}");

    let many = "INSERT INTO oncebox.inbox_scope (scope) SELECT 'zone-' || lpad(n::text, 4, '0') FROM generate_series(1, 200) AS n";
    pg.batch_execute(many).await.unwrap();
    fail(&pg, "zone-0098", "a").await;
    fail(&pg, "zone-0199", "b").await;
    fail(&pg, "zone-0200", "c").await;
    let text = eventually("a new reading", LIMIT, async || {
        let (_, text) = relay.get("/metrics").await;
        text.contains("(others)").then_some(text)
    })
    .await;
    let value =
        |scope: &str| value_of(&text, &format!("oncebox_inbox_failing_messages{{scope=\"{scope}\"}}"));
    assert_eq!((value("zone-0097"), value("payment:charge"), value("(others)")), (0.0, 1.0, 3.0), "{text}");
    assert_eq!(text.matches("oncebox_inbox_failing_messages{").count(), 101, "{text}");
    // The finding has them too.
    let told = status(env.database_url()).await;
    assert_finds(&told, &["3 messages of other inboxes failed"]);
}

/// With all kinds of rows in plenty, of few scopes and of many: 1,000 of each are looked at.
#[tokio::test]
async fn the_numbers_cost_the_same_for_any_number_of_rows_and_take_few_rights() {
    let env = TestEnv::new().await;
    let pg = client(env.database_url()).await;
    let many = "INSERT INTO oncebox.inbox_scope (scope) SELECT 's' || n FROM generate_series(0, 99) AS n;
        INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status)
        SELECT 's' || n % 100, '', 'k' || n, sha256(''), 'completed' FROM generate_series(1, 50000) AS n;
        INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, failures, reason, failed_at)
        SELECT 's' || n % 100, '', 'k' || n, '', 1, 'no', now() FROM generate_series(40001, 90000) AS n;
        INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
        SELECT 's' || n % 50, '', 'd' || n, 's', '{}', '', 5, 'no' FROM generate_series(1, 50000) AS n;
        INSERT INTO oncebox.inbox_snooze (scope, tenant, key, message, delivery, attempts, reason, due_at)
        SELECT 's' || n % 3, '', 'z' || n, '', 1, 0, 'no', now() + interval '1 hour' FROM generate_series(1, 50000) AS n";
    pg.batch_execute(many).await.unwrap();
    for state in ["not analyzed", "analyzed"] {
        for role in ["oncebox_relay", "oncebox_operator"] {
            for mode in ["force_custom_plan", "force_generic_plan"] {
                let prepare = format!(
                    "SET ROLE {role}; SET plan_cache_mode = {mode}; PREPARE q AS {}",
                    env.schema.sql(SQL)
                );
                pg.batch_execute(&prepare).await.unwrap();
                let explain = "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) EXECUTE q(1000, 100)";
                let plan: Vec<String> =
                    pg.query(explain, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
                pg.batch_execute("DEALLOCATE q; RESET ROLE").await.unwrap();
                let what = format!("{role}, {mode}, {state}:\n{}", plan.join("\n"));
                for table in ["inbox", "inbox_attempt", "dead_letter", "inbox_snooze"] {
                    let whole = format!("Seq Scan on {table} ");
                    assert!(!plan.iter().any(|line| line.contains(&whole)), "{what}");
                }
                // Of each of four tables 1,000 rows at most, four pages of an index for each.
                assert!(pages(&plan) < 16_000, "{what}");
            }
        }
        pg.batch_execute("VACUUM (ANALYZE)").await.unwrap();
    }
}
