//! The tables of the inbox, and how its transactions look at them.

use oncebox_inbox::{Answer, Outcome, Verdict};
use oncebox_tests::TestEnv;
use tokio_postgres::Client;

use crate::{
    inbox::{
        pipeline::each,
        support::{Does, SCOPE, environment, inbox, message, replayed},
    },
    relay::plans::pages,
};

/// Each statement that looks for a key in `inbox`, with arguments for a key that is there.
const LOOKUPS: [(&str, &str, &str); 7] = [
    ("stored", include_str!("../../../claims/src/transactional/stored.sql"), "('s:h', '', 'k777', NULL)"),
    (
        "settle",
        include_str!("../../../claims/src/transactional/settle.sql"),
        "('s:h', '', 'k777', 'completed', NULL)",
    ),
    ("dead", include_str!("../../../claims/src/transactional/dead.sql"), "('s:h', '', 'k777')"),
    ("found", include_str!("../../../claims/src/leased/sql/found.sql"), "('s:h', '', 'k777', NULL)"),
    (
        "stored of a batch",
        include_str!("../../../claims/src/transactional/batch/stored.sql"),
        "('s:h', '{\"\"}', '{k777}', NULL)",
    ),
    (
        "settle of a batch",
        include_str!("../../../claims/src/transactional/batch/settle.sql"),
        "('s:h', '{\"\"}', '{k777}', '{completed}', '{NULL}')",
    ),
    (
        "release of a batch",
        include_str!("../../../claims/src/transactional/batch/release.sql"),
        "('s:h', '{\"\"}', '{k777}')",
    ),
];
/// Three levels of the index, the row and its next version, and a few of the other table; 40,000
/// rows have more than 500 pages.
const PAGES_MAX: u64 = 24;

/// Keys that were handled two days ago.
async fn fill(client: &Client, rows: i32) {
    let sql = "INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status, created_at)
               SELECT 's:h', '', 'k' || n, sha256(n::text::bytea), 'completed', clock_timestamp() - interval '2 days'
               FROM generate_series(1, $1) AS n";
    client.execute(sql, &[&rows]).await.unwrap();
}

async fn check_plans(env: &TestEnv, client: &Client, state: &str) {
    for (name, sql, arguments) in LOOKUPS {
        for mode in ["force_custom_plan", "force_generic_plan"] {
            let prepare =
                format!("BEGIN; SET LOCAL plan_cache_mode = {mode}; PREPARE q AS {}", env.schema.sql(sql));
            client.batch_execute(&prepare).await.unwrap();
            let explain = format!(
                "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE q{arguments}"
            );
            let rows = client.query(&explain, &[]).await.unwrap();
            let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            client.batch_execute("DEALLOCATE q; ROLLBACK").await.unwrap();
            let what = format!("{name}, {mode}, {state}:\n{}", plan.join("\n"));
            let scan = plan.iter().position(|line| line.contains("using inbox_pkey on inbox")).expect(&what);
            let condition = &plan[scan + 1];
            for column in ["scope", "tenant", "key"] {
                assert!(condition.contains("Index Cond") && condition.contains(column), "{column}: {what}");
            }
            assert!(pages(&plan) <= PAGES_MAX, "{what}");
        }
    }
}

#[tokio::test]
async fn every_lookup_of_a_key_is_an_index_hit() {
    let env = environment().await;
    let client = env.pg().await;
    client.batch_execute("ALTER TABLE oncebox.inbox SET (autovacuum_enabled = off)").await.unwrap();
    // A plan that is made now is kept until the table is analyzed.
    check_plans(&env, &client, "empty").await;
    fill(&client, 40_000).await;
    check_plans(&env, &client, "without statistics").await;
    client.batch_execute("ANALYZE oncebox.inbox").await.unwrap();
    check_plans(&env, &client, "with statistics").await;
    let claim = include_str!("../../../claims/src/transactional/claim.sql").replace("_timeout}ms", "}ms");
    let claim = ["{transaction}", "{idle}", "{statement}", "{lock}"]
        .iter()
        .fold(claim, |sql, name| sql.replace(name, "1000"));
    let claim = claim.replace("{on_conflict}", "ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING");
    client.batch_execute(&format!("PREPARE q AS {}", env.schema.sql(&claim))).await.unwrap();
    let explain = "EXPLAIN EXECUTE q(1, 's:h', '', 'k777', '', NULL, 'completed', NULL)";
    let rows = client.query(explain, &[]).await.unwrap();
    let plan: String = rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect();
    assert!(plan.contains("Conflict Arbiter Indexes: inbox_pkey"), "{plan}");
}

