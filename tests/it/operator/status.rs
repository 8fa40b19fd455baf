//! The output of `oncebox status`: numbers, relays, locks, and the obstacles to delivery; at the
//! same cost for any backlog.

use std::process::Stdio;

use async_nats::jetstream::stream::Stream;
use oncebox_relay::Values;
use oncebox_tests::{TestEnv, eventually};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};
use tokio_postgres::{Client, NoTls};

use crate::relay::{
    plans::pages,
    process::{Process, program, run, run_ok},
    support::{
        LIMIT, Running, client, connect, drain, enqueue, fresh_stream, stream_config, values_of, with,
    },
};

pub(crate) async fn start(env: &TestEnv) -> (Stream, Client, Values) {
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken.>"))).await;
    (stream, env.pg().await, values_of(env))
}

pub(crate) async fn status(url: &str) -> Value {
    serde_json::from_str(&run_ok(url, &["status", "--json"]).await).unwrap()
}

pub(crate) fn findings(status: &Value) -> Vec<String> {
    let findings = status["findings"].as_array().unwrap().iter();
    findings.map(|found| format!("{} / {}", found["what"], found["remedy"])).collect()
}

/// The database's URL with another application_name.
pub(crate) fn named(env: &TestEnv, name: &str) -> String {
    let url = env.database_url();
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}application_name={name}")
}

/// One finding that contains all of these.
pub(crate) fn assert_finds(status: &Value, parts: &[&str]) {
    let found = findings(status);
    let matching = found.iter().filter(|text| parts.iter().all(|part| text.contains(part)));
    assert_eq!(matching.count(), 1, "{parts:?} in {found:#?}");
}

#[tokio::test]
async fn relays_at_work_are_told_from_commands_and_their_absence_is_a_finding() {
    let env = TestEnv::new().await;
    let (_stream, _, values) = start(&env).await;
    let url = env.database_url();
    let quiet = status(url).await;
    assert_eq!(findings(&quiet).len(), 1, "{quiet}");
    assert_finds(&quiet, &["no relay is connected", "oncebox relay", "start"]);
    assert_eq!((quiet["lanes"].as_array().unwrap().len(), &quiet["backlog_messages"]), (16, &json!(0)));
    assert_eq!((&quiet["lag_seconds"], &quiet["schema"]), (&json!(0.0), &json!("oncebox")));

    let relay = Running::start(&with(&values, [("database-url", &named(&env, "orders"))]));
    eventually("a relay by another name is seen by that", LIMIT, async || {
        let seen = status(&named(&env, "orders")).await;
        (seen["relays"][0]["sessions"].as_i64() >= Some(1)).then_some(())
    })
    .await;
    assert_finds(&status(url).await, &["no relay is connected"]);
    relay.stop().await;
}

#[tokio::test]
async fn the_leader_is_told_from_a_standby() {
    let env = TestEnv::new().await;
    let (_stream, pg, values) = start(&env).await;
    let url = named(&env, "orders");
    let other = format!("{}_other", env.name());
    pg.batch_execute(&format!("CREATE ROLE {other} LOGIN")).await.unwrap();
    let mut config: tokio_postgres::Config = url.parse().unwrap();
    let (standby, connection) = config.user(&other).connect(NoTls).await.unwrap();
    env.keep(async move { drop(connection.await) });
    let of_other = format!("1 of {other}@127.0.0.1");
    let before = run_ok(&url, &["status"]).await;
    assert!(before.contains(&of_other) && !before.contains("(standby)"), "nobody leads: {before}");

    let relay = Running::start(&with(&values, [("database-url", &url)]));
    eventually("one leads, the other does not", LIMIT, async || {
        let told = run_ok(&url, &["status"]).await;
        let leads = told.lines().any(|line| line.contains("(leader)") && line.contains(&other));
        (leads && told.contains(&format!("{of_other} (standby)"))).then_some(())
    })
    .await;
    relay.stop().await;
    drop(standby);
    pg.batch_execute(&format!("DROP ROLE {other}")).await.unwrap();
}

