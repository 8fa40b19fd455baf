//! How many messages are due: exact up to ten thousand, estimated above, the same wherever it is
//! told.

use deadpool_postgres::Object;
use oncebox_tests::{TestEnv, eventually};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, run_ok},
    support::{LIMIT, client, connect, drain, enqueue, values_of, with},
};

/// Each lane with its due messages, and whether their number is exact.
async fn backlog(env: &TestEnv, client: &Client) -> (Vec<i64>, bool) {
    let sql =
        env.schema.sql(&include_str!("../../../relay/src/postgres/sql/lag.sql").replace("{log}", "message"));
    // As the relay has it: compiling the statement takes longer than running it.
    client.batch_execute("SET jit = off").await.unwrap();
    let rows = client.query(&sql, &[]).await.unwrap();
    let is_exact = rows.iter().all(|row| row.get("is_exact"));
    (rows.iter().map(|row| row.get("backlog_messages")).collect(), is_exact)
}

/// The expected backlog, from a look at every row: the messages that are due by the rule in
/// cursor.rs.
async fn truth(client: &Client) -> Vec<i64> {
    let sql = "SELECT l.lane, count(m.id)
        FROM oncebox.lane_cursor AS l
        LEFT JOIN oncebox.message AS m ON m.lane = l.lane AND NOT (
          m.id <= l.floor
          OR m.id <= l.high AND pg_visible_in_snapshot(m.xact, l.snap)
          OR m.id <= l.high AND l.target IS NOT NULL AND m.id <= l.after AND pg_visible_in_snapshot(m.xact, l.target)
        )
        GROUP BY l.lane ORDER BY l.lane";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(1)).collect()
}

/// Rows of a transaction in random lanes, or all in one.
async fn insert(client: &Client, prefix: &str, count: i32, lane: Option<i16>) {
    let sql = "INSERT INTO oncebox.message_0 (lane, key, subject, payload)
               SELECT coalesce($3::smallint, floor(random() * 16)::smallint), $1::text || n, 's', ''
               FROM generate_series(1, $2::int) AS n";
    client.execute(sql, &[&prefix, &count, &lane]).await.unwrap();
}

async fn snapshot(client: &Client) -> (String, i64) {
    let sql = "SELECT pg_current_snapshot()::text, coalesce((SELECT max(id) FROM oncebox.message), 0)";
    let row = client.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

/// Transactions that begin, enqueue, commit and are undone in random order; returns snapshots taken
/// in between, and the open transactions.
async fn history(
    random: &mut fastrand::Rng,
    env: &TestEnv,
    pg: &Client,
) -> (Vec<(String, i64)>, Vec<Object>) {
    let mut open: Vec<Object> = Vec::new();
    let mut snapshots = vec![snapshot(pg).await];
    for step in 0..120 {
        let lane = random.bool().then(|| random.i16(0..16));
        match random.u8(0..7) {
            0 if open.len() < 8 => {
                let late = client(env.database_url()).await;
                late.batch_execute("BEGIN").await.unwrap();
                open.push(late);
            }
            1 | 2 if !open.is_empty() => {
                let late = &open[random.usize(0..open.len())];
                insert(late, &format!("late-{step}-"), random.i32(1..40), lane).await;
            }
            3 | 4 if !open.is_empty() => {
                let late = open.swap_remove(random.usize(0..open.len()));
                late.batch_execute(if random.u8(0..4) == 0 { "ROLLBACK" } else { "COMMIT" }).await.unwrap();
            }
            5 => snapshots.push(snapshot(pg).await),
            _ => insert(pg, &format!("{step}-"), random.i32(1..40), lane).await,
        }
    }
    (snapshots, open)
}

#[tokio::test]
async fn the_backlog_is_what_looking_at_every_row_finds() {
    let env = TestEnv::new().await;
    let pg = env.pg().await;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    pg.execute("SELECT setseed($1)", &[&(seed as f64 / u64::MAX as f64)]).await.unwrap();
    let (snapshots, _open) = history(&mut random, &env, &pg).await;
    let newest = snapshot(&pg).await.1;
    let mut due = 0;
    for round in 0..40 {
        for lane in 0..16_i16 {
            let older = random.usize(0..snapshots.len());
            let (snap, known) = &snapshots[older];
            let high = random.i64(0..=*known);
            let floor = if random.u8(0..4) > 0 { 0 } else { random.i64(0..=high) };
            let drain = random.u8(0..3) == 0;
            let target = drain.then(|| snapshots[random.usize(older..snapshots.len())].0.clone());
            let after = drain.then(|| random.i64(0..=high));
            // Now and then the lane comes from another cluster.
            let (foreign, until) = (random.u8(0..8) == 0, random.bool().then(|| random.i64(high..=newest)));
            let sql = "UPDATE oncebox.cursor SET floor = $2, high = $3, snap = $4::text::pg_snapshot,
                         target = $5::text::pg_snapshot, after = $6, reset_until = CASE WHEN $7 THEN $8::bigint END,
                         system_identifier = s.system_identifier + $7::boolean::int
                       FROM pg_control_system() AS s WHERE lane = $1";
            pg.execute(sql, &[&lane, &floor, &high, &snap, &target, &after, &foreign, &until]).await.unwrap();
        }
        let truth = truth(&pg).await;
        assert_eq!(backlog(&env, &pg).await, (truth.clone(), true), "round {round} of seed {seed}");
        due += truth.iter().sum::<i64>();
    }
    assert!(due > 1_000, "there was something to count: {due}");
}

#[tokio::test]
async fn few_messages_are_counted_and_all_tell_the_same() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let pg = env.pg().await;
    // Thousands were settled in few lanes, so that the others stand at much lower ids.
    for round in 0..20 {
        enqueue(&pg, &env.subject("a"), &format!("{round}-"), 0..200, 2).await;
    }
    drain(&mut connect(&values_of(&env)).await.worker()).await;
    assert_eq!(backlog(&env, &pg).await, (vec![0; 16], true));
    enqueue(&pg, &env.subject("a"), "due-", 0..3, 0).await;
    assert_eq!(backlog(&env, &pg).await.0.iter().sum::<i64>(), 3);
    enqueue(&pg, &env.subject("a"), "one-", 0..1_600, 1).await;
    // A transaction that has all lanes locked keeps the relay from claiming them.
    let holder = env.pg().await;
    holder.batch_execute("BEGIN; SELECT FROM oncebox.lane FOR UPDATE").await.unwrap();
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    eventually("the metrics tell it", LIMIT, async || {
        (relay.metric("oncebox_backlog_messages").await == 1_603.0).then_some(())
    })
    .await;
    let told: Value = serde_json::from_str(&run_ok(env.database_url(), &["status", "--json"]).await).unwrap();
    assert_eq!((&told["backlog_messages"], &told["backlog_is_exact"]), (&json!(1_603), &json!(true)));
    let text = run_ok(env.database_url(), &["status"]).await;
    assert!(text.lines().any(|line| line.split_whitespace().eq(["backlog", "1603", "messages"])), "{text}");
    drop(stream);
}