/// A second index would cost every message; the sweep reads the table by the numbers of its blocks,
/// each once.
#[tokio::test]
async fn the_hot_table_has_one_index_and_the_sweep_needs_none() {
    let env = environment().await;
    let mut client = env.pg().await;
    let sql = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'oncebox.inbox'::regclass";
    let indexes: Vec<String> = client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(indexes, ["oncebox.inbox_pkey"]);

    fill(&client, 40_000).await;
    let scope = "INSERT INTO oncebox.inbox_scope (scope, retention_seconds) VALUES ('s:h', 86400)";
    client.batch_execute(scope).await.unwrap();
    for only_count in [true, false] {
        let transaction = client.transaction().await.unwrap();
        let sweep = "SELECT keys FROM oncebox.sweep_inbox(0, 8, $1)";
        let keys: i64 = transaction.query_one(sweep, &[&only_count]).await.unwrap().get(0);
        assert!((1..2000).contains(&keys), "{keys} rows in eight blocks");
        let scans = "SELECT coalesce(sum(seq_scan), 0)::bigint, coalesce(sum(idx_scan), 0)::bigint
                     FROM pg_stat_xact_all_tables WHERE relid = 'oncebox.inbox'::regclass";
        let row = transaction.query_one(scans, &[]).await.unwrap();
        let scans: (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(scans, (0, 0), "whole tables and indexes read, only_count: {only_count}");
        transaction.rollback().await.unwrap();
    }
}

/// A type that lists its values takes a lock on every table that has it to grow, and an old program
/// cannot read the new values.
#[tokio::test]
async fn statuses_are_text() {
    let env = environment().await;
    let client = env.pg().await;
    let sql =
        "SELECT typname::text FROM pg_type WHERE typtype = 'e' AND typnamespace = 'oncebox'::regnamespace";
    assert!(client.query(sql, &[]).await.unwrap().is_empty(), "a type that lists its values");
    let sql = "SELECT table_name || '.' || column_name, data_type FROM information_schema.columns
               WHERE table_schema = 'oncebox' AND column_name IN ('status', 'state', 'kind', 'action')";
    let rows = client.query(sql, &[]).await.unwrap();
    assert!(rows.len() >= 4, "{rows:?}");
    for row in rows {
        let (column, kind): (&str, &str) = (row.get(0), row.get(1));
        assert_eq!(kind, "text", "{column}");
    }
}

/// A claimed key is read with a snapshot of its own, with any default of the database: with one of
/// the whole transaction, a key that was committed meanwhile could not be seen.
#[tokio::test]
async fn every_transaction_is_read_committed() {
    let env = environment().await;
    for default in ["repeatable read", "serializable"] {
        let set = format!("ALTER DATABASE {} SET default_transaction_isolation = '{default}'", env.name());
        env.pg().await.batch_execute(&set).await.unwrap();
        let shown: String =
            env.pg().await.query_one("SHOW default_transaction_isolation", &[]).await.unwrap().get(0);
        assert_eq!(shown, default);
        let inbox = inbox(&env);
        let handler = Does::new(|cx, _| {
            Box::pin(async move {
                let row = cx.transaction().query_one("SHOW transaction_isolation", &[]).await?;
                Ok(Outcome::done(row.get(0)))
            })
        });
        let read_committed = |verdict| {
            let expected = Answer::Done("read committed".to_owned());
            assert!(verdict == Verdict::Handled(expected.clone()) || replayed(&verdict) == expected);
        };
        // Alone, chained to the one before, and together.
        let key = |name: &str| message(&format!("{default} {name}").replace(' ', "-"), 1);
        read_committed(inbox.run(&handler, &key("a")).await.unwrap());
        let chained = [key("b"), key("c"), key("d")];
        assert_eq!(each(&inbox, &handler, chained.clone()).await.len(), 3);
        let batch = [key("e"), key("f")];
        assert!(inbox.run_batch(&handler, &batch).await.iter().all(Result::is_ok));
        for message in chained.iter().chain(&batch) {
            read_committed(inbox.run(&handler, message).await.unwrap());
        }
    }
}

/// How the row says that the key ended is how a copy of the message ends, not that there is a row.
#[tokio::test]
async fn a_row_counts_as_what_it_says() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    inbox.run(&handler, &message("k", 7)).await.unwrap();
    let with_row = async |status: &str, outcome: &str| {
        let sql = "UPDATE oncebox.inbox SET status = $1, outcome = convert_to($2, 'UTF8')";
        env.pg().await.execute(sql, &[&status, &outcome]).await.unwrap();
        inbox.run(&handler, &message("k", 7)).await.unwrap()
    };
    let yes = with_row("completed", "\"yes\"").await;
    assert_eq!(replayed(&yes), Answer::Done("yes".to_owned()));
    let no = with_row("rejected", "\"no\"").await;
    assert_eq!(replayed(&no), Answer::Rejected("no".to_owned()));
    assert_eq!(with_row("dead", "given up").await, Verdict::Dead { reason: "given up".to_owned() });
    assert_eq!(handler.runs(), 1);

    // Rows of the same key that say that it has not ended.
    let client = env.pg().await;
    let begun = "DELETE FROM oncebox.inbox;
        INSERT INTO oncebox.inbox_effect (scope, tenant, key, step, state, epoch)
        VALUES ('{scope}', '', 'k', 'charge', 'started', 1)";
    client.batch_execute(&begun.replace("{scope}", SCOPE)).await.unwrap();
    let snoozed =
        "INSERT INTO oncebox.inbox_snooze (scope, tenant, key, message, delivery, attempts, reason, due_at)
        VALUES ($1, '', 'k', 'm', 1, 0, 'later', now())";
    client.execute(snoozed, &[&SCOPE]).await.unwrap();
    let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
    assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    assert_eq!(handler.runs(), 2);
}
