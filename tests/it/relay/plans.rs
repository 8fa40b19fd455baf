//! The relay's queries use the indexes they name, with any statistics of the tables, and read few
//! pages.

use oncebox_tests::TestEnv;
use tokio_postgres::Client;

const BEGIN: &str = include_str!("../../../relay/src/postgres/sql/begin.sql");
const QUERIES: [(&str, &str, &str); 19] = [
    ("claim", include_str!("../../../relay/src/postgres/sql/claim.sql"), "(4, '{15}', NULL)"),
    ("claim_all", include_str!("../../../relay/src/postgres/sql/claim_all.sql"), "(16, '{15}')"),
    (
        "read_on",
        include_str!("../../../relay/src/postgres/sql/read_on.sql"),
        "('{0,1,2,3}', '{0,0,0,0}', pg_snapshot_xmax(pg_current_snapshot())::text, '{3,4}', 65, 4096, true, NULL)",
    ),
    (
        "settle",
        include_str!("../../../relay/src/postgres/sql/settle.sql"),
        "('{0,1,2,3}', '{1,1,1,1}', '{0,0,0,0}', '{0,0,0,0}', '{NULL,NULL,NULL,NULL}', '{NULL,NULL,NULL,NULL}',
          '{NULL,NULL,NULL,NULL}', '{NULL,NULL,NULL,NULL}', '{NULL,NULL,NULL,NULL}')",
    ),
    // Of the lanes that are locked.
    ("read", include_str!("../../../relay/src/postgres/sql/read.sql"), "(100, 100000, true, 1048576, NULL)"),
    ("others", include_str!("../../../relay/src/postgres/sql/others.sql"), "(3, 0, 'k', NULL, NULL)"),
    ("lag", include_str!("../../../relay/src/postgres/sql/lag.sql"), ""),
    (
        "read_parked",
        include_str!("../../../relay/src/postgres/sql/read_parked.sql"),
        "('{0,1,2,3}', 100, 100000, true, 1048576)",
    ),
    (
        "aside",
        include_str!("../../../operator/src/sql/list_parked.sql"),
        "('{0,1,2,3}', 0, 100, NULL, NULL, NULL, NULL, 'parked', NULL, NULL, NULL, NULL)",
    ),
    (
        "read_reset",
        include_str!("../../../relay/src/postgres/sql/read_reset.sql"),
        "('{0,1,2,3}', 100, 100000, true, 1048576)",
    ),
    ("passed", include_str!("../../../relay/src/postgres/sql/passed.sql"), "('{0,1,2,3}', '{1,2,3,4}')"),
    ("reach", include_str!("../../../relay/src/postgres/sql/reach.sql"), "(0)"),
    ("forget", include_str!("../../../relay/src/postgres/sql/forget.sql"), "(0)"),
    ("ids", include_str!("../../../relay/src/postgres/sql/ids.sql"), ""),
    ("trace", include_str!("../../../operator/src/sql/trace.sql"), "('k1', 100)"),
    ("next_delayed", include_str!("../../../relay/src/postgres/sql/next_delayed.sql"), ""),
    ("delayed", include_str!("../../../relay/src/postgres/sql/delayed.sql"), ""),
    (
        "look_delayed",
        include_str!("../../../operator/src/sql/look_delayed.sql"),
        "('-infinity', 0, 100, NULL, NULL, NULL)",
    ),
    (
        "settled",
        include_str!("../../../operator/src/sql/settled.sql"),
        "(3, 0, 1000000, 100, NULL, NULL, NULL, NULL, 'r')",
    ),
];
/// 100,000 rows have some 2,000 pages and their indexes 1,500; descending an index of a lane takes
/// three or four.
const PAGES_MAX: u64 = 1_200;
/// Up to ten thousand messages due are counted, twice that and a half are looked at; without a
/// vacuum each costs a look at its page. Over all segments the planner may rather read and sort a
/// backlog that is not large.
const PAGES_COUNTED_MAX: u64 = 8_000;
const PAGES_COUNTED_IN_ALL_MAX: u64 = 60_000;