#[tokio::test]
async fn what_is_blocked_and_set_aside_is_told_with_its_remedy() {
    let env = TestEnv::new().await;
    let (_stream, pg, values) = start(&env).await;
    let _relay = client(&named(&env, "oncebox%20relay")).await;
    let (lost, taken) = (env.subject("lost.a"), env.subject("taken.a"));
    let ordered = "SELECT oncebox.enqueue($1, $2, 'p', '{}', 'k')";
    pg.execute(ordered, &[&"first", &lost]).await.unwrap();
    for n in 0..3 {
        pg.execute(ordered, &[&format!("behind-{n}"), &taken]).await.unwrap();
    }
    // Dead, but nothing waits for it.
    pg.execute("SELECT oncebox.enqueue('alone', $1, 'p', '{}', 'j')", &[&lost]).await.unwrap();
    drain(&mut connect(&with(&values, [("attempts-max", "1")])).await.worker()).await;
    enqueue(&pg, &env.subject("lost.b"), "parked-", 0..7, 0).await;
    enqueue(&pg, &env.subject("taken.b"), "sent-", 0..2, 0).await;
    drain(&mut connect(&values).await.worker()).await;
    run_ok(env.database_url(), &["outbox", "replay", "--key", "sent-0"]).await;
    enqueue(&pg, &taken, "due-", 0..40, 0).await;
    pg.execute("UPDATE oncebox.message_0 SET created_at = now() - interval '100 s' WHERE key = 'due-0'", &[])
        .await
        .unwrap();

    let told = status(env.database_url()).await;
    assert_eq!((&told["parked"], &told["dead"], &told["replays"]), (&json!(10), &json!(2), &json!(1)));
    let (lag, backlog) = (told["lag_seconds"].as_f64().unwrap(), told["backlog_messages"].as_i64().unwrap());
    assert!((100.0..130.0).contains(&lag) && backlog == 40, "{lag} {backlog}");
    assert_eq!(told["blocked_keys"], 1);
    let blocked = &told["blocked"][0];
    assert_eq!(
        (&blocked["ordering_key"], &blocked["key"], &blocked["behind"]),
        (&json!("k"), &json!("first"), &json!(3))
    );
    assert_finds(&told, &["ordering key k is blocked", "outbox dead retry --key 'first'", "no stream takes"]);
    assert_finds(&told, &["7 set aside", &env.subject("lost.b"), "create a stream"]);
    assert_finds(
        &told,
        &["are dead, with those that block ordering keys: relays send them no more", "outbox dead list"],
    );
    assert_eq!(findings(&told).len(), 3, "{told}");
    let table = run_ok(env.database_url(), &["status"]).await;
    assert!(table.starts_with("what holds delivery up") && table.contains("\nSCHEMA "), "{table}");
    assert!(table.lines().any(|line| line == "dead            2"), "{table}");

    // Due for long, nothing settled, a relay there.
    pg.execute("UPDATE oncebox.cursor SET settled_at = now() - interval '90 s'", &[]).await.unwrap();
    assert_finds(&status(env.database_url()).await, &["messages are due for 10", "/readyz"]);
}

#[tokio::test]
async fn a_locked_lane_names_the_backend_that_locks_it() {
    let env = TestEnv::new().await;
    let (_stream, pg, values) = start(&env).await;
    let url = env.database_url();
    enqueue(&pg, &env.subject("lost"), "dead-", 0..64, 0).await;
    drain(&mut connect(&with(&values, [("attempts-max", "1")])).await.worker()).await;
    let mut stranger = client(&named(&env, "billing")).await;
    let pid: i32 = stranger.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let transaction = stranger.transaction().await.unwrap();
    transaction.execute("SELECT FROM oncebox.lane WHERE lane IN (3, 7) FOR UPDATE", &[]).await.unwrap();
    // A command that waits for a lane has none, and is not a relay although its configuration is
    // that of one.
    let waiting = Process::start(&["outbox", "dead", "retry", "--all"], [("DATABASE_URL", url)]);
    let waits =
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("it waits for the lane", LIMIT, async || pg.query_opt(waits, &[]).await.unwrap()).await;
    let told = status(url).await;
    assert_eq!(told["relays"], json!([]));
    let lock = &told["locks"][0];
    assert_eq!(told["locks"].as_array().unwrap().len(), 1, "{told}");
    assert_eq!((&lock["lanes"], &lock["pid"]), (&json!([3, 7]), &json!(pid)));
    assert_eq!(
        (&lock["application_name"], &lock["state"]),
        (&json!("billing"), &json!("idle in transaction"))
    );
    assert_finds(
        &told,
        &["lanes 3, 7 are locked", "billing", "idle in transaction", &format!("terminate_backend({pid})")],
    );
    let table = run_ok(url, &["status"]).await;
    assert!(table.lines().any(|line| line.starts_with("7 ") && line.contains(&pid.to_string())), "{table}");
    transaction.rollback().await.unwrap();
    let (ended, log) = waiting.ended().await;
    assert!(ended.success(), "{log}");

    let transaction = stranger.transaction().await.unwrap();
    transaction.batch_execute("LOCK TABLE oncebox.lane IN EXCLUSIVE MODE").await.unwrap();
    assert_eq!(status(url).await["locks"][0]["lanes"].as_array().unwrap().len(), 16);
    transaction.rollback().await.unwrap();
    assert_eq!(status(url).await["locks"], json!([]));

    // A pass under way is a lock, and no finding.
    enqueue(&pg, &env.subject("taken.a"), "m-", 0..64, 0).await;
    let mut worker = connect(&values).await.worker();
    let claimed = worker.claim().await.unwrap().unwrap();
    let told = status(url).await;
    assert_eq!(told["locks"][0]["lanes"].as_array().unwrap().len(), 4, "{told}");
    assert!(told["relays"][0]["sessions"].as_i64() >= Some(1), "{told}");
    assert!(
        !findings(&told).iter().any(|text| text.contains("locked") || text.contains("no relay")),
        "{told}"
    );
    drop(claimed);
}

