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
        process::{Process, run, run_ok},
        support::{LIMIT, client, values_of, with},
    },
};

const SQL: &str = include_str!("../../../relay/src/postgres/sql/inboxes.sql");
const REASON: &str = r#"relation "charge" does not exist"#;

/// Registers inboxes, and a route of HTTP, which is none.
pub(crate) const SCOPES: &str = "INSERT INTO oncebox.inbox_scope (scope, kind) VALUES
    ('mail:receipt', 'consumer'), ('payment:charge', 'consumer'), ('quiet:done', 'consumer'), ('shop', 'http');
    INSERT INTO oncebox.expectation (subject, scope, within_seconds) VALUES ('orders.*', 'payment:charge', 60) ON CONFLICT DO NOTHING";

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
    let text = relay.reading().await;
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

#[tokio::test]
async fn an_operator_changes_the_settings_of_a_scope_and_sees_them_before_and_after() {
    let env = TestEnv::new().await;
    let (pg, url) = (env.pg().await, env.database_url());
    pg.batch_execute("SELECT oncebox.register_scope('pay:charge', '30 days')").await.unwrap();
    let change = ["inbox", "scope", "change", "pay:charge", "--retention", "60d", "--mode", "lease"];
    let stored = async || {
        let sql =
            "SELECT concat_ws(' ', retention_seconds, dead_letter_seconds, mode) FROM oncebox.inbox_scope";
        pg.query_one(sql, &[]).await.unwrap().get::<_, String>(0)
    };
    let before = stored().await;
    let shown = run_ok(url, &[&change[..], &["--dry-run"]].concat()).await;
    let expected = "would change pay:charge
  from consumer (transaction): keys 30 days, dead letters 90 days
  to   consumer (lease): keys 60 days, dead letters 90 days
";
    assert_eq!(shown, expected);
    assert_eq!(stored().await, before, "a dry run takes it back");
    let said = run_ok(url, &[&change[..], &["--by", "mina", "--note", "INC-7"]].concat()).await;
    assert_eq!(said, expected.replace("would change", "changed"));
    assert_eq!(stored().await, "5184000 7776000 lease");
    let audit = "SELECT string_agg(concat_ws(' ', action, scope, operator, note, reason), '; ' ORDER BY id) FROM oncebox.audit";
    let audit: String = pg.query_one(audit, &[]).await.unwrap().get(0);
    assert!(audit.starts_with("change-scope pay:charge mina INC-7 consumer, retention"), "{audit}");
    assert!(audit.ends_with("; change-scope pay:charge mina INC-7 mode lease"), "{audit}");
    let listed = run_ok(url, &["inbox", "scope", "list", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&listed["scope"], &listed["retention_seconds"]), (&json!("pay:charge"), &json!(5_184_000.0)));
    for (arguments, problem) in [
        (["pay:other", "--retention", "1d"], "is registered"),
        (["pay:charge", "--retention", "0s"], "do not fit"),
        (["pay:charge", "--kind", "other"], "possible values"),
    ] {
        let (code, said, log) = run(url, &[&["inbox", "scope", "change"], &arguments[..]].concat()).await;
        assert!(code != 0 && (said.clone() + &log).contains(problem), "{arguments:?}: {said}{log}");
    }
}