/// Checks each query as its first executions plan it and as its later ones do.
async fn check(env: &TestEnv, client: &Client, state: &str) {
    // Of a pass's statements the text over one segment, and the one over all.
    let tables = |sql: &str| if sql.contains("{log}") { vec!["message_0", "log"] } else { vec![""] };
    let queries = QUERIES.into_iter().flat_map(|(name, sql, arguments)| {
        let is_all = |table| table == "log";
        tables(sql)
            .into_iter()
            .map(move |table| (name, sql.replace("{log}", table), arguments, is_all(table)))
    });
    for (name, sql, arguments, is_over_all) in queries {
        for mode in ["force_custom_plan", "force_generic_plan"] {
            client.batch_execute(&env.schema.sql(BEGIN)).await.unwrap();
            let lock = "SELECT FROM oncebox.lane WHERE lane < 4 FOR UPDATE";
            client.batch_execute(lock).await.unwrap();
            let prepare =
                format!("SET LOCAL plan_cache_mode = {mode}; PREPARE q AS {}", env.schema.sql(&sql));
            client.batch_execute(&prepare).await.unwrap();
            let explain = format!(
                "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE q{arguments}"
            );
            let rows = client.query(&explain, &[]).await.unwrap();
            let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            client.batch_execute("DEALLOCATE q; ROLLBACK").await.unwrap();
            let what = format!("{name}, {mode}, {state}:\n{}", plan.join("\n"));
            for line in plan.iter().filter(|line| {
                line.contains(" Scan ") && line.contains(" on message_") && !line.contains("message_id_seq")
            }) {
                assert!(
                    line.contains("->  Index Scan") || line.contains("->  Index Only Scan"),
                    "{line}\n{what}"
                );
            }
            let by_filter = |line: &String| {
                line.contains("Filter:") && (line.contains("xact =") || line.contains("xact >="))
            };
            assert!(!plan.iter().any(by_filter), "{what}");
            for lines in plan.windows(2).filter(|lines| lines[0].contains(" Scan using message_")) {
                check_index(&lines[0], &lines[1], &what);
            }
            // Dead rows before the newest cursor of a lane are not walked.
            for lines in plan.windows(2).filter(|lines| lines[0].contains(" on cursor ")) {
                let is_scan = lines[0].contains(" Scan ");
                assert!(
                    !is_scan || lines[1].contains("Index Cond: (") && lines[1].contains("lane"),
                    "{what}"
                );
            }
            let pages = pages(&plan);
            let counts = name == "lag" && state.starts_with("backlog");
            let most = match (counts, is_over_all) {
                (true, true) => PAGES_COUNTED_IN_ALL_MAX,
                (true, false) => PAGES_COUNTED_MAX,
                // Eight tables, and eight roots of indexes.
                (false, true) => 4 * PAGES_MAX,
                (false, false) => PAGES_MAX,
            };
            assert!(pages < most, "{pages} pages: {what}");
        }
    }
}

/// By transaction through the index for it, by id through the primary key: the other one of the two
/// would walk a lane's whole settled past. No condition on either is left to a filter.
fn check_index(scan: &str, condition: &str, what: &str) {
    let is_by_key = scan.contains("_key_unique");
    let is_by_transaction = condition.contains("xact");
    let index = if is_by_transaction { "_lane_xact_id" } else { "_pkey" };
    assert!(is_by_key || scan.contains(index), "{scan}\n{condition}\n{what}");
}

/// The first line on buffers is the root's, which sums up.
pub(crate) fn pages(plan: &[String]) -> u64 {
    let line = plan.iter().find(|line| line.contains("Buffers: shared")).map_or("", String::as_str);
    let number = |word: &str| {
        let after = line.split_once(word).map_or("0", |(_, after)| after);
        after.split(' ').next().unwrap().trim_end_matches(',').parse::<u64>().unwrap()
    };
    number("hit=") + number("read=")
}

#[tokio::test]
async fn no_query_reads_the_whole_log() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    client.batch_execute("ALTER TABLE oncebox.message_0 SET (autovacuum_enabled = off)").await.unwrap();
    check(&env, &client, "empty").await;
    // Then PostgreSQL takes it for empty, instead of guessing at ten pages.
    client.batch_execute("VACUUM (ANALYZE) oncebox.message_0").await.unwrap();
    check(&env, &client, "empty and vacuumed").await;
    // A transaction in flight all the time, and one that was in flight when the cursor was written.
    let mut late = env.pg().await;
    let late = late.transaction().await.unwrap();
    late.execute("SELECT oncebox.enqueue('late-' || n, 's', '') FROM generate_series(1, 50) AS n", &[])
        .await
        .unwrap();
    let fill = "INSERT INTO oncebox.message_0 (lane, key, subject, payload)
                SELECT n % 16, 'k' || n, 's', 'x' FROM generate_series(1, 100000) AS n";
    client.execute(fill, &[]).await.unwrap();
    let settle = "UPDATE oncebox.cursor AS c SET snap = pg_current_snapshot(), settled_at = now(),
                  high = coalesce((SELECT max(id) FROM oncebox.message AS m WHERE m.lane = c.lane), 0)";
    let reach = "DELETE FROM oncebox.milestone;
                 INSERT INTO oncebox.milestone (lane, number, floor, high, snap, system_identifier)
                 SELECT lane, number, floor, high, snap, system_identifier FROM oncebox.lane_cursor";
    for analyzed in ["not analyzed", "analyzed"] {
        check(&env, &client, &format!("backlog, {analyzed}")).await;
        let transaction = client.transaction().await.unwrap();
        transaction.execute(settle, &[]).await.unwrap();
        transaction.batch_execute(reach).await.unwrap();
        transaction.commit().await.unwrap();
        check(&env, &client, &format!("settled, {analyzed}")).await;
        client
            .batch_execute("UPDATE oncebox.cursor SET high = 0; ANALYZE oncebox.message_0, oncebox.cursor")
            .await
            .unwrap();
    }
    client.execute(settle, &[]).await.unwrap();
    late.commit().await.unwrap();
    check(&env, &client, "late rows").await;
}