/// Ten thousand are counted, wherever they are; more are estimated, also where one lane has them
/// all.
#[tokio::test]
async fn many_messages_are_estimated_and_that_is_said() {
    let env = TestEnv::new().await;
    let pg = env.pg().await;
    insert(&pg, "one-", 9_990, Some(7)).await;
    insert(&pg, "all-", 10, None).await;
    assert_eq!(backlog(&env, &pg).await, (truth(&pg).await, true));
    insert(&pg, "more-", 1, None).await;
    let (_, is_exact) = backlog(&env, &pg).await;
    assert!(!is_exact);
    let text = run_ok(env.database_url(), &["status"]).await;
    assert!(text.contains("messages, estimated") && text.contains("about 10"), "{text}");
    insert(&pg, "one-again-", 100_000, Some(7)).await;
    insert(&pg, "all-again-", 100_000, None).await;
    let (lanes, is_exact) = backlog(&env, &pg).await;
    assert!(!is_exact);
    for (lane, (estimated, truth)) in lanes.iter().zip(truth(&pg).await).enumerate() {
        let ratio = *estimated as f64 / truth as f64;
        assert!((0.75..1.33).contains(&ratio), "lane {lane}: {estimated}, not {truth}");
    }
}

/// A bulk transaction that commits late leaves its rows below the cursor; a relay drains them in
/// parts.
#[tokio::test]
async fn late_messages_are_counted_while_they_are_drained() {
    let env = TestEnv::new().await;
    env.stream().await;
    let pg = env.pg().await;
    let late = env.pg().await;
    late.batch_execute("BEGIN").await.unwrap();
    enqueue(&late, &env.subject("a"), "late-", 0..900, 0).await;
    enqueue(&pg, &env.subject("a"), "m-", 0..64, 0).await;
    let mut worker = connect(&with(&values_of(&env), [("batch-messages", "10")])).await.worker();
    drain(&mut worker).await;
    assert_eq!(backlog(&env, &pg).await, (vec![0; 16], true), "what is not committed is not due");
    late.batch_execute("COMMIT").await.unwrap();
    let mut left = 900;
    for _ in 0..6 {
        let counted = backlog(&env, &pg).await;
        assert_eq!(counted, (truth(&pg).await, true));
        assert_eq!(counted.0.iter().sum::<i64>(), left);
        let before = settled(&pg).await;
        worker.run_once().await.unwrap();
        left -= settled(&pg).await - before;
    }
    assert!(left < 900, "it is being drained");
}

/// How many rows the cursors call settled.
async fn settled(pg: &Client) -> i64 {
    let all: i64 = pg.query_one("SELECT count(*) FROM oncebox.message", &[]).await.unwrap().get(0);
    all - truth(pg).await.iter().sum::<i64>()
}