#[tokio::test]
async fn a_transaction_that_has_enqueued_is_listed_until_it_ends() {
    let env = TestEnv::new().await;
    let url = env.database_url();
    let mut producer = client(&named(&env, "billing")).await;
    let reading = env.pg().await;
    reading.batch_execute("BEGIN; SELECT count(*) FROM oncebox.message").await.unwrap();
    let transaction = producer.transaction().await.unwrap();
    transaction.execute("SELECT oncebox.enqueue('k', 's', 'p')", &[]).await.unwrap();
    let told = status(url).await;
    assert_eq!(told["enqueuing"].as_array().unwrap().len(), 1, "{told}");
    assert_eq!(told["enqueuing"][0]["application_name"], "billing");
    assert_eq!(findings(&told).len(), 1, "for now it is none: {told}");
    transaction.rollback().await.unwrap();
    assert_eq!(status(url).await["enqueuing"], json!([]));
}

#[tokio::test]
async fn the_roles_of_relays_and_operators_suffice() {
    let env = TestEnv::new().await;
    let pg = env.pg().await;
    let mut stranger = client(&named(&env, "billing")).await;
    let transaction = stranger.transaction().await.unwrap();
    transaction.execute("SELECT FROM oncebox.lane WHERE lane = 3 FOR UPDATE", &[]).await.unwrap();
    for role in ["relay", "operator"] {
        let (url, name) = env.login(&format!("oncebox_{role}")).await;
        let told = status(&url).await;
        assert_eq!(told["sees_all_sessions"], false);
        // Who locks is seen; since when is not, and it is said how to see it.
        assert_finds(&told, &["lane 3 is locked", "billing"]);
        assert_eq!(told["locks"][0]["transaction_seconds"], json!(null));
        assert!(run_ok(&url, &["status"]).await.contains("GRANT pg_read_all_stats"));
        pg.batch_execute(&format!("DROP ROLE {name}")).await.unwrap();
    }
}

#[tokio::test]
async fn watching_goes_on_until_a_signal_or_until_nobody_reads() {
    let env = TestEnv::new().await;
    let url = env.database_url();
    let watch = ["status", "--json", "--watch", "1"];
    let mut command = Command::new(program());
    command.args(watch).env_clear().env("DATABASE_URL", url).stdout(Stdio::piped()).kill_on_drop(true);
    let mut watching = command.spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = tokio::time::timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["schema"], "oncebox");
    }
    drop(lines);
    let ended = tokio::time::timeout(LIMIT, watching.wait()).await.expect("it ends").unwrap();
    assert!(ended.success(), "{ended}");

    let pg = env.pg().await;
    let seen = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'oncebox operator'";
    let is_gone = async || pg.query_opt(seen, &[]).await.unwrap().is_none().then_some(());
    eventually("the session of the first one ends", LIMIT, is_gone).await;
    let watching = Process::start(&watch, [("DATABASE_URL", url), ("ONCEBOX_LOG", "debug")]);
    eventually("it looks", LIMIT, async || pg.query_opt(seen, &[]).await.unwrap()).await;
    watching.signal("TERM").await;
    let (ended, log) = watching.ended().await;
    assert!(ended.success(), "{ended}: {log}");

    for seconds in ["0", "3601", "soon"] {
        let (code, output, log) = run(url, &["status", "--watch", seconds]).await;
        assert_eq!((code, output.as_str()), (64, ""), "{log}");
    }
    let (code, _, log) = run("postgres://me:secret@127.0.0.1:1/x", &["status", "--watch", "1"]).await;
    assert_eq!(code, 69, "{log}");
    assert!(!log.contains("secret"), "{log}");
}

const LANES: &str = "('{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}', '{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}',
    '{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}', '2030-01-01', 10000)";
const QUESTIONS: [(&str, &str, &str); 9] = [
    ("lag", include_str!("../../../relay/src/postgres/sql/lag.sql"), ""),
    ("overview", include_str!("../../../operator/src/sql/status_overview.sql"), ""),
    ("marks", include_str!("../../../operator/src/sql/status_marks.sql"), ""),
    ("rates", include_str!("../../../operator/src/sql/status_rates.sql"), LANES),
    ("lanes", include_str!("../../../operator/src/sql/status_lanes.sql"), ""),
    ("locks", include_str!("../../../operator/src/sql/status_locks.sql"), "(256)"),
    ("blocked", include_str!("../../../operator/src/sql/status_blocked.sql"), "(1000, 10, 1000)"),
    ("subjects", include_str!("../../../operator/src/sql/recent_subjects.sql"), "(1000, 50)"),
    ("reasons", include_str!("../../../operator/src/sql/status_reasons.sql"), "(1000, 10)"),
];

/// The pages that each question reads.
async fn cost(env: &TestEnv, pg: &mut Client) -> Vec<u64> {
    let settings = include_str!("../../../operator/src/sql/status_settings.sql");
    let mut costs = Vec::new();
    for (name, sql, arguments) in QUESTIONS {
        let transaction = pg.transaction().await.unwrap();
        transaction.batch_execute(settings).await.unwrap();
        transaction
            .batch_execute(&format!("PREPARE q AS {}", env.schema.sql(&sql.replace("{log}", "message_0"))))
            .await
            .unwrap();
        let explain =
            format!("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE q{arguments}");
        let rows = transaction.query(&explain, &[]).await.unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        transaction.batch_execute("DEALLOCATE q").await.unwrap();
        let read = pages(&plan);
        assert!(read < 40_000, "{name}: {read} pages\n{}", plan.join("\n"));
        costs.push(read);
    }
    costs
}

/// Fills every lane: of the log, and half of it set aside, dead or waiting in as many ordering
/// keys.
async fn fill(pg: &Client, from: i32, to: i32) {
    let messages = "INSERT INTO oncebox.message_0 (lane, key, subject, payload, ordering_key)
                    SELECT n % 16, 'k' || n, 's' || n % 5, 'x', 'o' || n / 64
                    FROM generate_series($1::int, $2) AS n";
    pg.execute(messages, &[&from, &to]).await.unwrap();
    let parked =
        "INSERT INTO oncebox.parked (lane, id, turn, key, subject, headers, payload, created_at, ordering_key, attempts,
                                     next_attempt_at, dead_at, error)
                  SELECT m.lane, m.id, m.turn, m.key, m.subject, m.headers, m.payload, m.created_at, CASE n % 64 / 16 WHEN 1 THEN NULL ELSE m.ordering_key END, 1,
                         CASE n % 64 / 16 WHEN 1 THEN now() + interval '1 h' END,
                         CASE n % 64 / 16 WHEN 0 THEN now() END, 'e'
                  FROM generate_series($1::int, $2) AS n
                  JOIN oncebox.message AS m ON m.key = 'k' || n
                  WHERE n % 64 / 16 < 3";
    pg.execute(parked, &[&from, &to]).await.unwrap();
}

#[tokio::test]
async fn ten_times_the_messages_cost_no_more_pages() {
    let env = TestEnv::new().await;
    let mut pg = env.pg().await;
    pg.batch_execute("ALTER TABLE oncebox.message_0 SET (autovacuum_enabled = off)").await.unwrap();
    fill(&pg, 1, 20_000).await;
    let few = cost(&env, &mut pg).await;
    fill(&pg, 20_001, 200_000).await;
    let many = cost(&env, &mut pg).await;
    for ((name, ..), (few, many)) in QUESTIONS.iter().zip(few.into_iter().zip(many)) {
        // A tree of ten times the entries may be a level higher.
        assert!(many <= few * 3 / 2 + 200, "{name}: {few} pages, then {many}");
    }
}

#[tokio::test]
async fn a_status_of_messages_that_get_nowhere_ends_with_an_error() {
    let env = TestEnv::new().await;
    let (_stream, pg, values) = start(&env).await;
    let url = env.database_url();
    assert_eq!(run(url, &["status"]).await.0, 0, "nothing waits");
    enqueue(&pg, &env.subject("taken.a"), "k-", 0..1, 0).await;
    let (code, text, log) = run(url, &["status"]).await;
    let first = text.lines().nth(1).unwrap();
    assert!(code == 1 && first.contains("no relay is connected"), "{text}{log}");
    drain(&mut connect(&values).await.worker()).await;
    assert_eq!(run(url, &["status"]).await.0, 0);
    let read_only = format!("ALTER DATABASE {} SET default_transaction_read_only = on", env.name());
    pg.batch_execute(&read_only).await.unwrap();
    let (code, text, log) = run(url, &["status"]).await;
    let first = text.lines().nth(1).unwrap();
    assert!(code == 1 && first.contains("PostgreSQL takes no writes"), "{text}{log}");
}
